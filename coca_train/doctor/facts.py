"""What a rank knows of its machine by itself, without measuring: host, versions, limits, GPU, environment."""

import os
import platform
import re
import resource
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from coca_train.config.schema import EngineConfig
from coca_train.engine.process import choose_device
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.runtime.machine import cores, missing_compiler

DISTRIBUTION = "coca-train"
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"  # in a checkout; an installed package has none
SHM = "/dev/shm"  # noqa: S108 (its size is looked at)
UNLIMITED = -1
# Nothing here can hold a secret.
VARIABLES = re.compile(
    r"(NCCL|GLOO|UCX|TORCH_NCCL|FI)_\w+|MASTER_(ADDR|PORT)|OMP_NUM_THREADS|CUDA_DEVICE_ORDER|CUDA_LAUNCH_BLOCKING"
    r"|PYTORCH_\w*ALLOC_CONF|LEAD_S|SHUTDOWN_TIMEOUT"
)
SMI_S = 10.0
SMI = ("uuid", "driver_version", "ecc.mode.current", "ecc.errors.uncorrected.volatile.total", "mig.mode.current")


@dataclass(frozen=True)
class GpuFacts:
    """One GPU. memory, free: [bytes]. ecc_errors: uncorrected ones since the driver was loaded. reaches: how many of
    the `others` that this process sees it can read directly. What cannot be read is "" or None."""

    name: str
    memory: int
    free: int | None = None
    uuid: str = ""
    driver: str = ""
    ecc: str = ""
    ecc_errors: int | None = None
    mig: str = ""
    reaches: int = 0
    others: int = 0


@dataclass(frozen=True)
class Facts:
    """One rank. limits: ulimits [files, or bytes], -1: unlimited. shm: size and free part of /dev/shm [bytes].

    versions: of Python and of each package that is pinned or required and installed. no_device: why there is none.
    cores: those this process may run on, cpus: those of the host. infiniband: adapters of the host.
    no_compiler: what compiling kernels lacks and what brings it; ("", ""): nothing.
    """

    host: str
    local_rank: int
    device: str
    no_device: str
    gpu: GpuFacts | None
    versions: dict[str, str]
    limits: dict[str, int]
    shm: tuple[int, int]
    cores: int
    cpus: int
    threads: int
    infiniband: int
    environment: dict[str, str] = field(default_factory=dict)
    no_compiler: tuple[str, str] = ("", "")

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Facts":
        """From the plain data of `dataclasses.asdict`, through JSON."""
        gpu = None if values["gpu"] is None else GpuFacts(**values["gpu"])
        return cls(**{**values, "gpu": gpu, "shm": tuple(values["shm"]), "no_compiler": tuple(values["no_compiler"])})


@dataclass(frozen=True)
class Pins:
    """What versions are held against. required: this package's own requirements, those of extras included, as
    specifiers by name. tested: the versions of constraints.txt; empty where it does not lie beside the package. always:
    those required that are of no extra."""

    required: dict[str, str]
    tested: dict[str, str]
    always: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """All packages that are looked for."""
        return [*dict.fromkeys([*self.required, *self.tested])]


@cache  # reading them takes a tenth of a second
def pins() -> Pins:
    """Of this installation."""
    required, tested, always = {}, {}, set()
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # a checkout on the path
        lines = []
    for line in lines:
        one = Requirement(line)
        # Of an extra: where it is installed, it should be one we can use.
        if one.marker is None or one.marker.evaluate() or "extra ==" in str(one.marker):
            specifier = ",".join(filter(None, (required.get(_canonical(one.name)), str(one.specifier))))
            required[_canonical(one.name)] = specifier
            if "extra ==" not in str(one.marker):
                always.add(_canonical(one.name))
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if CONSTRAINTS.is_file() else []:
        try:
            one = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:
            continue  # a comment
        if one.marker is None or one.marker.evaluate():
            tested[_canonical(one.name)] = next((each.version for each in one.specifier), "")
    required.pop(_canonical(DISTRIBUTION), None)
    return Pins(required, tested, frozenset(always))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(names: Sequence[str]) -> dict[str, str]:
    """Python, and the version of each that is installed."""
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def fits(specifier: str, present: str) -> bool:
    """Whether a version is in a specifier's range; what is built otherwise (2.13.0+cu128) is the same version."""
    try:
        return Requirement(f"x{specifier}").specifier.contains(Version(present).public, prereleases=True)
    except (InvalidRequirement, InvalidVersion):
        return False


def same_version(one: str, other: str) -> bool:
    """Whether two are the same, however each was built."""
    return one.partition("+")[0] == other.partition("+")[0]


def facts(engine: EngineConfig, names: Sequence[str], in_full: bool = True) -> Facts:
    """Of this rank. names: packages to look for. in_full: also what takes time, or a context on the GPU."""
    problem = ""
    try:
        device = choose_device(engine)
    except UserError as error:
        device, problem = torch.device("cpu"), str(error)
    size = os.statvfs(SHM) if os.path.isdir(SHM) else None
    return Facts(
        host=platform.node(),
        local_rank=dist.local_rank(),
        device=device.type,
        no_device=problem,
        gpu=gpu_facts(device, in_full) if device.type == "cuda" else None,
        versions=installed(names),
        limits={
            "nofile": _limit(resource.RLIMIT_NOFILE),
            "memlock": _limit(resource.RLIMIT_MEMLOCK),
            "core": _limit(resource.RLIMIT_CORE),
        },
        shm=(size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize) if size else (0, 0),
        cores=cores(),
        cpus=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        infiniband=len(_entries("/sys/class/infiniband")),
        environment={name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)},
        no_compiler=missing_compiler(device.type) or ("", ""),
    )


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def gpu_facts(device: torch.device, in_full: bool) -> GpuFacts:
    """What torch and, in full, nvidia-smi know of a GPU."""
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    free = torch.cuda.mem_get_info(device)[0] if in_full else None
    read = of_smi(nvidia_smi() if in_full else "", uuid)
    driver = read.get("driver_version") or driver_of(_text("/proc/driver/nvidia/version"))
    errors = read.get("ecc.errors.uncorrected.volatile.total", "")
    mig = read.get("mig.mode.current", "") or ("Enabled" if " MIG " in f" {properties.name} " else "")
    others = [other for other in range(torch.cuda.device_count()) if other != device.index]
    return GpuFacts(
        name=properties.name,
        memory=properties.total_memory,
        free=free,
        uuid=uuid,
        driver=driver,
        ecc=read.get("ecc.mode.current", ""),
        ecc_errors=int(errors) if errors.isdecimal() else None,
        mig=mig,
        reaches=sum(torch.cuda.can_device_access_peer(device, other) for other in others) if in_full else 0,
        others=len(others),
    )


def nvidia_smi() -> str:
    """A line for each GPU of the host with the values of SMI; "" where the program is not there or does not answer."""
    try:
        command = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def of_smi(text: str, uuid: str) -> dict[str, str]:
    """The values of one GPU, by name; those that nvidia-smi does not know ("[N/A]") are left out."""
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(SMI) and uuid and values[0].removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            return {name: value for name, value in zip(SMI, values, strict=True) if not value.startswith("[")}
    return {}


def driver_of(text: str) -> str:
    """The version in /proc/driver/nvidia/version."""
    match = re.search(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
