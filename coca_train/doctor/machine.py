"""What each rank knows of its machine without measuring, and what is out of line in it, compared over all ranks."""

import os
import platform
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

import torch
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter

from coca_train.config.schema import Config, EngineConfig
from coca_train.doctor.table import Finding, Row, find_differing, list_findings, name_ranks
from coca_train.engine.process import choose_device
from coca_train.planning.hardware import GIB
from coca_train.planning.memory import CUDA
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.runtime.machine import missing_compiler
from coca_train.runtime.printing import n_bytes

DISTRIBUTION = "coca-train"
SHM = "/dev/shm"  # noqa: S108 (its size is looked at)
UNLIMITED = -1
MAIN = ("python", "torch", "deepspeed")  # have rows of their own
TOTAL_ERROR = 0.02  # of a GPU's memory: driver and torch do not count alike
SPARE_FILES, PER_PEER = 128, 4  # descriptors of Python and its libraries; sockets to each other rank, of all groups
GENEROUS = 65536  # a limit of open files that nobody reaches
NCCL_PAIR = 10_000_000  # bytes of /dev/shm that NCCL takes for two ranks of a host whose GPUs do not reach each other


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
    ulimits [files, bytes], -1: unlimited. shm_free: of /dev/shm [bytes]. no_compiler: what compiling kernels lacks,
    and what installs it; ("", ""): nothing.
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
    no_compiler: tuple[str, str] = ("", "")


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


def look_at_machine(engine: EngineConfig, packages: Sequence[str], in_full: bool = True) -> Machine:
    """Describe the machine of this rank. in_full: also what takes time, or a context on the GPU."""
    problem = ""
    try:
        device = choose_device(engine)
    except UserError as error:
        device, problem = torch.device("cpu"), str(error)
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    shm = os.statvfs(SHM) if os.path.isdir(SHM) else None
    adapters = "/sys/class/infiniband"
    return Machine(
        host=platform.node(),
        local_rank=dist.local_rank(),
        device=device.type,
        no_device=problem,
        gpu=look_at_gpu(device, in_full) if device.type == "cuda" else None,
        versions=versions,
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[0],  # unlimited: -1
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        shm_free=shm.f_bavail * shm.f_frsize if shm else 0,
        infiniband=os.path.isdir(adapters) and bool(os.listdir(adapters)),
        no_compiler=missing_compiler(device.type) or ("", ""),
    )


def look_at_gpu(device: torch.device, in_full: bool) -> Gpu:
    """Describe a GPU."""
    properties = torch.cuda.get_device_properties(device)
    free = torch.cuda.mem_get_info(device)[0] if in_full else None
    return Gpu(properties.name, properties.total_memory, free, str(getattr(properties, "uuid", "")))


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
    rows = [Row(n, [each.versions.get(n, "none") for each in machines], findings[n]) for n in MAIN if n in names]
    of_others = [finding for name in names if name not in MAIN for finding in findings[name]]
    return [*rows, Row("other packages", [str(len(set(each.versions) - set(MAIN))) for each in machines], of_others)]


def _check_version(name: str, machines: Sequence[Machine], needed: str) -> list[Finding]:
    versions = [each.versions.get(name, "") for each in machines]
    if wrong := [rank for rank, present in enumerate(versions) if present and not is_in_range(needed, present)]:
        where = f"{name} {versions[wrong[0]]} on {name_ranks(wrong)}"
        return [Finding("E-DOC-03", where, f"{name}{needed} is needed", f"pip install '{name}{needed}'")]

    def differs(others: str, common: str) -> Finding:
        what = f"most ranks have {common}; all ranks of a run need the same"
        return Finding("E-DOC-04", f"{name} {others}", what, "the same environment on all hosts")

    return find_differing(versions, differs)


def check_devices(machines: Sequence[Machine]) -> list[Row]:
    """Check that each rank has a GPU of its own, and that GPUs are alike, sound and free."""
    findings = [
        Finding("", f"{name_ranks([rank])} on {each.host}", each.no_device, "")
        for rank, each in enumerate(machines)
        if each.no_device
    ]
    cells = [f"{each.gpu.name}, {each.gpu.memory / GIB:.1f} GiB" if each.gpu else each.device for each in machines]

    def device_differs(others: str, common: str) -> Finding:
        what = f"most ranks have {common}; each has as much to do, and all wait for the slowest"
        return Finding("E-DOC-07", others, what, "hosts of one kind", must=False)

    rows = [Row("device", cells, [*findings, *find_differing(cells, device_differs)])]
    gpus = {rank: each.gpu for rank, each in enumerate(machines) if each.gpu}
    if not gpus:
        return rows
    free = [f"{each.gpu.free / GIB:.1f} GiB" if each.gpu and each.gpu.free else "?" for each in machines]
    return [*rows, Row("GPU memory free", free, _check_gpus(machines, gpus))]


def _check_gpus(machines: Sequence[Machine], gpus: dict[int, Gpu]) -> list[Finding]:
    findings = []
    for uuid in dict.fromkeys(gpu.uuid for gpu in gpus.values() if gpu.uuid):
        if len(same := [rank for rank, gpu in gpus.items() if gpu.uuid == uuid]) > 1:
            what, fix = (
                f"share one GPU ({uuid}); each needs its own",
                "one process per GPU, each with its own LOCAL_RANK",
            )
            findings.append(Finding("E-DOC-26", name_ranks(same), what, fix))
    for rank, gpu in gpus.items():
        where = f"{name_ranks([rank])} on {machines[rank].host}, GPU {machines[rank].local_rank}"
        if gpu.free is not None and gpu.memory - gpu.free > CUDA + TOTAL_ERROR * gpu.memory:
            what = f"{(gpu.memory - gpu.free) / GIB:.1f} of {gpu.memory / GIB:.1f} GiB are in use already"
            findings.append(Finding("E-DOC-09", where, what, "end what holds them (nvidia-smi shows it)"))
    return findings


def check_compilers(machines: Sequence[Machine], compiles_blocks: bool) -> Row:
    """Check what compiles kernels, where there are any: on GPUs (loss, FlexAttention), and in compiled blocks."""
    without: dict[tuple[str, str], list[int]] = {}
    for rank, each in enumerate(machines):
        if each.no_compiler[0] and (each.device == "cuda" or compiles_blocks):
            without.setdefault(each.no_compiler, []).append(rank)
    findings = [
        Finding("E-DOC-29", name_ranks(ranks), f"{what}; a run works without, slower", fix, must=False)
        for (what, fix), ranks in without.items()
    ]
    return Row("compiler", ["none" if each.no_compiler[0] else "there" for each in machines], findings)


def check_limits(machines: Sequence[Machine], n_files: int) -> list[Row]:
    """Compare ulimits and /dev/shm with what a run needs. n_files: data files that it holds open."""
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
    shm_free = [each.shm_free for each in machines]
    return [
        Row("ulimit nofile", files, of_files),
        Row("ulimit memlock", memory, of_memory),
        Row(f"{SHM} free", [n_bytes(each) for each in shm_free], of_shm, f"{n_bytes(min(shm_free))} or more"),
    ]


def ranks_by_host(machines: Sequence[Machine]) -> dict[str, list[int]]:
    """Return the ranks of each host."""
    ranks: dict[str, list[int]] = {}
    for rank, each in enumerate(machines):
        ranks.setdefault(each.host, []).append(rank)
    return ranks


def log_machines(config: Config) -> None:
    """COLLECTIVE. Log hosts, devices and versions of all ranks, and the first thing that is out of line, on rank 0."""
    # Only these: to look for all packages takes a second on a network folder.
    required = {name: specifier for name, specifier in read_requirements().items() if name in MAIN}
    gathered = dist.all_gather_object(asdict(look_at_machine(config.engine, list(required), in_full=False)))
    if dist.is_main():
        machines, compiles_blocks = [read_machine(each) for each in gathered], config.engine.compile == "blocks"
        for line in summarize(machines, required, 2 * len(config.data.sources), compiles_blocks):
            dist.log(f"doctor    {line}")


def summarize(
    machines: Sequence[Machine], required: dict[str, str], n_files: int, compiles_blocks: bool = False
) -> list[str]:
    """Return one line on all machines, and a second one where something is out of line."""
    rows = [*check_versions(machines, required), *check_devices(machines), *check_limits(machines, n_files)]
    first = machines[0]
    if not first.no_compiler[0]:  # which rank 0 says itself (runtime/machine.py); the others are silent
        rows.append(check_compilers(machines, compiles_blocks))
    hosts = Counter(each.host for each in machines)
    shown = [f"{host} x {n}" for host, n in list(hosts.items())[:4]] + (["…"] if len(hosts) > 4 else [])
    devices = Counter(each.gpu.name if each.gpu else each.device for each in machines)
    versions = ", ".join(f"{name} {first.versions[name]}" for name in MAIN if name in first.versions)
    alike = "on all ranks" if all(each.versions == first.versions for each in machines) else "on rank 0, NOT ON ALL"
    line = (
        f"{len(hosts)} host{'s' * (len(hosts) > 1)} ({', '.join(shown)}), "
        f"{', '.join(f'{n} x {name}' for name, n in devices.items())}; {versions} {alike}"
    )
    findings = list_findings(rows)
    more = f" ({len(findings) - 1} more: python -m coca_train doctor, started as this was)" if len(findings) > 1 else ""
    return [line, *([f"OUT OF LINE: {findings[0]}{more}"] if findings else [])]
