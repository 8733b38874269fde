"""The examination: all ranks meet, and each measures its disk, its data, its processor and the network. Rank 0 says who
is slow, what differs, and who is missing.

They compare values through the store at which a process group meets, not through the group itself: so a group that
cannot be formed is a line of the table.

Shape legend: R ranks, N moments.
"""

import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as torch_dist
from pydantic import TypeAdapter
from torch._C._distributed_c10d import PrefixStore, Store

from coca_train import engine
from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.schema import Config, EngineConfig
from coca_train.data.held_out import HeldOut
from coca_train.data.mixture import Mixture, require_files
from coca_train.data.packing import Edges
from coca_train.data.provenance import MANIFEST
from coca_train.data.tokenizer import Tokenizer
from coca_train.doctor.machine import (
    Finding,
    Machine,
    Row,
    check_machines,
    list_findings,
    look_at_machine,
    name_ranks,
    ranks_of,
    read_requirements,
    show_values,
)
from coca_train.engine import process
from coca_train.engine.base import DTYPES
from coca_train.planning.outline import Storage, checkpoint_storage, outline
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import DataError, PeerLost, StorageError, UserError
from coca_train.runtime.printing import n_bytes, plain
from coca_train.runtime.threads import Thread
from coca_train.stages import Stage, resolve

T = TypeVar("T")
MIB = 2**20


def examine(
    config: Config, check_launch: Callable[[], str], *, limit_s: int, meet_s: int, disk_mib: int, reduce_mib: int
) -> int:
    """COLLECTIVE. Print the table on rank 0; return the exit code, the same on every rank. Where a rank is missing, or
    a measurement hangs, end the process with it at once: what hangs would hold it up.

    check_launch: says that this launch fits the configuration. Raises UserError where it does not. limit_s: of each
    part [s]. meet_s: of the meeting of the ranks [s]. disk_mib: what each rank writes. reduce_mib: of the all-reduce.
    """
    ranks = Ranks(limit_s)
    try:
        ranks.meet(meet_s)
        n = ranks.size
        dist.log(f"doctor    {n} rank{'s' * (n > 1)}: about 20 s; each part at most limit_s={limit_s} s")
        _measure_all(ranks, config, check_launch, disk_mib * MIB, reduce_mib * MIB)
        codes = ranks.measure("the end", int, lambda: exit_code(ranks.rows))
        code, problem = codes[0] if codes else UserError.exit_code, ""
        ranks.leave()
    except PeerLost as error:
        ranks.hangs, code = True, error.exit_code
        problem = str(error) if error.of_one_rank or dist.is_main() else ""
    if dist.is_main():
        print(render(ranks.rows), end="", flush=True)
    if problem:
        print(problem, file=sys.stderr, flush=True)
    if ranks.hangs:
        os._exit(code)
    return code


def _measure_all(
    ranks: "Ranks", config: Config, check_launch: Callable[[], str], disk_size: int, reduce_size: int
) -> None:
    """Fill the rows of the table, in the order in which they are printed."""
    stages, rows, measure = resolve(config), ranks.rows, ranks.measure
    need = _storage_needed(config, stages) if dist.is_main() else None
    fits = measure("configuration", str, check_launch)
    rows += [Row("configuration", show_values(fits))] if fits else []
    required = read_requirements()
    machines = measure("versions and limits", Machine, lambda: look_at_machine(config.engine, required))
    if machines is None:
        return
    ranks.hosts = [each.host for each in machines]
    sources = [source for stage in stages for source in stage.config.data.sources.values()]
    files = {path for source in sources for path in (source.path, source.valid_path) if path}
    rows += [Row("host", show_values(ranks.hosts)), *check_machines(machines, required, len(files))]

    is_first = ranks.hosts.index(ranks.hosts[ranks.rank]) == ranks.rank  # of its host
    data = measure("data", Data, lambda: look_at_data(stages) if is_first else Data(), OF_DATA, DataError)
    rows += [check_data(data, ranks.hosts)] if data else []
    run_dir = Path(config.run.root) / config.run.name
    write = partial(measure_disk, run_dir, disk_size, ranks.size, ranks.limit_s / 3)
    disks = measure("disk write", Disk, write, OF_DISK, StorageError)
    rows += check_disks(disks, ranks.hosts, need) if disks else []
    own = machines[ranks.rank]
    device = torch.device(own.device, own.local_rank) if own.gpu else torch.device(own.device)
    rates_RN = measure("compute", list[float], lambda: measure_computing(device, config.engine.dtype))
    rows += [check_computing(rates_RN, machines)] if rates_RN else []

    # A group of ranks on different kinds of devices cannot be formed.
    if ranks.size > 1 and not any(each.no_device for each in machines) and len({each.device for each in machines}) == 1:
        of_group = replace(config.engine, kind="deepspeed", timeout_s=int(ranks.limit_s + LATER_S))
        network = measure("network", Network, partial(measure_network, of_group, reduce_size, device), OF_NETWORK)
        if network:
            rows += [check_clocks(network, ranks.hosts), show_all_reduce(reduce_size, network)]


def render(rows: Sequence[Row]) -> str:
    """Return the table, and below it what is out of line, a marked line each, or that nothing is."""
    if not rows:
        return ""
    table = plain(("", "check", "all ranks"), [(row.mark or " ", row.check, row.shown) for row in rows], n_left=3)
    findings = list_findings(rows)
    if not findings:
        return f"{table}Nothing is out of line.\n"
    n_must = sum(finding.must for finding in findings)
    head = f"{n_must} must be fixed, {len(findings) - n_must} worth a look:"
    return table + "\n".join([head, *(f"{'!' if each.must else '~'} {each}" for each in findings)]) + "\n"


def exit_code(rows: Sequence[Row]) -> int:
    """Return 0, or the code of the first finding that must be fixed: 3 data, 7 disk, 2 anything else."""
    return next((finding.kind.exit_code for finding in list_findings(rows) if finding.must), 0)


# ---- the meeting

PROGRESS_S = 5.0  # a part that takes longer says so
SLACK_S = 5.0  # beyond the limit of a part, for the ranks to say that they have reached it
LINGER_S = 2.0  # of rank 0, which may hold the store, for the others to read who is missing
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
LATER_S = 60.0  # torch's own limit comes after ours, which names the rank
OF_DATA = "look at the disk or network folder that holds it"
OF_DISK = "look at that disk, or take another run.root"
OF_NETWORK = "look at the network between the hosts (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)"
OF_RANK = (
    "look at that rank's machine and its log (without the rank the run would hang too), then run the same command "
    "again, with a larger limit_s (at the start: meet_s) if it was only slow"
)
ANSWERS = TypeAdapter(list[tuple[str, object]])


class Ranks:
    """All ranks of a launch: `meet`, then `measure` part after part, each within its limit.

    A rank that does not come, or does not end a part, is named by rank 0, or by the others where rank 0 is missing:
    PeerLost E-DOC-01.
    """

    def __init__(self, limit_s: float) -> None:
        self.rank, self.size, self.limit_s = dist.rank(), dist.world_size(), limit_s
        self.rows: list[Row] = []
        self.hosts: list[str] = []  # by rank, once they are known
        self.hangs = False  # a thread was left behind, or a group that cannot be left
        self._step = 0  # counts the gatherings of this rank
        self._store: Store | None = None

    def meet(self, meet_s: float) -> None:
        """COLLECTIVE. Raises UserError where the environment names no meeting place, or no rank."""
        tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
        if "RANK" not in os.environ and tasks.isdecimal() and int(tasks) > 1:
            raise UserError(
                f"E-DOC-02 environment SLURM_STEP_NUM_TASKS={tasks}: srun has started {tasks} tasks, and RANK is not "
                "set; the ranks cannot meet. Fix: sbatch … launch/slurm/train.sbatch doctor …, which sets it"
            )
        if self.size > 1:
            self._store = _connect(meet_s)
        self._gather("the meeting of the ranks", True, meet_s)

    def measure(
        self, part: str, kind: type[T], action: Callable[[], T], fix: str = OF_RANK, error: type[UserError] = UserError
    ) -> list[T] | None:
        """COLLECTIVE. Return what the action gives on every rank, by rank. None: it failed on some, which a row names.

        kind: of the value, which travels as JSON. fix, error: of a failure that has no code of its own.
        """
        limit_s, began = self.limit_s, time.monotonic()
        problem, value, adapter = "", None, TypeAdapter(kind)
        try:
            value = adapter.dump_python(run_bounded(part, action, limit_s), mode="json")
        except UserError as wrong:
            problem = str(wrong)
        except (OSError, RuntimeError) as wrong:  # of a disk, of torch, or too late
            problem = _first_line(wrong)
            self.hangs |= isinstance(wrong, TimeoutError | RuntimeError)
        answers = self._gather(part, (problem, value), limit_s + SLACK_S + began - time.monotonic())
        found = ANSWERS.validate_python(answers)
        problems = [each for each, _ in found]
        if not any(problems):
            return [adapter.validate_python(each) for _, each in found]
        findings = []
        for text, ranks in ranks_of(problems).items():
            hosts = dict.fromkeys(self.hosts[rank] for rank in ranks) if self.hosts else ()
            where = name_ranks(ranks) + (f" on {', '.join(hosts)}" if hosts else "")
            if text.startswith("E-"):
                findings.append(Finding("", where, text, "", kind=error))
            elif text:
                findings.append(Finding("E-DOC-24", f"{part}, {where}", f"failed ({text})", fix, kind=error))
        self.rows.append(Row(part, show_values(["failed" if each else "works" for each in problems]), findings))
        return None

    def leave(self) -> None:
        """COLLECTIVE, the last: rank 0, which may hold the store, leaves after the others have read everything."""
        if self._store is not None:
            with suppress(torch_dist.DistError):  # whoever is late has ended otherwise
                if self.rank:
                    self._store.set(f"left/{self.rank}", "")
                else:
                    self._store.wait([f"left/{rank}" for rank in range(1, self.size)], timedelta(seconds=SLACK_S))

    def _gather(self, part: str, own: object, wait_s: float) -> list[object]:
        """COLLECTIVE. Return the values of all ranks. wait_s: how long rank 0 waits for them."""
        if (store := self._store) is None:
            return [own]
        self._step += 1
        try:
            found = run_bounded(part, lambda: self._exchange(store, own, wait_s), wait_s + 2 * SLACK_S)
        except (TimeoutError, torch_dist.DistStoreError):
            raise PeerLost(f"E-DOC-01 rank 0: gave no answer after {part}. Fix: {OF_RANK}") from None
        except (OSError, RuntimeError) as error:
            raise PeerLost(
                f"E-DOC-01 rank {self.rank}: the meeting place does not answer ({_first_line(error)}). Fix: look at "
                "the first error of the other ranks, then run the same command again"
            ) from None
        missing = [rank for rank, value in enumerate(found) if value is None]
        if not missing:
            return found
        if self.rank == 0:
            time.sleep(LINGER_S)
        what = f"did not finish {part} in time, the others did"
        lost = PeerLost(f"E-DOC-01 {name_ranks(missing)}: {what}. Fix: {OF_RANK}")
        lost.of_one_rank = False  # rank 0 says it for all
        raise lost

    def _exchange(self, store: Store, own: object, wait_s: float) -> list[object]:
        """Return the value of each rank, None where it did not come; rank 0 tells the others."""
        keys, everything = [f"{self._step}/{rank}" for rank in range(self.size)], f"{self._step}/all"
        store.set(keys[self.rank], json.dumps(own))
        if self.rank:
            store.wait([everything], timedelta(seconds=wait_s + SLACK_S))
        else:
            with suppress(torch_dist.DistStoreError):  # too late
                store.wait(keys, timedelta(seconds=wait_s))
            values = [json.loads(store.get(key)) if store.check([key]) else None for key in keys]
            store.set(everything, json.dumps(values))
        return json.loads(store.get(everything))


def _connect(meet_s: float) -> Store:
    """Connect to the store that the process group will use too; under torchrun the launcher holds it."""
    # As the process group gets it.
    from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    process.check_launch()
    host, port, restart = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", RESTARTS))
    holds_it = dist.is_main() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    timeout = timedelta(seconds=meet_s)
    try:
        store = TCPStore(
            host, int(port), is_master=holds_it, timeout=timeout, wait_for_workers=False, multi_tenant=True
        )
    except (RuntimeError, OSError) as error:
        raise process.meeting_error(error, meet_s) from None
    return PrefixStore(f"doctor/{restart}", store)


def run_bounded(part: str, action: Callable[[], T], limit_s: float) -> T:
    """Return the result of the action, or raise its exception; TimeoutError after limit_s seconds.

    What hangs in the kernel or in a collective cannot be stopped: its thread is left behind.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(action())
        except Exception as error:
            done.set_exception(error)

    thread = Thread(run)
    began, said_s = time.monotonic(), PROGRESS_S
    while True:
        thread.join(max(0.0, began + min(said_s, limit_s) - time.monotonic()))
        if not thread.is_alive():
            return done.result()
        if said_s >= limit_s:
            raise TimeoutError(f"no answer within {limit_s:g} s")
        dist.log(f"doctor    {part}: {said_s:.0f} s of at most {limit_s:g} s")
        said_s *= 2


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


# ---- who is slow

# A disk serves several ranks at once, and not evenly: they may differ more.
COMPUTE_FACTOR, DISK_FACTOR = 1.3, 2.0
FEWEST, MOST_OF = 6, 5 / 6  # moments from which a rank can be called slow; the share of them in which it must be


def find_slow_ranks(rates_RN: Sequence[Sequence[float]], factor: float) -> dict[int, float]:
    """Return the ranks that are slower than the median of their peers by more than `factor`, and the median of these
    ratios.

    Each rate is compared with those of the others in the same moment, so that what slows a whole machine down blames no
    rank; and a rank must be slow in nearly all moments, so that neither noise nor one bad while blames any.
    """
    n, slow = min((len(rates) for rates in rates_RN), default=0), {}
    if n < FEWEST or len(rates_RN) < 2:
        return slow
    for rank, rates in enumerate(rates_RN):
        peers = [each for other, each in enumerate(rates_RN) if other != rank]
        medians = [statistics.median(each[i] for each in peers) for i in range(n)]
        ratios = [rate / median if median > 0 else 1.0 for rate, median in zip(rates, medians, strict=False)]
        if sum(ratio < 1 / factor for ratio in ratios) >= MOST_OF * n:
            slow[rank] = statistics.median(ratios)
    return slow


def show_spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Write the least, the most and the median of all ranks."""
    if len(values) == 1:
        return show(values[0])
    return f"{show(min(values))} to {show(max(values))}, median {show(statistics.median(values))}" if values else "-"


# ---- data: as a training checks it at its start

COMMANDS = "python -m data_prep --help (docs/corpora.md)"
LATER = "made at the first start"


@dataclass(frozen=True)
class Data:
    """What one host reads. digest: of all fingerprints; "": another rank of the host looks; LATER."""

    digest: str = ""
    n_files: int = 0


def look_at_data(stages: Sequence[Stage]) -> Data:
    """Open everything that a training of these stages reads. Raises DataError as it does at its start."""
    first = stages[0].config.data
    if (first.prepare != "none" or first.path is not None) and not (Path(first.dir) / MANIFEST).is_file():
        return Data(LATER)
    files, fingerprints = set[str](), []
    for stage in stages:
        data, train = stage.config.data, stage.config.train
        require_files(data, lambda: COMMANDS)
        tokenizer = Tokenizer(data.tokenizer)
        edges = Edges(tokenizer.bos, tokenizer.eod)
        mixture = Mixture(data, train.seq_len, global_batch_size=train.global_batch_size, edges=edges)
        fingerprints += [mixture.fingerprint(), HeldOut(data).fingerprint()]
        files |= {path for source in data.sources.values() for path in (source.path, source.valid_path) if path}
    digest = hashlib.sha256(json.dumps(fingerprints, sort_keys=True).encode()).hexdigest()[:12]
    return Data(digest, len(files))


def check_data(data: Sequence[Data], hosts: Sequence[str]) -> Row:
    """Compare the data of all hosts."""
    looked = [(rank, each) for rank, each in enumerate(data) if each.digest]
    (common, _), *others = ranks_of([each.digest for _, each in looked]).items()
    findings = []
    for digest, places in others:
        where = ", ".join(f"{hosts[looked[place][0]]} (rank {looked[place][0]})" for place in places)
        what = f"other data than on most hosts: fingerprint {digest}, not {common}"
        findings.append(Finding("E-DOC-14", where, what, "copy it again, or read one shared folder", kind=DataError))
    n_files = next(each.n_files for _, each in looked if each.digest == common)
    return Row("data", LATER if common == LATER else f"{n_files} token files, fingerprint {common}", findings)


# ---- disk: how fast run.root takes what is written and synced, and what it has room for; nothing is left there

PIECES = 12  # written and synced one after the other
CHANGED_S = 120.0  # a host may remember the times of a network folder for a minute


@dataclass(frozen=True)
class Disk:
    """A folder as one rank sees it.

    rates: of each piece, written and synced [bytes/s]. free: [bytes]. kept: what checkpoints of this run take already
    [bytes]. changed_ns: when it changed, the same on all hosts that share it. changed_s: how long ago that was, by this
    host's clock.
    """

    folder: str
    rates: list[float]
    free: int
    kept: int = 0
    changed_ns: int = 0
    changed_s: float = 0.0


def measure_disk(run_dir: Path, size: int, n_ranks: int, seconds: float) -> Disk:
    """Look at the run's folder, or the nearest above it that is there, then write `size` bytes in pieces, fewer where
    time is up. Raises OSError."""
    folder = run_dir.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    # Before anything is written, which would change the folder's times.
    status, space = folder.stat(), os.statvfs(folder)
    free, changed_s = space.f_bavail * space.f_frsize, time.time() - status.st_ctime
    kept = sum(file.stat().st_size for step in step_folders(run_dir / FOLDER) for file in step.iterdir())
    rates = list[float]()
    if free > 2 * size * n_ranks:  # that there is too little room for a run is a finding of its own
        block, end = os.urandom(max(1, size // PIECES)), time.monotonic() + seconds
        with tempfile.TemporaryFile(prefix=".coca-train-doctor-", dir=folder) as file:  # without a name
            while len(rates) < PIECES and (not rates or time.monotonic() < end):
                began = time.monotonic()
                durable.write_all(file.fileno(), block)
                os.fsync(file.fileno())
                rates.append(len(block) / max(time.monotonic() - began, 1e-9))
    return Disk(str(folder), rates, free, kept, status.st_ctime_ns, changed_s)


def _storage_needed(config: Config, stages: Sequence[Stage]) -> Storage | None:
    """Return what the checkpoints of the run take; None where the size of the vocabulary is not known yet."""
    try:
        outlines = [outline(stage.config, stage.trainable, lora=stage.lora) for stage in stages]
        return checkpoint_storage(outlines, config.checkpoint.keep)
    except UserError:
        return None


def check_disks(disks: Sequence[Disk], hosts: Sequence[str], need: Storage | None) -> list[Row]:
    """Check speed and room where checkpoints go. need: None: not known."""
    by_host = {host: disks[hosts.index(host)] for host in dict.fromkeys(hosts)}
    speeds, written = [statistics.median(each.rates) if each.rates else 0.0 for each in disks], []
    # A change time that is the same to the nanosecond is one folder. What has just changed may be seen late elsewhere.
    n_folders = len({each.changed_ns for each in by_host.values()})
    if n_folders > 1 and min(each.changed_s for each in by_host.values()) >= CHANGED_S:
        what = f"{n_folders} folders on {len(by_host)} hosts ({', '.join(by_host)}), not one that all share"
        where, fix = f"run.root {disks[0].folder}", "run.root=<a folder that all hosts share>"
        written.append(Finding("E-DOC-17", where, what, fix, kind=StorageError))
    for rank, ratio in find_slow_ranks([each.rates for each in disks], DISK_FACTOR).items():
        what = f"writes and syncs {_per_second(speeds[rank])}, {ratio:.2f} of its peers; a save waits for all ranks"
        where, fix = f"rank {rank} on {hosts[rank]}", "look at that host's disk or network"
        written.append(Finding("E-DOC-20", where, what, fix, kind=StorageError))
    least, plan, full = min(disks, key=lambda each: each.free + each.kept), "", []
    if need is not None:
        plan = f"; checkpoints need {n_bytes(need.total)} ({need.kept} x {n_bytes(need.checkpoint)})"
        if least.free + least.kept < need.total:
            more, where = n_bytes(need.total - least.kept), f"{hosts[disks.index(least)]}, {least.folder}"
            what = f"{n_bytes(least.free)} free, {need.kept} checkpoints of {n_bytes(need.checkpoint)} need {more} more"
            full.append(Finding("E-DOC-18", where, what, f"free {more}, or another run.root", kind=StorageError))
    return [
        Row("disk write", show_spread([speed for speed in speeds if speed], _per_second), written),
        Row("free at run.root", f"{n_bytes(least.free)}{plan}", full),
    ]


def _per_second(n: float) -> str:
    return f"{n_bytes(round(n))}/s"


# ---- computing: how fast each rank multiplies matrices while all of them do

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
    for rank, ratio in find_slow_ranks(rates_RN, COMPUTE_FACTOR).items():
        what = f"computes at {ratio:.2f} of the median of its peers; in every step all wait for it"
        look = "nvidia-smi -q -d PERFORMANCE" if machines[rank].gpu else "top"
        fix = f"look at what {look} shows there, or leave that host out"
        findings.append(Finding("E-DOC-21", f"rank {rank} on {machines[rank].host}", what, fix))

    def show(rate: float) -> str:
        return f"{rate / 1e12:.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GFLOP/s"

    return Row("compute", show_spread([statistics.median(rates) for rates in rates_RN], show), findings)


# ---- network: clocks, and the all-reduce of all ranks

# The batch script of Slurm takes what happens to two ranks within 5 s for one moment, by the clocks of their hosts.
CLOCK_S = 2.5
TIMES = 5  # each is measured


@dataclass(frozen=True)
class Network:
    """What a rank measured in the process group. clock_s: when it left each of some barriers, by its clock [s since
    1970]. reduce_s: what each all-reduce took [s]."""

    clock_s: list[float]
    reduce_s: list[float]


def measure_network(config: EngineConfig, size: int, device: torch.device) -> Network:
    """COLLECTIVE. Form the process group as the training would, pass some barriers, and reduce float32 tensors of
    `size` bytes."""
    engine.start(config)
    clock_s, reduce_s, values = [], [], torch.zeros(max(size // 4, 1), device=device)
    for _ in range(TIMES + 1):
        torch_dist.all_reduce(values[:1])
        _finish(device)
        clock_s.append(time.time())
        began = time.monotonic()
        torch_dist.all_reduce(values)
        _finish(device)
        reduce_s.append(time.monotonic() - began)
    engine.stop()
    return Network(clock_s[1:], reduce_s[1:])  # the first make connections


def check_clocks(network: Sequence[Network], hosts: Sequence[str]) -> Row:
    """Compare each clock with the median of all. They leave a barrier within milliseconds."""
    middle = [statistics.median(moment) for moment in zip(*(each.clock_s for each in network), strict=True)]
    off_s, findings = [], []
    for rank, each in enumerate(network):
        off_s.append(statistics.median(own - all_s for own, all_s in zip(each.clock_s, middle, strict=True)))
        if abs(off_s[rank]) > CLOCK_S:
            what = f"its clock is {abs(off_s[rank]):.1f} s {'ahead of' if off_s[rank] > 0 else 'behind'} the others'"
            findings.append(Finding("E-DOC-23", f"rank {rank} on {hosts[rank]}", what, "start chronyd there"))
    return Row("clock", show_spread(off_s, lambda each: f"{1000 * each:+.1f} ms"), findings)


def show_all_reduce(size: int, network: Sequence[Network]) -> Row:
    """Show its time and bus bandwidth: bytes/s that each link of a ring carries, as nccl-tests defines it.

    All ranks end together, so none of them is slow by this: it is what the group reaches.
    """
    n, middle_s = len(network), statistics.median(statistics.median(each.reduce_s) for each in network)
    low, high = (1000 * end(end(each.reduce_s) for each in network) for end in (min, max))
    bandwidth = _per_second(2 * (n - 1) / n * size / middle_s)
    return Row(f"all-reduce {size // MIB} MiB", f"{1000 * middle_s:.2f} ms ({low:.2f} to {high:.2f}), {bandwidth} bus")
