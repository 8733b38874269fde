"""What is out of line of what ranks know of their machines: pure functions over the facts of all ranks."""

from collections.abc import Callable, Sequence

from coca_train.doctor.facts import SHM, UNLIMITED, Facts, Pins, fits, same_version
from coca_train.doctor.finding import Finding, Quoted, Row, differing, ranks_in_words
from coca_train.planning.memory import CUDA, GIB
from coca_train.runtime.printing import n_bytes

MAIN = ("python", "torch", "deepspeed")  # have rows of their own
TOTAL_ERROR = 0.02  # of a GPU's memory: driver and torch do not count alike
SPARE_FILES, PER_PEER = 128, 4  # descriptors of Python and its libraries; sockets to each other rank, of all groups
GENEROUS = 65536  # a limit of open files that nobody reaches
NCCL_PAIR = 10_000_000  # [bytes] of /dev/shm that NCCL takes for two ranks of a host that do not reach each other's GPU
LONGEST = 60  # variables that are shown in the row itself


def hosts(facts: Sequence[Facts]) -> Row:
    """Where each rank is."""
    return Row("host", [each.host for each in facts])


def launch(problems: Sequence[str]) -> Row:
    """The configuration against this launch: its own errors. problems: by rank."""
    own = [Quoted("", "", text, "") for text in dict.fromkeys(filter(None, problems))]
    return Row("configuration", ["wrong" if problem else "fits this launch" for problem in problems], own)


def versions(facts: Sequence[Facts], pins: Pins) -> list[Row]:
    """Against this package's requirements, against each other, against what it was tested with."""
    names = list(dict.fromkeys(name for each in facts for name in each.versions))
    rows = [
        Row(name, [each.versions.get(name, "none") for each in facts], _of_package(name, facts, pins))
        for name in MAIN
        if name in names
    ]
    of_others = [finding for name in names if name not in MAIN for finding in _of_package(name, facts, pins)]
    for name in sorted(pins.always - set(names)):
        of_others.append(
            Finding("E-DOC-03", name, f"not installed; {name}{pins.required[name]} is needed", f"pip install {name}")
        )
    others = [[name for name in each.versions if name not in MAIN] for each in facts]
    n_off = [sum(_is_off(name, each, pins) for name in own) for own, each in zip(others, facts, strict=True)]
    cells = [f"{len(own)}, {off} not as pinned" for own, off in zip(others, n_off, strict=True)]
    return [*rows, Row("other packages", cells, of_others)]


def _is_off(name: str, facts: Facts, pins: Pins) -> bool:
    present, tested = facts.versions[name], pins.tested.get(name)
    return not fits(pins.required.get(name, ""), present) or (tested is not None and not same_version(present, tested))


def _of_package(name: str, facts: Sequence[Facts], pins: Pins) -> list[Finding]:
    values = [each.versions.get(name, "") for each in facts]
    needed, tested = pins.required.get(name, ""), pins.tested.get(name, "")
    fix = f"pip install {name}=={tested}" if tested else f"pip install '{name}{needed}'"
    if wrong := [rank for rank, value in enumerate(values) if value and not fits(needed, value)]:
        where = f"{name} {values[wrong[0]]} on {ranks_in_words(wrong)}"
        return [Finding("E-DOC-03", where, f"{name}{needed} is needed", fix)]
    if unequal := differing(
        values,
        lambda others, common: Finding(
            "E-DOC-04",
            f"{name} {others}",
            f"most ranks have {common or 'none'}; those of one run need the same",
            "the same environment on all hosts",
        ),
    ):
        return unequal
    other = [rank for rank, value in enumerate(values) if value and tested and not same_version(value, tested)]
    if not other or name not in pins.required:  # what they require in turn is in the row, as a number
        return []
    where = f"{name} {values[other[0]]} on {ranks_in_words(other)}"
    return [Finding("E-DOC-05", where, f"constraints.txt, which is tested, has {tested}", fix, must=False)]


def devices(facts: Sequence[Facts]) -> list[Row]:
    """GPUs: one for each rank, alike, sound, and free."""
    cells = [f"{each.gpu.name}, {each.gpu.memory / GIB:.1f} GiB" if each.gpu else each.device for each in facts]
    findings = [
        Quoted("", f"{ranks_in_words([rank])} on {each.host}", each.no_device, "")
        for rank, each in enumerate(facts)
        if each.no_device
    ]
    findings += differing(
        cells,
        lambda others, common: Finding(
            "E-DOC-07",
            others,
            f"most ranks have {common}; each has as much to do, and all wait for the slowest",
            "hosts of one kind",
            must=False,
        ),
    )
    rows = [Row("device", cells, findings)]
    if not any(each.gpu for each in facts):
        return rows
    drivers = [each.gpu.driver if each.gpu else "" for each in facts]
    unequal = differing(
        drivers,
        lambda others, common: Finding(
            "E-DOC-04",
            f"driver {others}",
            f"most ranks have {common or 'none'}; those of one run need the same",
            "the same driver on all hosts",
            must=False,
        ),
    )
    state = [_gpu_state(each) for each in facts]
    peers = [f"{each.gpu.reaches} of {each.gpu.others}" if each.gpu else "-" for each in facts]
    few = differing(
        peers,
        lambda others, common: Finding(
            "E-DOC-28",
            others,
            f"GPUs reached directly; most ranks reach {common}, and what goes between others passes the host's memory",
            "the same links and BIOS settings (ACS, IOMMU) on all hosts; nvidia-smi topo -p2p r shows them",
            must=False,
        ),
    )
    rows += [Row("driver", drivers, unequal), Row("ECC, MIG, free", state, _of_gpus(facts))]
    return [*rows, Row("GPUs in reach", peers, few)]


def _of_gpus(facts: Sequence[Facts]) -> list[Finding]:
    findings = []
    gpus = {rank: each.gpu for rank, each in enumerate(facts) if each.gpu}
    for uuid in dict.fromkeys(gpu.uuid for gpu in gpus.values() if gpu.uuid):
        if len(same := [rank for rank, gpu in gpus.items() if gpu.uuid == uuid]) > 1:
            fix = "one process per GPU, each with its own LOCAL_RANK"
            findings.append(
                Finding("E-DOC-26", ranks_in_words(same), f"are on one GPU ({uuid}); each needs its own", fix)
            )
    for rank, gpu in gpus.items():
        where = f"{ranks_in_words([rank])} on {facts[rank].host}, GPU {facts[rank].local_rank}"
        if gpu.ecc_errors:
            what = f"{gpu.ecc_errors} uncorrected memory errors since its driver was loaded"
            findings.append(Finding("E-DOC-08", where, what, "leave the host out, and have the GPU reset or replaced"))
        if gpu.free is not None and gpu.memory - gpu.free > CUDA + TOTAL_ERROR * gpu.memory:
            what = f"{(gpu.memory - gpu.free) / GIB:.1f} of {gpu.memory / GIB:.1f} GiB are taken already"
            findings.append(Finding("E-DOC-09", where, what, "end what holds them (nvidia-smi shows it)"))
    return findings


def _gpu_state(facts: Facts) -> str:
    gpu = facts.gpu
    if gpu is None:
        return "-"
    errors = "" if gpu.ecc_errors is None else f" ({gpu.ecc_errors} errors)"
    free = "?" if gpu.free is None else f"{gpu.free / GIB:.1f} GiB"
    return f"{gpu.ecc or '?'}{errors}, {gpu.mig or '?'}, {free}"


def threads(facts: Sequence[Facts]) -> Row:
    """Whether the ranks of a host have more threads than it has cores."""
    findings = []
    for host in dict.fromkeys(each.host for each in facts):
        own = [rank for rank, each in enumerate(facts) if each.host == host]
        n_threads, cpus = sum(facts[rank].threads for rank in own), facts[own[0]].cpus
        if n_threads > cpus:
            most = cpus // len(own)
            fix = f"OMP_NUM_THREADS={most}" if most else f"at most {cpus} ranks on this host"
            what = f"{n_threads} threads share {cpus} cores"
            findings.append(Finding("E-DOC-22", f"{host}, {ranks_in_words(own)}", what, fix, must=False))
    return Row("threads, cores", [f"{each.threads}, {each.cores}" for each in facts], findings)


def compilers(facts: Sequence[Facts], compiles_blocks: bool) -> Row:
    """What kernels are compiled with, where there are any: on GPUs (loss, FlexAttention), and in compiled blocks."""
    without: dict[tuple[str, str], list[int]] = {}
    for rank, each in enumerate(facts):
        if each.no_compiler[0] and (each.device == "cuda" or compiles_blocks):
            without.setdefault(each.no_compiler, []).append(rank)
    findings = [
        Finding("E-DOC-29", ranks_in_words(ranks), f"{what}; a run works without, slower", fix, must=False)
        for (what, fix), ranks in without.items()
    ]
    return Row("compiler", ["none" if each.no_compiler[0] else "there" for each in facts], findings)


def limits(facts: Sequence[Facts], n_files: int) -> list[Row]:
    """ulimits, against what a run of these ranks needs. n_files: data files that it holds open."""
    needed = SPARE_FILES + 2 * n_files + PER_PEER * len(facts)
    of_files, of_memory = [], []
    if low := [rank for rank, each in enumerate(facts) if 0 <= each.limits["nofile"] < needed]:
        may = facts[low[0]].limits["nofile"]
        what = f"{may} open files are allowed, and {needed} needed: {n_files} of the data, {len(facts)} ranks"
        of_files.append(Finding("E-DOC-10", ranks_in_words(low), what, f"ulimit -n {max(needed, GENEROUS)}"))
    sending = [rank for rank, each in enumerate(facts) if each.infiniband and each.device == "cuda"]
    if locked := [rank for rank in sending if facts[rank].limits["memlock"] != UNLIMITED]:
        may = n_bytes(facts[locked[0]].limits["memlock"])
        what = f"{may} may be locked in memory, and InfiniBand locks what it sends"
        fix = "ulimit -l unlimited (of Slurm's jobs: LimitMEMLOCK=infinity in the unit of slurmd)"
        of_memory.append(Finding("E-DOC-11", ranks_in_words(locked), what, fix))
    return [
        Row("ulimit nofile", [_amount(each.limits["nofile"], str) for each in facts], of_files),
        Row("ulimit memlock", [_amount(each.limits["memlock"], n_bytes) for each in facts], of_memory),
        Row("ulimit core", [_amount(each.limits["core"], n_bytes) for each in facts]),
    ]


def _amount(value: int, words: Callable[[int], str]) -> str:
    return "unlimited" if value == UNLIMITED else words(value)


def shared_memory(facts: Sequence[Facts]) -> Row:
    """NCCL goes through it where GPUs of a host do not reach each other; on CPUs a run uses none of it."""
    findings = []
    for host in dict.fromkeys(each.host for each in facts):
        own = [rank for rank, each in enumerate(facts) if each.host == host]
        needed = NCCL_PAIR * len(own) * (len(own) - 1) if facts[own[0]].device == "cuda" else 0
        if (free := facts[own[0]].shm[1]) < needed:
            what = f"{SHM} has {n_bytes(free)} free, NCCL may need {n_bytes(needed)} for {len(own)} ranks"
            fix = "a larger one (of a container: --shm-size=8g, or --ipc=host)"
            findings.append(Finding("E-DOC-12", host, what, fix))
    cells = [f"{n_bytes(free)} of {n_bytes(size)}" for size, free in (each.shm for each in facts)]
    sizes = [n_bytes(each.shm[0]) for each in facts]
    least = min(each.shm[1] for each in facts)
    return Row(f"{SHM} free", cells, findings, f"{n_bytes(least)} of {sizes[0]}" if len(set(sizes)) == 1 else "")


def environment(facts: Sequence[Facts]) -> Row:
    """What says how libraries talk must be the same on all ranks."""
    names = sorted({name for each in facts for name in each.environment})
    findings = []
    for name in names:
        findings += differing(
            [each.environment.get(name, "") for each in facts],
            lambda others, common, name=name: Finding(
                "E-DOC-13",
                f"environment {name}",
                f"{others}; most ranks have {common or 'none'}",
                f"export {name}={common} for all ranks" if common else f"unset {name}",
                must=False,
            ),
        )
    address = facts[0].environment.get("MASTER_ADDR", "")
    if len({each.host for each in facts}) > 1 and (address == "localhost" or address.startswith("127.")):
        what = "is another machine on each host"
        findings.append(Finding("E-DOC-27", f"environment MASTER_ADDR={address}", what, f"MASTER_ADDR={facts[0].host}"))
    words = ", ".join(f"{name}={value}" for name, value in facts[0].environment.items())
    same = all(each.environment == facts[0].environment for each in facts)
    cells = [f"{len(each.environment)} variables" for each in facts]
    return Row("environment", cells, findings, words if same and len(words) <= LONGEST else "")
