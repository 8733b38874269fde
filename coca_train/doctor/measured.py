"""What is out of line of what ranks have measured: pure functions over the values of all ranks.

Shape legend: R ranks, N moments, L links.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from coca_train.doctor.disk import DiskState
from coca_train.doctor.facts import Facts
from coca_train.doctor.files import DataState
from coca_train.doctor.finding import Finding, Quoted, Row, ranks_in_words, spread, unlike
from coca_train.doctor.network import bus_bandwidth
from coca_train.doctor.rates import Offset, Slow, ends_of, slow_links, slow_ranks
from coca_train.planning.storage import Storage
from coca_train.runtime.errors import DataError, StorageError
from coca_train.runtime.printing import n_bytes

K = TypeVar("K")
# A rank is slow where it is slower than the median of its peers by more than this, beyond the noise, twice in a row.
# Disks and links serve several ranks at once, and not evenly: they may differ more.
COMPUTE_FACTOR, LINK_FACTOR, DISK_FACTOR = 1.3, 2.0, 2.0
# The batch script of Slurm takes what happens to two ranks within 5 s for one moment, by the clocks of their hosts.
CLOCK_S = 2.5
CHANGED_S = 120.0  # a host may remember the times of a network folder for a minute


def slow_computing(rates_RN: Sequence[Sequence[float]]) -> dict[int, Slow]:
    return slow_ranks(rates_RN, COMPUTE_FACTOR)


def slow_writing(states: Sequence[DiskState]) -> dict[int, Slow]:
    return slow_ranks([state.rates for state in states], DISK_FACTOR)


def slow_of_links(
    rates_L: Mapping[tuple[int, int], Sequence[float]], facts: Sequence[Facts]
) -> dict[tuple[int, int], Slow]:
    """Links that are slow among those of their kind: inside a host, or between two."""
    same_host = {link: facts[link[0]].host == facts[link[1]].host for link in rates_L}
    return slow_links(rates_L, same_host, LINK_FACTOR)


def slow_in_both(first: Iterable[K], second: Mapping[K, Slow]) -> dict[K, Slow]:
    """Those of the second measurement that the first named too."""
    before = set(first)
    return {each: value for each, value in second.items() if each in before}


def data(states: Mapping[int, DataState], facts: Sequence[Facts]) -> Row:
    """On each host. states: of the rank of each that looked."""
    findings: list[Finding] = [
        Quoted("", f"{ranks_in_words([rank])} on {facts[rank].host}", state.problem, "", kind=DataError)
        for rank, state in states.items()
        if state.problem
    ]
    ranks = [rank for rank, state in states.items() if state.digest]
    by_digest = unlike([states[rank].digest for rank in ranks])
    for digest, places in list(by_digest.items())[1:]:
        where = ", ".join(f"{facts[ranks[place]].host} (rank {ranks[place]})" for place in places)
        what = f"other data than on most hosts: fingerprint {digest}, not {next(iter(by_digest))}"
        findings.append(Finding("E-DOC-14", where, what, "copy it again, or read one shared folder", kind=DataError))
    cells = [_data_cell(states[rank]) if rank in states else "as its host" for rank in range(len(facts))]
    return Row("data", cells, findings, summary=_data_cell(next(iter(states.values()))) if len(states) == 1 else "")


def _data_cell(state: DataState) -> str:
    if state.problem:
        return "wrong"
    if state.to_come:
        return "made at the first start"
    share = f"{state.checked} of {state.blocks} blocks read" if state.blocks else "no sums"
    return f"{state.n_files} files, {n_bytes(state.size)}, {share}"


def disks(
    states: Sequence[DiskState],
    facts: Sequence[Facts],
    need: Storage | None,
    slow: Mapping[int, Slow],
    timeout_s: float,
    unknown: str = "",
) -> list[Row]:
    """Speed and room where checkpoints go. need: None: it is not known, for the reason `unknown`."""
    findings = []
    for rank, state in enumerate(states):
        if state.problem:
            where = f"{ranks_in_words([rank])} on {facts[rank].host}, {state.folder or 'run.root'}"
            what = f"{state.problem}; a run writes its checkpoints there"
            findings.append(Finding("E-DOC-16", where, what, "mend that disk, or another run.root", kind=StorageError))
    findings += _not_shared(states, facts)
    speeds = [statistics.median(state.rates) if state.rates else 0.0 for state in states]
    for rank, value in slow.items():
        what = f"writes and syncs {_rate(speeds[rank])}, {_against(value)}; a save is done when it has written its part"
        where, fix = f"rank {rank} on {facts[rank].host}", "look at that host's disk or network"
        findings.append(Finding("E-DOC-20", where, what, fix, kind=StorageError))
    slowest = min((speed for speed in speeds if speed), default=0.0)
    if need is not None and slowest and (save_s := need.checkpoint / len(states) / slowest) > timeout_s:
        what = f"a save of {n_bytes(need.checkpoint)} takes {save_s:.0f} s, more than engine.timeout_s={timeout_s:g}"
        fix = f"a faster run.root, or engine.timeout_s={2 * save_s:.0f}"
        findings.append(Finding("E-DOC-19", "run.root", what, fix, kind=StorageError))
    small_ms = [1000 * state.small_s for state in states if state.rates]
    written = [_rate(speed) if speed else "-" for speed in speeds]
    synced = [f"{1000 * state.small_s:.1f} ms" if state.rates else "-" for state in states]
    return [
        Row("disk write", written, findings, brief=spread([speed for speed in speeds if speed], _rate)),
        Row("disk sync", synced, brief=spread(small_ms, lambda ms: f"{ms:.1f} ms")),
        _room(states, facts, need, unknown),
    ]


def _not_shared(states: Sequence[DiskState], facts: Sequence[Facts]) -> list[Finding]:
    """Whether all hosts see one folder: the same change time to the nanosecond is no chance. One that has just changed
    may be seen late, and is not judged."""
    first: dict[str, int] = {}
    for rank, each in enumerate(facts):
        first.setdefault(each.host, rank)
    seen = [states[rank] for rank in first.values() if states[rank].folder]
    n_folders = len({state.identity[1] for state in seen})
    if n_folders < 2 or min(state.changed_s for state in seen) < CHANGED_S:
        return []
    what = f"{n_folders} folders on {len(first)} hosts ({', '.join(first)}), not one; a checkpoint would lie in pieces"
    where, fix = f"run.root {seen[0].folder}", "run.root=<a folder that all hosts share>"
    return [Finding("E-DOC-17", where, what, fix, kind=StorageError)]


def _room(states: Sequence[DiskState], facts: Sequence[Facts], need: Storage | None, unknown: str) -> Row:
    least, findings = n_bytes(min(state.free for state in states)), []
    cells = [n_bytes(state.free) for state in states]
    if need is None:
        return Row("free at run.root", cells, [Quoted("", "", unknown, "", must=False)] if unknown else [], least)
    for host in dict.fromkeys(each.host for each in facts):
        state = next(states[rank] for rank, each in enumerate(facts) if each.host == host)
        if state.folder and state.free + state.kept < need.total:
            more, each_one = n_bytes(need.total - state.kept), n_bytes(need.checkpoint)
            what = f"{n_bytes(state.free)} free, and {need.kept} checkpoints of {each_one} need {more} more"
            where, fix = f"{host}, {state.folder}", f"free {more}, or another run.root"
            findings.append(Finding("E-DOC-18", where, what, fix, kind=StorageError))
    plan = f"; checkpoints need {n_bytes(need.total)} ({need.kept} x {n_bytes(need.checkpoint)})"
    return Row("free at run.root", cells, findings, f"{least}{plan}")


def compute(rates_RN: Sequence[Sequence[float]], facts: Sequence[Facts], slow: Mapping[int, Slow]) -> Row:
    """Matrix products of all ranks at once."""
    medians, findings = [statistics.median(rates) for rates in rates_RN], []
    for rank, value in slow.items():
        what = f"computes at {_against(value)}; in every step all wait for it"
        look = "its clock and heat (nvidia-smi -q -d PERFORMANCE)" if facts[rank].gpu else "what else runs there (top)"
        fix = f"look at {look}, or leave that host out"
        findings.append(Finding("E-DOC-21", f"rank {rank} on {facts[rank].host}", what, fix))
    return Row("compute", [_flops(median) for median in medians], findings, brief=spread(medians, _flops))


def _flops(rate: float) -> str:
    return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"


def _rate(bytes_per_s: float) -> str:
    return f"{n_bytes(round(bytes_per_s))}/s"


def _against(value: Slow) -> str:
    return f"{value.ratio:.2f} of the median of its peers (at most {value.at_most:.2f} beyond the noise)"


def clocks(offsets: Sequence[Offset], facts: Sequence[Facts]) -> Row:
    """Against the median of all clocks."""
    middle, findings = statistics.median(each.ahead_s for each in offsets), []
    for rank, each in enumerate(offsets):
        off_s = each.ahead_s - middle
        if abs(off_s) - each.uncertainty_s > CLOCK_S:
            what = f"its clock is {abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} the others'"
            findings.append(Finding("E-DOC-23", f"rank {rank} on {facts[rank].host}", what, "start chronyd there"))
    cells = [f"{1000 * (each.ahead_s - middle):+.1f}±{1000 * each.uncertainty_s:.1f} ms" for each in offsets]
    most = max(range(len(offsets)), key=lambda rank: abs(offsets[rank].ahead_s - middle))
    return Row("clock", cells, findings, brief=f"at most {cells[most]} (rank {most})")


def links(
    rates_L: Mapping[tuple[int, int], Sequence[float]],
    facts: Sequence[Facts],
    slow: Mapping[tuple[int, int], Slow],
) -> Row:
    """Between neighbours of a ring. A rank whose links are all slow is named, else the link. Cells: from each rank."""
    findings, named = [], ends_of(list(slow), list(rates_L))
    for rank in named:
        worst = max(value.ratio for link, value in slow.items() if rank in link)
        what = f"its links run at {worst:.2f} or less of the median of their kind"
        fix = "look at that host's network (its adapter, NCCL_SOCKET_IFNAME, NCCL_IB_HCA)"
        findings.append(Finding("E-DOC-25", f"rank {rank} on {facts[rank].host}", what, fix))
    for (one, other), value in slow.items():
        if one not in named and other not in named:
            where = f"link of ranks {one} and {other}, {facts[one].host} to {facts[other].host}"
            what = f"runs at {value.ratio:.2f} of the median of its kind"
            findings.append(Finding("E-DOC-25", where, what, "look at cable, switch or NVLink between the two"))
    medians = {one: statistics.median(rates) for (one, _), rates in rates_L.items()}
    cells = [_rate(medians[rank]) if rank in medians else "-" for rank in range(len(facts))]
    return Row("link to the next", cells, findings, brief=spread(list(medians.values()), _rate))


def all_reduce(size: int, seconds_RN: Sequence[Sequence[float]]) -> Row:
    """One size. All ranks end together, so none of them is slow by this: it is what the group has."""
    medians = [statistics.median(seconds) for seconds in seconds_RN]
    middle = statistics.median(medians)
    low, high = (1000 * end(end(seconds) for seconds in seconds_RN) for end in (min, max))
    rate = _rate(bus_bandwidth(size, middle, len(medians)))
    words = f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB"
    return Row(f"all-reduce {words}", [f"{1000 * middle:.2f} ms ({low:.2f} to {high:.2f}), {rate} bus"] * len(medians))


def failed(what: str, problems: Sequence[str]) -> Row:
    """What ranks do together does not work. problems: by rank."""
    wrong = [rank for rank, problem in enumerate(problems) if problem]
    fix = "look at the network between the hosts (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)"
    finding = Finding("E-DOC-24", ranks_in_words(wrong), f"{what} failed ({problems[wrong[0]]})", fix)
    return Row(what, ["failed" if problem else "works" for problem in problems], [finding])
