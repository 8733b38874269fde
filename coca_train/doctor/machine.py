"""What each rank knows of its machine without measuring, what is out of line in it, and how that is said.

Shape legend: R ranks.
"""

import os
import platform
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

import torch
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter

from coca_train.config.schema import Config, EngineConfig
from coca_train.engine.process import choose_device
from coca_train.planning.hardware import GIB
from coca_train.planning.memory import CUDA
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.runtime.job import spans
from coca_train.runtime.printing import n_bytes

DISTRIBUTION = "coca-train"
SHM = "/dev/shm"  # noqa: S108 (its size is looked at)
INFINIBAND = "/sys/class/infiniband"
UNLIMITED = -1
MAIN = ("python", "torch", "deepspeed")  # have rows of their own
TOTAL_ERROR = 0.02  # of a GPU's memory: driver and torch do not count alike
SPARE_FILES, PER_PEER = 128, 4  # descriptors of Python and its libraries; sockets to each other rank, of all groups
GENEROUS = 65536  # a limit of open files that nobody reaches
NCCL_PAIR = 10_000_000  # bytes of /dev/shm that NCCL takes for two ranks of a host whose GPUs do not reach each other
MOST_VALUES = 3  # that a row shows where ranks differ


# ---- what is said


@dataclass(frozen=True)
class Finding:
    """Something out of line, as a line for the user.

    code: "" for an error of another package, which `what` quotes in full. must: fix it before a run; otherwise a run
    works with it. kind: the error whose exit code it gives.
    """

    code: str
    where: str
    what: str
    fix: str
    must: bool = True
    kind: type[UserError] = UserError

    def __str__(self) -> str:
        if not self.code:
            return f"{self.what} ({self.where})" if self.where else self.what
        return f"{self.code} {self.where}: {self.what}. Fix: {self.fix}"


@dataclass(frozen=True)
class Row:
    """A check, and what all ranks have."""

    check: str
    shown: str
    findings: Sequence[Finding] = ()

    @property
    def mark(self) -> str:
        """! must be fixed, ~ out of line but a run works with it."""
        return "!" if any(each.must for each in self.findings) else "~" if self.findings else ""


def list_findings(rows: Iterable[Row]) -> list[Finding]:
    """Return the findings of all rows, those first that must be fixed."""
    return sorted((finding for row in rows for finding in row.findings), key=lambda finding: not finding.must)


def name_ranks(ranks: Iterable[int]) -> str:
    """Write [3] as "rank 3", [0, 1, 2, 5] as "ranks 0-2, 5"."""
    texts = spans(ranks)
    return f"rank{'' if len(texts) == 1 and '-' not in texts[0] else 's'} {', '.join(texts)}"


def ranks_of(values: Sequence[str]) -> dict[str, list[int]]:
    """Return the ranks of each value, the most frequent value first, then that of the lowest rank."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return dict(sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1][0])))


def show_values(values: Sequence[str]) -> str:
    """Write what all ranks have; where they differ, who has what."""
    ranks = ranks_of(values)
    if len(ranks) == 1:
        return values[0]
    parts = [f"{value or 'none'} ({name_ranks(own)})" for value, own in ranks.items()]
    return "; ".join(parts[:MOST_VALUES]) + (f"; {len(parts) - MOST_VALUES} more" if len(parts) > MOST_VALUES else "")


def find_differing(values: Sequence[str]) -> tuple[str, str] | None:
    """Return who has something else than most ranks, and what these have; None where all have the same."""
    (common, _), *others = ranks_of(values).items()
    differing = "; ".join(f"{value or 'none'} on {name_ranks(ranks)}" for value, ranks in others)
    return (differing, common or "none") if others else None


# ---- what a rank runs on


@dataclass(frozen=True)
class Gpu:
    """A GPU. memory, free: [bytes]; free is None where nobody looked."""

    name: str
    memory: int
    free: int | None = None
    uuid: str = ""


@dataclass(frozen=True)
class Machine:
    """What one rank runs on.

    no_device: why there is none. versions: of Python and of each requirement that is installed. nofile, memlock:
    ulimits [files, bytes], -1: unlimited. shm_free: of /dev/shm [bytes].
    """

    host: str
    local_rank: int
    device: str
    no_device: str
    gpu: Gpu | None
    versions: dict[str, str]
    nofile: int
    memlock: int
    shm_free: int
    infiniband: bool


read_machine = TypeAdapter(Machine).validate_python


@cache  # reading them takes a tenth of a second
def read_requirements() -> dict[str, str]:
    """Return this package's own requirements, those of extras included: package -> specifier."""
    required: dict[str, str] = {}
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # a checkout on the path
        lines = []
    for one in map(Requirement, lines):
        # Of an extra: where it is installed, it should be one we can use.
        if one.marker is None or one.marker.evaluate() or "extra ==" in str(one.marker):
            name = canonicalize_name(one.name)
            required[name] = ",".join(filter(None, (required.get(name), str(one.specifier))))
    required.pop(DISTRIBUTION, None)
    return required


def look_at_machine(engine: EngineConfig, packages: Iterable[str], in_full: bool = True) -> Machine:
    """Describe the machine of this rank. in_full: also what takes time, or a context on the GPU."""
    problem, gpu = "", None
    try:
        device = choose_device(engine)
    except UserError as error:
        device, problem = torch.device("cpu"), str(error)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free = torch.cuda.mem_get_info(device)[0] if in_full else None
        gpu = Gpu(properties.name, properties.total_memory, free, str(getattr(properties, "uuid", "")))
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    shm = os.statvfs(SHM) if os.path.isdir(SHM) else None
    return Machine(
        host=platform.node(),
        local_rank=dist.local_rank(),
        device=device.type,
        no_device=problem,
        gpu=gpu,
        versions=versions,
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[0],  # unlimited: -1
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        shm_free=shm.f_bavail * shm.f_frsize if shm else 0,
        infiniband=os.path.isdir(INFINIBAND) and bool(os.listdir(INFINIBAND)),
    )


def ranks_by_host(machines: Sequence[Machine]) -> dict[str, list[int]]:
    """Return the ranks of each host, in the order of their first ranks."""
    hosts = [each.host for each in machines]
    return {host: [rank for rank, each in enumerate(hosts) if each == host] for host in dict.fromkeys(hosts)}


# ---- what is out of line in it


def check_machines(machines: Sequence[Machine], required: dict[str, str], n_files: int) -> list[Row]:
    """Compare versions, devices and limits with what a run needs, and with each other. n_files: data files that it
    holds open."""
    return [*check_versions(machines, required), *check_devices(machines), *check_limits(machines, n_files)]


def is_in_range(specifier: str, present: str) -> bool:
    """Return whether a version fits a specifier, whatever its build (+cu128)."""
    try:
        return Requirement(f"x{specifier}").specifier.contains(Version(present).public, prereleases=True)
    except (InvalidRequirement, InvalidVersion):
        return False


def check_versions(machines: Sequence[Machine], required: dict[str, str]) -> list[Row]:
    """Compare versions with this package's requirements, and with each other."""
    names = list(dict.fromkeys(name for each in machines for name in each.versions))
    findings = {name: _check_version(name, machines, required.get(name, "")) for name in names}
    versions = {name: [each.versions.get(name, "none") for each in machines] for name in MAIN if name in names}
    rows = [Row(name, show_values(values), findings[name]) for name, values in versions.items()]
    of_others = [finding for name in names if name not in MAIN for finding in findings[name]]
    return [*rows, Row("other packages", str(len(set(names) - set(MAIN))), of_others)]


def _check_version(name: str, machines: Sequence[Machine], needed: str) -> list[Finding]:
    versions = [each.versions.get(name, "") for each in machines]
    if wrong := [rank for rank, present in enumerate(versions) if present and not is_in_range(needed, present)]:
        where = f"{name} {versions[wrong[0]]} on {name_ranks(wrong)}"
        return [Finding("E-DOC-03", where, f"{name}{needed} is needed", f"pip install '{name}{needed}'")]
    if (differing := find_differing(versions)) is None:
        return []
    what = f"most ranks have {differing[1]}; all ranks of a run need the same"
    return [Finding("E-DOC-04", f"{name} {differing[0]}", what, "the same environment on all hosts")]


def check_devices(machines: Sequence[Machine]) -> list[Row]:
    """Check that each rank has a GPU of its own, and that GPUs are alike and free."""
    findings = [
        Finding("", f"{name_ranks([rank])} on {each.host}", each.no_device, "")
        for rank, each in enumerate(machines)
        if each.no_device
    ]
    devices = [f"{each.gpu.name}, {each.gpu.memory / GIB:.1f} GiB" if each.gpu else each.device for each in machines]
    if (differing := find_differing(devices)) is not None:
        what = f"most ranks have {differing[1]}; each has as much to do, and all wait for the slowest"
        findings.append(Finding("E-DOC-07", differing[0], what, "hosts of one kind", must=False))
    ranks: dict[str, list[int]] = {}
    for rank, each in enumerate(machines):
        if (gpu := each.gpu) is None:
            continue
        ranks.setdefault(gpu.uuid, []).append(rank)
        if gpu.free is not None and gpu.memory - gpu.free > CUDA + TOTAL_ERROR * gpu.memory:
            where = f"{name_ranks([rank])} on {each.host}, GPU {each.local_rank}"
            what = f"{(gpu.memory - gpu.free) / GIB:.1f} of {gpu.memory / GIB:.1f} GiB are in use already"
            findings.append(Finding("E-DOC-09", where, what, "end what holds them (nvidia-smi shows it)"))
    for uuid, same in ranks.items():
        if uuid and len(same) > 1:
            what, fix = f"share one GPU ({uuid}); each needs its own", "one process per GPU, with its own LOCAL_RANK"
            findings.append(Finding("E-DOC-26", name_ranks(same), what, fix))
    return [Row("device", show_values(devices), findings)]


def check_limits(machines: Sequence[Machine], n_files: int) -> list[Row]:
    """Compare ulimits and /dev/shm with what a run needs."""
    needed = SPARE_FILES + 2 * n_files + PER_PEER * len(machines)
    of_files, of_memory, of_shm = [], [], []
    if low := [rank for rank, each in enumerate(machines) if 0 <= each.nofile < needed]:
        what = f"{machines[low[0]].nofile} open files are allowed, and {needed} needed"
        of_files.append(Finding("E-DOC-10", name_ranks(low), what, f"ulimit -n {max(needed, GENEROUS)}"))
    sending = [rank for rank, each in enumerate(machines) if each.infiniband and each.device == "cuda"]
    if locked := [rank for rank in sending if machines[rank].memlock != UNLIMITED]:
        what = f"{n_bytes(machines[locked[0]].memlock)} may be locked in memory, and InfiniBand locks what it sends"
        fix = "ulimit -l unlimited (of Slurm's jobs: LimitMEMLOCK=infinity in the unit of slurmd)"
        of_memory.append(Finding("E-DOC-11", name_ranks(locked), what, fix))
    for host, ranks in ranks_by_host(machines).items():  # NCCL uses it where GPUs of a host do not reach each other
        first, pairs = machines[ranks[0]], len(ranks) * (len(ranks) - 1)
        if first.device == "cuda" and first.shm_free < NCCL_PAIR * pairs:
            what = f"{n_bytes(first.shm_free)} free, NCCL may need {n_bytes(NCCL_PAIR * pairs)} for {len(ranks)} ranks"
            fix = "a larger one (of a container: --shm-size=8g, or --ipc=host)"
            of_shm.append(Finding("E-DOC-12", f"{SHM} of {host}", what, fix))
    files = ["unlimited" if each.nofile == UNLIMITED else str(each.nofile) for each in machines]
    memory = ["unlimited" if each.memlock == UNLIMITED else n_bytes(each.memlock) for each in machines]
    return [
        Row("ulimit nofile", show_values(files), of_files),
        Row("ulimit memlock", show_values(memory), of_memory),
        Row(f"{SHM} free", f"{n_bytes(min(each.shm_free for each in machines))} or more", of_shm),
    ]


# ---- the first lines of a training


def log_machines(config: Config) -> None:
    """COLLECTIVE. Log hosts, devices and versions of all ranks, and the first thing that is out of line, on rank 0."""
    # Only these: to look for all packages takes a second on a network folder.
    required = {name: specifier for name, specifier in read_requirements().items() if name in MAIN}
    gathered = dist.all_gather_object(asdict(look_at_machine(config.engine, required, in_full=False)))
    if dist.is_main():
        machines = [read_machine(each) for each in gathered]
        for line in summarize(machines, required, 2 * len(config.data.sources)):
            dist.log(f"doctor    {line}")


def summarize(machines: Sequence[Machine], required: dict[str, str], n_files: int) -> list[str]:
    """Return one line on all machines, and a second one where something is out of line."""
    first, hosts = machines[0], Counter(each.host for each in machines)
    shown = [f"{host} x {n}" for host, n in list(hosts.items())[:4]] + (["…"] if len(hosts) > 4 else [])
    devices = Counter(each.gpu.name if each.gpu else each.device for each in machines)
    versions = ", ".join(f"{name} {first.versions[name]}" for name in MAIN if name in first.versions)
    alike = "on all ranks" if all(each.versions == first.versions for each in machines) else "on rank 0, NOT ON ALL"
    line = (
        f"{len(hosts)} host{'s' * (len(hosts) > 1)} ({', '.join(shown)}), "
        f"{', '.join(f'{n} x {name}' for name, n in devices.items())}; {versions} {alike}"
    )
    findings = list_findings(check_machines(machines, required, n_files))
    more = f" ({len(findings) - 1} more: python -m coca_train doctor, started as this was)" if len(findings) > 1 else ""
    return [line, *([f"OUT OF LINE: {findings[0]}{more}"] if findings else [])]
