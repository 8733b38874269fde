"""What ranks measure (data, disk, matrix products, clocks, all-reduce), and what is out of line in it.

Shape legend: R ranks, N moments.
"""

import hashlib
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as torch_dist

from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.data.dataset import BLOCK_BYTES, IndexedDataset
from coca_train.data.held_out import HeldOut, Validation
from coca_train.data.mixture import Mixture, require_files
from coca_train.data.packing import Edges
from coca_train.data.provenance import MANIFEST
from coca_train.data.tokenizer import Tokenizer
from coca_train.doctor.machine import Machine, ranks_by_host
from coca_train.doctor.table import Finding, Row, group_by_value, name_ranks
from coca_train.engine.base import DTYPES
from coca_train.models.transformer import vocab_size
from coca_train.planning.outline import Storage
from coca_train.runtime import durable
from coca_train.runtime.errors import DataError, StorageError, UserError
from coca_train.runtime.printing import n_bytes
from coca_train.stages import Stage

MIB = 2**20

# Who is slow. A disk serves several ranks at once, and not evenly: they may differ more.
COMPUTE_FACTOR, DISK_FACTOR = 1.3, 2.0
LEVEL = 0.025  # of the interval, on one side


class Slow(NamedTuple):
    """A rank's rate over its peers' median: its median, and the upper end of its one-sided 97.5 % intervals."""

    ratio: float
    at_most: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} of the median of its peers (at most {self.at_most:.2f} beyond the noise)"


def upper_end(values: Sequence[float]) -> float:
    """Return the upper end of the one-sided 97.5 % interval of the median, whatever the distribution is.

    Of N values the k-th largest is below the median with probability P(Bin(N, 1/2) < k). Infinite for fewer than 6.
    """
    n, k, chance = len(values), 0, 0.0
    while k < n and chance + math.comb(n, k) / 2**n <= LEVEL:
        chance += math.comb(n, k) / 2**n
        k += 1
    return sorted(values, reverse=True)[k - 1] if k else math.inf


def find_slow_ranks(rates_RN: Sequence[Sequence[float]], factor: float) -> dict[int, Slow]:
    """Return the ranks that are slower than the median of their peers by more than `factor`, beyond the noise.

    Each rate is compared with the rates of the others in the same moment, so that what slows a whole machine down
    blames no rank; and a rank must be slow in both halves of the moments, so that one bad while blames none. Nobody is
    slow where there is one rank, or fewer than 6 moments a half.
    """
    n = min((len(rates) for rates in rates_RN), default=0)
    slow = {}
    for rank, rates in enumerate(rates_RN):
        ratios = []
        for i in range(n):
            peers = statistics.median([others[i] for other, others in enumerate(rates_RN) if other != rank] or [0.0])
            ratios.append(rates[i] / peers if peers > 0 else 1.0)
        limit = max(upper_end(ratios[: n // 2]), upper_end(ratios[n // 2 :]))
        if limit < 1 / factor:
            slow[rank] = Slow(statistics.median(ratios), limit)
    return slow


def show_spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Write the least, the most and the median of all ranks."""
    return f"{show(min(values))} to {show(max(values))}, median {show(statistics.median(values))}" if values else ""


# Data: as a training checks it at its start, and blocks against their sums while time is left.
COMMANDS = "python -m data_prep --help (docs/corpora.md)"
GOLDEN = 0.6180339887498949  # its multiples spread over a file, however early time is up


@dataclass(frozen=True)
class DataState:
    """The data of a host. problem: the first error. digest: of all fingerprints. size: [bytes]. blocks, checked: those
    with a sum, and those read and compared with it. made_at_start: by the training itself."""

    problem: str = ""
    digest: str = ""
    n_files: int = 0
    size: int = 0
    blocks: int = 0
    checked: int = 0
    made_at_start: bool = False

    @classmethod
    def failed(cls, problem: str) -> "DataState":
        """Of a disk that gives no answer."""
        return cls(f"E-DOC-15 data: {problem}. Fix: look at the disk or network folder that holds it")


def is_made_at_start(stages: Sequence[Stage]) -> bool:
    """Return whether the data is made when the training starts."""
    first = stages[0].config.data
    return (first.prepare == "embedded" or first.path is not None) and not (Path(first.dir) / MANIFEST).is_file()


def look_at_data(stages: Sequence[Stage], seconds: float) -> DataState:
    """Open and check everything that a training of these stages reads. seconds: for blocks."""
    end = time.monotonic() + seconds
    if is_made_at_start(stages):
        return DataState(made_at_start=True)
    try:
        fingerprints = [_fingerprint(stage) for stage in stages]
        sources = [source for stage in stages for source in stage.config.data.sources.values()]
        prefixes = dict.fromkeys(path for source in sources for path in (source.path, source.valid_path) if path)
        datasets = [IndexedDataset(prefix, verify_blocks=True) for prefix in prefixes]
        blocks = checked = 0
        for number, dataset in enumerate(datasets):
            if dataset._sums is None:
                continue
            n, n_tokens = (
                -(-dataset.n_tokens * dataset.dtype.itemsize // BLOCK_BYTES),
                BLOCK_BYTES // dataset.dtype.itemsize,
            )
            blocks += n
            stop = time.monotonic() + max(0.0, end - time.monotonic()) / (len(datasets) - number)
            for block in sorted(range(n), key=lambda block: block * GOLDEN % 1):
                if time.monotonic() > stop:
                    break
                dataset.tokens(block * n_tokens, min((block + 1) * n_tokens, dataset.n_tokens))
                checked += 1
    except UserError as error:
        return DataState(problem=str(error))
    paths = [Path(f"{prefix}{suffix}") for prefix in prefixes for suffix in (".bin", ".idx")]
    paths += [Path(name) for name in {stage.config.data.tokenizer for stage in stages}]
    digest = hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()[:12]
    return DataState("", digest, len(paths), sum(path.stat().st_size for path in paths), blocks, checked)


def _fingerprint(stage: Stage) -> list[object]:
    """Return the fingerprints of a stage's data, after every check that a training makes at its start."""
    config, train = stage.config, stage.config.train
    require_files(config.data, lambda: COMMANDS)
    tokenizer = Tokenizer(config.data.tokenizer)
    n_tokens = vocab_size(config.model, tokenizer.vocab_size, tokenizer.path)
    edges = Edges(tokenizer.bos, tokenizer.eod)
    mixture = Mixture(config.data, train.seq_len, n_tokens, train.global_batch_size, edges)
    mixture.samples(stage.first_sample, train.micro_batch_size)
    held_out = HeldOut(config.data)
    Validation(held_out, train.seq_len, config.eval.max_tokens, train.micro_batch_size, n_tokens)
    return [mixture.fingerprint(), held_out.fingerprint()]


def check_data(states: Mapping[int, DataState], machines: Sequence[Machine]) -> Row:
    """Compare the data of all hosts. states: of the rank of each that looked."""
    findings = [
        Finding("", f"{name_ranks([rank])} on {machines[rank].host}", state.problem, "", kind=DataError)
        for rank, state in states.items()
        if state.problem
    ]
    ranks = [rank for rank, state in states.items() if state.digest]
    common, *others = group_by_value([states[rank].digest for rank in ranks]).items() if ranks else [("", [])]
    for digest, places in others:
        where = ", ".join(f"{machines[ranks[place]].host} (rank {ranks[place]})" for place in places)
        what = f"other data than on most hosts: fingerprint {digest}, not {common[0]}"
        findings.append(Finding("E-DOC-14", where, what, "copy it again, or read one shared folder", kind=DataError))

    def show(state: DataState) -> str:
        if state.problem or state.made_at_start:
            return "wrong" if state.problem else "made at the first start"
        share = f"{state.checked} of {state.blocks} blocks read" if state.blocks else "no sums"
        return f"{state.n_files} files, {n_bytes(state.size)}, {share}"

    cells = [show(states[rank]) if rank in states else "as its host" for rank in range(len(machines))]
    return Row("data", cells, findings, summary=cells[next(iter(states))] if len(states) == 1 else "")


# Disk: how fast run.root takes what is written and synced, and what it has room for. Nothing is left there.
PIECES = 12  # written and synced one after the other: the fewest from which a rank can be called slow
SMALL_WRITES = 6
SMALL = 4096  # bytes of a small write
CHANGED_S = 120.0  # a host may remember the times of a network folder for a minute


@dataclass(frozen=True)
class DiskState:
    """A folder as one rank sees it.

    rates: of each piece, written and synced [bytes/s]. small_s: median of a sync of 4 KiB. free: [bytes]. kept: what
    checkpoints of this run take already [bytes]. changed_ns: when it changed, the same on all hosts that share it.
    changed_s: how long ago that was, by this host's clock.
    """

    folder: str = ""
    problem: str = ""
    rates: list[float] = field(default_factory=list)
    small_s: float = 0.0
    free: int = 0
    kept: int = 0
    changed_ns: int = 0
    changed_s: float = 0.0

    @classmethod
    def failed(cls, problem: str) -> "DiskState":
        """Of a disk that gives no answer."""
        return cls(problem=problem)


def look_at_disk(run_dir: Path) -> DiskState:
    """Look at the run's folder, or the nearest above it that is there."""
    folder = run_dir.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    status, space = folder.stat(), os.statvfs(folder)
    kept = sum(file.stat().st_size for step in step_folders(run_dir / FOLDER) for file in step.iterdir())
    return DiskState(
        folder=str(folder),
        problem="" if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written to",
        free=space.f_bavail * space.f_frsize,
        kept=kept,
        changed_ns=status.st_ctime_ns,
        changed_s=time.time() - status.st_ctime,
    )


def measure_writing(folder: Path, size: int, seconds: float) -> tuple[list[float], float]:
    """Return rates of PIECES pieces of size / PIECES [bytes/s], fewer where time is up, and the median sync of 4 KiB
    [s]. Raises OSError."""
    end, block = time.monotonic() + seconds, os.urandom(MIB)
    descriptor = _open_nameless(folder)  # whatever happens to this process, nothing is left

    def write(n_blocks: int, block: bytes) -> float:
        began = time.monotonic()
        for _ in range(n_blocks):
            durable.write_all(descriptor, block)
        os.fsync(descriptor)
        return time.monotonic() - began

    try:
        rates, small = [], []
        n_blocks = max(1, size // PIECES // MIB)
        while len(rates) < PIECES and (not rates or time.monotonic() < end):
            rates.append(n_blocks * MIB / max(write(n_blocks, block), 1e-9))
        while len(small) < SMALL_WRITES and (not small or time.monotonic() < end + 1):
            small.append(write(1, block[:SMALL]))
        return rates, statistics.median(small)
    finally:
        os.close(descriptor)


def _open_nameless(folder: Path) -> int:
    """Open a new file that no folder lists."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system has them, nor every kernel
        descriptor, name = tempfile.mkstemp(prefix=".coca-train-doctor-", dir=folder)
        os.unlink(name)
        return descriptor


def check_disks(
    states: Sequence[DiskState],
    machines: Sequence[Machine],
    need: Storage | None,
    timeout_s: float,
    unknown: str = "",
) -> list[Row]:
    """Check speed and room where checkpoints go. need: None: it is not known, for the reason `unknown`."""
    findings = []
    for rank, state in enumerate(states):
        if state.problem:
            where = f"{name_ranks([rank])} on {machines[rank].host}, {state.folder or 'run.root'}"
            what = f"{state.problem}; a run writes its checkpoints there"
            findings.append(Finding("E-DOC-16", where, what, "that disk, or another run.root", kind=StorageError))
    # A change time that is the same to the nanosecond is one folder. What has just changed may be seen late elsewhere.
    hosts = {host: states[ranks[0]] for host, ranks in ranks_by_host(machines).items() if states[ranks[0]].folder}
    n_folders = len({state.changed_ns for state in hosts.values()})
    if n_folders > 1 and min(state.changed_s for state in hosts.values()) >= CHANGED_S:
        what = (
            f"{n_folders} folders on {len(hosts)} hosts ({', '.join(hosts)}), not one; a checkpoint would lie in pieces"
        )
        where, fix = f"run.root {next(iter(hosts.values())).folder}", "run.root=<a folder that all hosts share>"
        findings.append(Finding("E-DOC-17", where, what, fix, kind=StorageError))
    speeds = [statistics.median(state.rates) if state.rates else 0.0 for state in states]
    for rank, value in find_slow_ranks([state.rates for state in states], DISK_FACTOR).items():
        what = f"writes and syncs {_per_second(speeds[rank])}, {value}; a save waits for all ranks"
        where, fix = f"rank {rank} on {machines[rank].host}", "look at that host's disk or network"
        findings.append(Finding("E-DOC-20", where, what, fix, kind=StorageError))
    slowest = min((speed for speed in speeds if speed), default=0.0)
    if need is not None and slowest and (save_s := need.checkpoint / len(states) / slowest) > timeout_s:
        what = f"a save of {n_bytes(need.checkpoint)} takes {save_s:.0f} s, more than engine.timeout_s={timeout_s:g}"
        fix = f"a faster run.root, or engine.timeout_s={2 * save_s:.0f}"
        findings.append(Finding("E-DOC-19", "run.root", what, fix, kind=StorageError))
    written = [_per_second(speed) if speed else "-" for speed in speeds]
    synced = [f"{1000 * state.small_s:.1f} ms" if state.rates else "-" for state in states]
    small_ms = [1000 * state.small_s for state in states if state.rates]
    return [
        Row("disk write", written, findings, brief=show_spread([speed for speed in speeds if speed], _per_second)),
        Row("disk sync", synced, brief=show_spread(small_ms, lambda ms: f"{ms:.1f} ms")),
        _check_room(hosts, states, need, unknown),
    ]


def _check_room(hosts: Mapping[str, DiskState], states: Sequence[DiskState], need: Storage | None, unknown: str) -> Row:
    cells, least = [n_bytes(state.free) for state in states], n_bytes(min(state.free for state in states))
    if need is None:
        return Row("free at run.root", cells, [Finding("", "", unknown, "", must=False)] if unknown else [], least)
    findings = []
    for host, state in hosts.items():
        if state.free + state.kept < need.total:
            more = n_bytes(need.total - state.kept)
            what = f"{n_bytes(state.free)} free, {need.kept} checkpoints of {n_bytes(need.checkpoint)} need {more} more"
            where, fix = f"{host}, {state.folder}", f"free {more}, or another run.root"
            findings.append(Finding("E-DOC-18", where, what, fix, kind=StorageError))
    plan = f"; checkpoints need {n_bytes(need.total)} ({need.kept} x {n_bytes(need.checkpoint)})"
    return Row("free at run.root", cells, findings, f"{least}{plan}")


def _per_second(n: float) -> str:
    return f"{n_bytes(round(n))}/s"


# Computing: how fast each rank multiplies matrices while all of them do.
MOMENT_S, MOMENTS = 0.25, 20
SIDE = {"cpu": 256, "cuda": 4096}  # of the square matrices: a product takes about a millisecond


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_computing(device: torch.device, dtype: str) -> list[float]:
    """Return the FLOP/s in each of MOMENTS moments that follow one another by the clock, whatever this rank does then.

    A product counts in the moment in which it ends: one in which a stopped rank ends nothing has a rate of 0.
    """
    side = SIDE[device.type]
    a = torch.ones(side, side, device=device, dtype=DTYPES[dtype])
    out = a @ a  # the first call pays for set-up
    _finish(device)
    counts, began = [0] * MOMENTS, time.monotonic()
    while True:
        torch.mm(a, a, out=out)
        _finish(device)
        if (moment := int((time.monotonic() - began) / MOMENT_S)) >= MOMENTS:
            return [2 * side**3 * count / MOMENT_S for count in counts]
        counts[moment] += 1


def check_computing(rates_RN: Sequence[Sequence[float]], machines: Sequence[Machine]) -> Row:
    """Name the ranks that compute slowly."""
    findings = []
    for rank, value in find_slow_ranks(rates_RN, COMPUTE_FACTOR).items():
        what = f"computes at {value}; in every step all wait for it"
        look = (
            "its clock and heat (nvidia-smi -q -d PERFORMANCE)" if machines[rank].gpu else "what else runs there (top)"
        )
        fix = f"look at {look}, or leave that host out"
        findings.append(Finding("E-DOC-21", f"rank {rank} on {machines[rank].host}", what, fix))

    def show(rate: float) -> str:
        return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"

    medians = [statistics.median(rates) for rates in rates_RN]
    return Row("compute", [show(median) for median in medians], findings, brief=show_spread(medians, show))


# Network: clocks, and the all-reduce of all ranks.
BARRIERS = 20
# The batch script of Slurm takes what happens to two ranks within 5 s for one moment, by the clocks of their hosts.
CLOCK_S = 2.5
REDUCE_S, REDUCES = 0.5, (3, 200)  # time for the all-reduces; their least and most number


class Offset(NamedTuple):
    """How far a clock is ahead of another [s], and by how much that may be wrong."""

    ahead_s: float
    uncertainty_s: float


def stamp_barriers(device: torch.device) -> list[tuple[float, float]]:
    """COLLECTIVE. Return when this rank entered and left each of BARRIERS barriers, by its clock [s since 1970]."""
    stamps, one = [], torch.zeros(1, device=device)
    for _ in range(BARRIERS + 1):
        entered = time.time()
        torch_dist.all_reduce(one)
        _finish(device)
        stamps.append((entered, time.time()))
    return stamps[1:]  # the first makes connections


def clock_offsets(stamps_RN2: Sequence[Sequence[Sequence[float]]]) -> list[Offset]:
    """Return each rank's clock against rank 0's. stamps_RN2: as `stamp_barriers` gives them.

    Nobody leaves a barrier before all have entered it. So what rank r is ahead of rank 0 is at most (its time of
    leaving) - (rank 0's of entering), and at least (its time of entering) - (rank 0's of leaving), in every barrier:
    the truth lies where all these intervals meet, however long a barrier took.
    """
    of_0, offsets = stamps_RN2[0], []
    for own in stamps_RN2:
        least = max(entered - left_0 for (entered, _), (_, left_0) in zip(own, of_0, strict=True))
        most = min(left - entered_0 for (_, left), (entered_0, _) in zip(own, of_0, strict=True))
        offsets.append(Offset((least + most) / 2, abs(most - least) / 2))
    return offsets


def check_clocks(stamps_RN2: Sequence[Sequence[Sequence[float]]], machines: Sequence[Machine]) -> Row:
    """Compare each clock with the median of all."""
    offsets = clock_offsets(stamps_RN2)
    middle_s, findings = statistics.median(each.ahead_s for each in offsets), []
    for rank, each in enumerate(offsets):
        off_s = each.ahead_s - middle_s
        if abs(off_s) - each.uncertainty_s > CLOCK_S:
            what = f"its clock is {abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} the others'"
            findings.append(Finding("E-DOC-23", f"rank {rank} on {machines[rank].host}", what, "start chronyd there"))
    cells = [f"{1000 * (each.ahead_s - middle_s):+.1f}±{1000 * each.uncertainty_s:.1f} ms" for each in offsets]
    most = max(range(len(offsets)), key=lambda rank: abs(offsets[rank].ahead_s - middle_s))
    return Row("clock", cells, findings, brief=f"at most {cells[most]} (rank {most})")


def measure_all_reduce(size: int, device: torch.device) -> list[float]:
    """COLLECTIVE. Return the seconds of each of several all-reduces of a float32 tensor of `size` bytes."""
    values, seconds = torch.zeros(max(size // 4, 1), device=device), []

    def reduce() -> float:
        began = time.monotonic()
        torch_dist.all_reduce(values)
        _finish(device)
        return time.monotonic() - began

    reduce()  # pays for set-up
    slowest_s = torch.tensor(reduce(), device=device)
    torch_dist.all_reduce(slowest_s, torch_dist.ReduceOp.MAX)  # all ranks need the same number of them
    least, most = REDUCES
    for _ in range(min(most, max(least, int(REDUCE_S / max(slowest_s.item(), 1e-6))))):
        seconds.append(reduce())
    return seconds


def show_all_reduce(size: int, seconds_RN: Sequence[Sequence[float]]) -> Row:
    """Show its time and bus bandwidth: bytes/s that each link of a ring carries, as nccl-tests defines it.

    All ranks end together, so none of them is slow by this: it is what the group reaches.
    """
    n, middle_s = len(seconds_RN), statistics.median(statistics.median(seconds) for seconds in seconds_RN)
    low, high = (1000 * end(end(seconds) for seconds in seconds_RN) for end in (min, max))
    bandwidth = _per_second(2 * (n - 1) / n * size / middle_s)
    cell = f"{1000 * middle_s:.2f} ms ({low:.2f} to {high:.2f}), {bandwidth} bus"
    return Row(f"all-reduce {size // MIB} MiB", [cell] * n)
