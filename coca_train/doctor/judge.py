"""What is out of line, by the values of all ranks: pure functions, each a row of the table."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coca_train.doctor.disk import DiskState
from coca_train.doctor.facts import UNLIMITED, Facts, Pins, fits, same_version
from coca_train.doctor.files import DataState
from coca_train.doctor.network import bus_bandwidth
from coca_train.doctor.rates import Offset, Slow, ends_of, slow_links, slow_ranks
from coca_train.doctor.roll import in_words
from coca_train.planning.storage import Storage
from coca_train.runtime.errors import DataError, StorageError, UserError
from coca_train.runtime.printing import n_bytes

# A rank is slow where it is slower than the median of its peers by more than this, beyond the noise, twice in a row.
# Disks and links serve several ranks at once, and not evenly: they may differ more.
COMPUTE_FACTOR, LINK_FACTOR, DISK_FACTOR = 1.3, 2.0, 2.0
GIB = 2**30
OF_CONTEXT = 1.5 * GIB  # what CUDA's libraries take of a GPU before the first tensor (planning/memory.py)
SPARE_FILES, PER_PEER = 128, 4  # descriptors of Python and its libraries; sockets to each other rank, of all groups
NCCL_PAIR = 10_000_000  # [bytes] of /dev/shm that NCCL takes for two ranks of a host that do not reach each other's GPU
# Slurm's script (docs/operations.md) takes ends of ranks within 5 s for one moment, by the clocks of their hosts.
CLOCK_S = 2.5
CHANGED_S = 120.0  # a network folder's times may be remembered by a host for a minute


@dataclass(frozen=True)
class Finding:
    """A line for the user. must: it is to be mended before a run; else a run works with it. kind: for the exit code."""

    text: str
    must: bool = True
    kind: type[UserError] = UserError


@dataclass(frozen=True)
class Row:
    """A check. cells: by rank. summary: of all; "": from the cells."""

    check: str
    cells: Sequence[str]
    findings: Sequence[Finding] = ()
    summary: str = ""

    @property
    def mark(self) -> str:
        """! must be mended, ~ out of line but a run works with it."""
        return "!" if any(each.must for each in self.findings) else "~" if self.findings else ""


def ranks_in_words(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {in_words(numbers)}"


def unlike(values: Sequence[str]) -> dict[str, list[int]]:
    """Ranks by value, the most frequent first; what the lowest rank has where two are as frequent."""
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    return dict(sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1][0])))


def _differing(values: Sequence[str], told: Callable[[str, str], Finding]) -> list[Finding]:
    """One finding where ranks differ: told(those that differ, what most have)."""
    (common, _), *others = unlike(values).items()
    if not others:
        return []
    return [told("; ".join(f"{ranks_in_words(ranks)} {value or 'none'}" for value, ranks in others), common or "none")]


def hosts(facts: Sequence[Facts]) -> Row:
    return Row("host", [each.host for each in facts])


def versions(facts: Sequence[Facts], pins: Pins) -> list[Row]:
    """Against this package's requirements, against each other, against what it was tested with."""
    names = dict.fromkeys(name for each in facts for name in each.versions)
    main = [name for name in ("python", "torch", "deepspeed") if name in names]
    rows = [Row(name, [each.versions.get(name, "") for each in facts], _version(name, facts, pins)) for name in main]
    findings = [finding for name in names if name not in main for finding in _version(name, facts, pins)]
    missing = sorted(pins.always - names.keys())
    findings += [
        Finding(f"E-DOC-03 {name}: it is not installed; {name}{pins.required[name]} is needed. Fix: pip install {name}")
        for name in missing
    ]
    n_off = [sum(_is_off(name, each, pins) for name in names) for each in facts]
    cells = [f"{len(each.versions) - len(main)}, {off} off" for each, off in zip(facts, n_off, strict=True)]
    return [*rows, Row("packages", cells, findings)]


def _is_off(name: str, facts: Facts, pins: Pins) -> bool:
    present, tested = facts.versions.get(name), pins.tested.get(name)
    if present is None:
        return False
    out = name in pins.required and not fits(pins.required[name], present)
    return out or (bool(tested) and not same_version(present, tested or ""))


def _version(name: str, facts: Sequence[Facts], pins: Pins) -> list[Finding]:
    values = [each.versions.get(name, "") for each in facts]
    needed, tested = pins.required.get(name, ""), pins.tested.get(name, "")
    fix = f"pip install {name}=={tested}" if tested else f"pip install '{name}{needed}'"
    if wrong := [rank for rank, value in enumerate(values) if value and needed and not fits(needed, value)]:
        shown = values[wrong[0]]
        return [Finding(f"E-DOC-03 {name} {shown} on {ranks_in_words(wrong)}: {name}{needed} is needed. Fix: {fix}")]
    findings = _differing(
        values,
        lambda others, common: Finding(
            f"E-DOC-04 {name} {others}: most have {common}; ranks of one run need the same versions. "
            f"Fix: the same environment on all hosts{f' ({fix})' if tested else ''}"
        ),
    )
    other = [rank for rank, value in enumerate(values) if value and tested and not same_version(value, tested)]
    if other and not findings:
        text = f"E-DOC-05 {name} {values[other[0]]} on {ranks_in_words(other)}: constraints.txt, which the tests run with, has {tested}"
        findings = [Finding(f"{text}. Fix: {fix}, or leave it, untested", must=False)]
    return findings


def devices(facts: Sequence[Facts]) -> list[Row]:
    """GPUs: one for each rank, alike, sound, and free."""
    cells = [f"{each.gpu.name}, {each.gpu.memory / GIB:.1f} GiB" if each.gpu else each.device for each in facts]
    findings = [
        Finding(f"E-DOC-07 {ranks_in_words([rank])}: no device ({each.no_device})")
        for rank, each in enumerate(facts)
        if each.no_device
    ]
    findings += _differing(
        cells,
        lambda others, common: Finding(
            f"E-DOC-07 {others}: most have {common}; ZeRO gives each rank as much, and all wait for the slowest. "
            "Fix: hosts of one kind",
            must=False,
        ),
    )
    rows = [Row("device", cells, findings)]
    gpus = {rank: each.gpu for rank, each in enumerate(facts) if each.gpu}
    if not gpus:
        return rows
    findings = []
    for uuid in dict.fromkeys(gpu.uuid for gpu in gpus.values() if gpu.uuid):
        if len(same := [rank for rank, gpu in gpus.items() if gpu.uuid == uuid]) > 1:
            text = f"E-DOC-07 {ranks_in_words(same)}: are on one GPU ({uuid}); each needs its own"
            findings.append(Finding(f"{text}. Fix: set LOCAL_RANK, or start one process per GPU"))
    for rank, gpu in gpus.items():
        where = f"{ranks_in_words([rank])} on {facts[rank].host}, GPU {facts[rank].local_rank}"
        if gpu.ecc_errors:
            text = f"E-DOC-08 {where}: {gpu.ecc_errors} uncorrected memory errors since its driver was loaded"
            findings.append(Finding(f"{text}. Fix: take the GPU out (nvidia-smi -q -d ECC), or have it reset"))
        if gpu.free is not None and (by_others := gpu.memory - gpu.free) > OF_CONTEXT + 0.02 * gpu.memory:
            text = f"E-DOC-09 {where}: {by_others / GIB:.1f} of {gpu.memory / GIB:.1f} GiB are taken already"
            findings.append(Finding(f"{text}. Fix: end what holds them (nvidia-smi shows it)"))
    state = ["" if each.gpu is None else _gpu_state(each) for each in facts]
    drivers = [each.gpu.driver if each.gpu else "" for each in facts]
    differing = _differing(
        drivers,
        lambda others, common: Finding(
            f"E-DOC-04 driver {others}: most have {common}; ranks of one run need the same versions. "
            "Fix: the same driver on all hosts",
            must=False,
        ),
    )
    return [*rows, Row("driver", drivers, differing), Row("ECC, MIG, free", state, findings)]


def _gpu_state(facts: Facts) -> str:
    gpu = facts.gpu
    assert gpu is not None
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
            text = f"E-DOC-22 {host}, {ranks_in_words(own)}: {n_threads} threads compute on {cpus} cores, and wait for each other"
            findings.append(Finding(f"{text}. Fix: OMP_NUM_THREADS={max(1, cpus // len(own))}", must=False))
    return Row("threads / cores", [f"{each.threads} / {each.cores}" for each in facts], findings)


def limits(facts: Sequence[Facts], n_files: int) -> list[Row]:
    """ulimits, against what a run of these ranks needs. n_files: data files that it holds open."""
    needed = SPARE_FILES + 2 * n_files + PER_PEER * len(facts)
    low = [rank for rank, each in enumerate(facts) if 0 <= each.limits["nofile"] < needed]
    findings = [
        Finding(f"E-DOC-10 {ranks_in_words(low)}: {facts[low[0]].limits['nofile']} open files are allowed, {needed} are "
                f"needed ({n_files} of the data, {len(facts)} ranks). Fix: ulimit -n {max(needed, 65536)}")
    ] if low else []  # fmt: skip
    pinned = [rank for rank, each in enumerate(facts) if each.infiniband and each.device == "cuda"]
    locked = [rank for rank in pinned if facts[rank].limits["memlock"] != UNLIMITED]
    of_memlock = [
        Finding(f"E-DOC-11 {ranks_in_words(locked)}: {n_bytes(facts[locked[0]].limits['memlock'])} may be locked in memory; "
                "InfiniBand locks what it sends. Fix: ulimit -l unlimited (in the unit of slurmd: LimitMEMLOCK=infinity)")
    ] if locked else []  # fmt: skip
    return [
        Row("ulimit nofile", [_amount(each.limits["nofile"], str) for each in facts], findings),
        Row("ulimit memlock", [_amount(each.limits["memlock"], n_bytes) for each in facts], of_memlock),
        Row("ulimit core", [_amount(each.limits["core"], n_bytes) for each in facts]),
    ]


def _amount(value: int, words: Callable[[int], str]) -> str:
    return "unlimited" if value == UNLIMITED else words(value)


def shared_memory(facts: Sequence[Facts]) -> Row:
    """/dev/shm: NCCL goes through it where GPUs of a host do not reach each other; on CPUs a run uses none of it."""
    findings = []
    for host in dict.fromkeys(each.host for each in facts):
        own = [rank for rank, each in enumerate(facts) if each.host == host]
        needed = NCCL_PAIR * len(own) * (len(own) - 1) if facts[own[0]].device == "cuda" else 0
        if (free := facts[own[0]].shm[1]) < needed:
            text = f"E-DOC-12 {host}: /dev/shm has {n_bytes(free)} free, NCCL may need {n_bytes(needed)} for {len(own)} ranks"
            findings.append(Finding(f"{text}. Fix: a larger one (of a container: --shm-size=8g, or --ipc=host)"))
    cells = [f"{n_bytes(free)} of {n_bytes(size)}" for size, free in (each.shm for each in facts)]
    return Row("/dev/shm free", cells, findings)


def environment(facts: Sequence[Facts]) -> Row:
    """What tells libraries how to talk must be the same on all ranks."""
    names = sorted({name for each in facts for name in each.environment})
    findings = []
    for name in names:
        findings += _differing(
            [each.environment.get(name, "") for each in facts],
            lambda others, common, name=name: Finding(
                f"E-DOC-13 environment {name}: {others}; most have {common}. Fix: export {name}={common} for all ranks",
                must=False,
            ),
        )
    several = len({each.host for each in facts}) > 1
    address = facts[0].environment.get("MASTER_ADDR", "")
    if several and (address == "localhost" or address.startswith("127.")):
        text = f"E-DOC-13 environment MASTER_ADDR={address}: names another machine on each host"
        findings.append(Finding(f"{text}. Fix: MASTER_ADDR={facts[0].host}"))
    shown = [", ".join(f"{name}={value}" for name, value in each.environment.items()) for each in facts]
    same = len(set(shown)) == 1
    cells = [f"{len(each.environment)} variables" for each in facts]
    return Row("environment", cells, findings, shown[0] if same and len(shown[0]) <= 60 else "")


def launch(problems: Sequence[str]) -> Row:
    """The configuration against this launch: its own errors. problems: by rank."""
    own = [Finding(text) for text in dict.fromkeys(filter(None, problems))]
    return Row("configuration", ["wrong" if problem else "fits" for problem in problems], own)


def data(states: Mapping[int, DataState], facts: Sequence[Facts]) -> Row:
    """On each host. states: of the rank of each that looked."""
    findings = [
        Finding(f"{state.problem} (on {facts[rank].host}, rank {rank})", kind=DataError)
        for rank, state in states.items()
        if state.problem
    ]
    ranks = [rank for rank, state in states.items() if state.digest]
    (common, _), *others = unlike([states[rank].digest for rank in ranks]).items() if ranks else [("", [])]
    for digest, places in others:
        where = ", ".join(f"{facts[ranks[place]].host} (rank {ranks[place]})" for place in places)
        text = f"E-DOC-14 data on {where}: other files than on most hosts (fingerprint {digest}, not {common})"
        findings.append(Finding(f"{text}. Fix: copy them again, or read one shared folder", kind=DataError))
    cells = [_data_cell(states[rank]) if rank in states else "as its host" for rank in range(len(facts))]
    return Row("data", cells, findings, summary=_data_cell(next(iter(states.values()))) if len(states) == 1 else "")


def _data_cell(state: DataState) -> str:
    if state.problem:
        return "wrong"
    if state.to_come:
        return "made at the first start"
    share = f"{state.checked} of {state.blocks} blocks" if state.blocks else "no sums"
    return f"{state.n_files} files, {n_bytes(state.size)}, {share}"


def disks(states: Sequence[DiskState], facts: Sequence[Facts], need: Storage | None, slow: Mapping[int, Slow],
          timeout_s: float, unknown: str = "") -> list[Row]:  # fmt: skip
    """Speed and room where checkpoints go. need: None: it is not known, for the reason `unknown`."""
    findings = [
        Finding(f"E-DOC-16 {ranks_in_words([rank])} on {facts[rank].host}: {state.folder or 'run.root'}: {state.problem}; a "
                "run writes its checkpoints there. Fix: mend that disk, or another run.root", kind=StorageError)
        for rank, state in enumerate(states)
        if state.problem
    ]  # fmt: skip
    findings += _not_shared(states, facts)
    speeds = [statistics.median(state.rates) if state.rates else 0.0 for state in states]
    for rank, value in slow.items():
        text = (
            f"E-DOC-20 rank {rank} on {facts[rank].host}: writes and syncs {n_bytes(round(speeds[rank]))}/s, "
            f"{value.ratio:.2f} of the median of its peers (at most {value.at_most:.2f} beyond the noise)"
        )
        findings.append(
            Finding(f"{text}; every save waits for it. Fix: look at that host's disk or network", kind=StorageError)
        )
    slowest = min((speed for speed in speeds if speed), default=0.0)
    if need is not None and slowest:
        save_s = need.checkpoint / len(states) / slowest
        if save_s > timeout_s:
            text = f"E-DOC-19 a checkpoint of {n_bytes(need.checkpoint)} takes {save_s:.0f} s at this speed, more than engine.timeout_s={timeout_s:g}"
            findings.append(
                Finding(f"{text}. Fix: a faster run.root, or engine.timeout_s={2 * save_s:.0f}", kind=StorageError)
            )
    cells = [
        f"{n_bytes(round(speed))}/s, {1000 * state.small_s:.1f} ms" if speed else "-"
        for state, speed in zip(states, speeds, strict=True)
    ]
    return [Row("disk write, sync", cells, findings), _room(states, facts, need, unknown)]


def _room(states: Sequence[DiskState], facts: Sequence[Facts], need: Storage | None, unknown: str) -> Row:
    cells, findings = [n_bytes(state.free) for state in states], []
    if need is None:
        return Row("free at run.root", cells, [Finding(unknown, must=False)] if unknown else [])
    for host in dict.fromkeys(each.host for each in facts):
        rank = next(rank for rank, each in enumerate(facts) if each.host == host)
        state = states[rank]
        if state.folder and state.free + state.kept < need.total:
            text = (
                f"E-DOC-18 {host}, {state.folder}: {n_bytes(state.free)} free, {need.kept} checkpoints of "
                f"{n_bytes(need.checkpoint)} need {n_bytes(need.total - state.kept)} more"
            )
            findings.append(Finding(f"{text}. Fix: free that much, or another run.root", kind=StorageError))
    plan = f"; the plan needs {n_bytes(need.total)} ({need.kept} x {n_bytes(need.checkpoint)})"
    return Row("free at run.root", cells, findings, f"{n_bytes(min(state.free for state in states))}{plan}")


def _not_shared(states: Sequence[DiskState], facts: Sequence[Facts]) -> list[Finding]:
    """Whether all hosts see one folder: the same change time to the nanosecond is no chance. One that has just changed
    may be seen late, and is not judged."""
    first: dict[str, int] = {}
    for rank, each in enumerate(facts):
        first.setdefault(each.host, rank)
    seen = {rank: states[rank] for rank in first.values() if states[rank].folder}
    times = {state.identity[1] for state in seen.values()}
    if len(times) < 2 or min(state.changed_s for state in seen.values()) < CHANGED_S:
        return []
    where = next(iter(seen.values())).folder
    text = (
        f"E-DOC-17 run.root {where}: is another folder on each of {len(times)} hosts ({', '.join(first)}); a checkpoint's "
        "parts would lie on several disks, and none could be read"
    )
    return [Finding(f"{text}. Fix: run.root=<a folder that all hosts share>", kind=StorageError)]


def compute(rates_RN: Sequence[Sequence[float]], facts: Sequence[Facts], slow: Mapping[int, Slow]) -> Row:
    """Matrix products of all ranks at once."""
    medians = [statistics.median(rates) for rates in rates_RN]
    findings = []
    for rank, value in slow.items():
        text = (
            f"E-DOC-21 rank {rank} on {facts[rank].host}: computes at {value.ratio:.2f} of the median of its peers (at most "
            f"{value.at_most:.2f} beyond the noise), and all others wait for it in every step"
        )
        what = (
            "its clock and temperature (nvidia-smi -q -d PERFORMANCE)"
            if facts[rank].gpu
            else "what else runs there (top)"
        )
        findings.append(Finding(f"{text}. Fix: look at {what}, or leave that host out"))
    return Row("compute", [flops(median) for median in medians], findings)


def flops(rate: float) -> str:
    """FLOP/s in words."""
    return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"


def slow_in_both(first: Iterable[int], second: Mapping[int, Slow]) -> dict[int, Slow]:
    """Those of the second measurement that the first named too."""
    before = set(first)
    return {rank: value for rank, value in second.items() if rank in before}


def clocks(offsets: Sequence[Offset], facts: Sequence[Facts]) -> Row:
    """Against the median of all clocks."""
    middle = statistics.median(each.ahead_s for each in offsets)
    findings = []
    for rank, each in enumerate(offsets):
        off = each.ahead_s - middle
        if abs(off) - each.uncertainty_s > CLOCK_S:
            text = f"E-DOC-23 rank {rank} on {facts[rank].host}: its clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others'"
            findings.append(Finding(f"{text}; who ended first is told by clocks. Fix: start chronyd there"))
    cells = [f"{1000 * (each.ahead_s - middle):+.2f} ± {1000 * each.uncertainty_s:.2f} ms" for each in offsets]
    return Row("clock", cells, findings)


def links(
    rates_L: Mapping[tuple[int, int], Sequence[float]],
    facts: Sequence[Facts],
    slow: Mapping[tuple[int, int], Slow],
) -> Row:
    """Between neighbours of a ring; a rank whose links are all slow is named, else the link. Cells: from each rank on."""
    findings, named = [], ends_of(list(slow), list(rates_L))
    for rank in named:
        worst = max(value.ratio for link, value in slow.items() if rank in link)
        text = f"E-DOC-25 rank {rank} on {facts[rank].host}: both its links run at {worst:.2f} or less of the median of their kind"
        findings.append(
            Finding(f"{text}. Fix: look at that host's network (its adapter, NCCL_SOCKET_IFNAME, NCCL_IB_HCA)")
        )
    for (one, other), value in slow.items():
        if one not in named and other not in named:
            where = f"{facts[one].host} to {facts[other].host}"
            text = (
                f"E-DOC-25 link between ranks {one} and {other} ({where}): {value.ratio:.2f} of the median of its kind"
            )
            findings.append(Finding(f"{text}. Fix: look at the cable, switch or NVLink between the two"))
    cells = ["-"] * len(facts)
    for (one, other), rates in rates_L.items():
        cells[one] = f"{n_bytes(round(statistics.median(rates)))}/s to {other}"
    return Row("link to the next", cells, findings)


def slow_of_links(
    rates_L: Mapping[tuple[int, int], Sequence[float]], facts: Sequence[Facts]
) -> dict[tuple[int, int], Slow]:
    """Links that are slow among those of their kind: inside a host, or between two."""
    return slow_links(rates_L, {link: facts[link[0]].host == facts[link[1]].host for link in rates_L}, LINK_FACTOR)


def slow_computing(rates_RN: Sequence[Sequence[float]]) -> dict[int, Slow]:
    return slow_ranks(rates_RN, COMPUTE_FACTOR)


def slow_writing(states: Sequence[DiskState]) -> dict[int, Slow]:
    return slow_ranks([state.rates for state in states], DISK_FACTOR)


def all_reduce(size: int, seconds_RN: Sequence[Sequence[float]]) -> Row:
    """One size. All ranks end together, so none of them is slow by this: it is what the group has."""
    medians = [statistics.median(seconds) for seconds in seconds_RN]
    middle = statistics.median(medians)
    low, high = min(min(seconds) for seconds in seconds_RN), max(max(seconds) for seconds in seconds_RN)
    rate = bus_bandwidth(size, middle, len(medians))
    spread = f"{1000 * low:.2f} to {1000 * high:.2f}"
    return Row(
        f"all-reduce {_size(size)}",
        [f"{1000 * middle:.2f} ms"] * len(medians),
        (),
        f"{1000 * middle:.2f} ms ({spread}), {n_bytes(round(rate))}/s bus",
    )


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB"


def no_group(errors: Sequence[str], what: str) -> Row:
    """What ranks do together failed. errors: by rank."""
    wrong = [rank for rank, error in enumerate(errors) if error]
    text = f"E-DOC-24 {ranks_in_words(wrong)}: {what} failed: {errors[wrong[0]]}" if wrong else ""
    fix = "Fix: look at the network between the hosts (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)"
    return Row(what, ["failed" if error else "ok" for error in errors], [Finding(f"{text}. {fix}")] if wrong else [])
