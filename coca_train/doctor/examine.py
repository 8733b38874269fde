"""The examination: what every rank measures in which order, and how ranks are compared."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from coca_train import engine
from coca_train.config.schema import Config
from coca_train.doctor import machine, measurements
from coca_train.doctor.measurements import MIB, DataState, DiskState
from coca_train.doctor.rendezvous import Overdue, Rendezvous, run_bounded
from coca_train.doctor.table import Finding, Row, exit_code, list_findings, name_ranks, print_findings, print_table
from coca_train.planning.outline import Storage, checkpoint_storage, outline
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.stages import resolve

T = TypeVar("T")
RESERVE_S = 5.0  # of a part's limit, for the ranks to say that a disk gives no answer
LATER_S = 60.0  # torch's own limit comes after ours, which names the rank


@dataclass(frozen=True)
class Effort:
    """How much is measured. limit_s: of each part; meet_s: of the meeting [s]. data_s: of blocks of data [s]. disk_mib:
    what each rank writes. reduce_mib: size of the all-reduce."""

    limit_s: float
    meet_s: float
    data_s: float
    disk_mib: int
    reduce_mib: int


def examine(config: Config, effort: Effort, launch_problem: str) -> int:
    """COLLECTIVE. Print the table on rank 0; return the exit code, the same on every rank.

    launch_problem: what this rank's launch has against the configuration. Raises PeerLost, or ends the process with
    code 76, when a rank does not come.
    """
    with Rendezvous(effort.meet_s) as ranks:
        rows: list[Row] = []
        ranks.before_exit = lambda: print(print_table(rows, ranks.size), *list_findings(rows), sep="\n", flush=True)
        examination = _Examination(config, effort, ranks, rows)
        examination.announce()
        examination.machines(launch_problem)
        examination.data()
        examination.disks()
        examination.computing()
        if ranks.size > 1 and examination.can_form_group:
            examination.network()
        code = ranks.gather_and_decide(None, lambda _: exit_code(rows))
        if dist.is_main():
            print(print_table(rows, ranks.size), print_findings(rows), sep="\n", end="", flush=True)
        ranks.begin("leaving", effort.limit_s)
        ranks.leave()
    return code


class _Examination:
    """The parts of an examination; each fills `rows` on rank 0."""

    def __init__(self, config: Config, effort: Effort, ranks: Rendezvous, rows: list[Row]) -> None:
        self.config, self.effort, self.ranks, self.rows = config, effort, ranks, rows
        self.stages = resolve(config)
        self.run_dir = Path(config.run.root) / config.run.name
        self.all_machines: list[machine.Machine] = []  # on rank 0
        self.can_form_group = False
        self.device = torch.device("cpu")
        self.host = ""

    def announce(self) -> None:
        """Say how long it will take."""
        n, effort = self.ranks.size, self.effort
        seconds = 9 + effort.data_s + measurements.MOMENT_S * measurements.MOMENTS + effort.disk_mib / 50
        limit = f"each part at most limit_s={effort.limit_s:g} s"
        dist.log(f"doctor    {n} rank{'s' * (n > 1)}: about {seconds:.0f} s; {limit}")

    def machines(self, launch_problem: str) -> None:
        """Compare what each rank knows of its machine."""
        self.ranks.begin("versions and limits", self.effort.limit_s)
        required = machine.read_requirements()
        own = machine.look_at_machine(self.config.engine, list(required))
        self.host = own.host
        self.device = torch.device(own.device, own.local_rank) if own.gpu else torch.device(own.device)
        sources = [source for stage in self.stages for source in stage.config.data.sources.values()]
        files = {path for source in sources for path in (source.path, source.valid_path) if path}
        compiles_blocks = any(stage.config.engine.compile == "blocks" for stage in self.stages)

        def judge(values: list[Any]) -> bool:
            machines = self.all_machines = [machine.read_machine(each) for each, _ in values]
            problems = [problem for _, problem in values]
            wrong = [Finding("", "", problem, "") for problem in dict.fromkeys(filter(None, problems))]
            self.rows += [
                Row("configuration", ["wrong" if each else "fits this launch" for each in problems], wrong),
                Row("host", [each.host for each in machines]),
                *machine.check_versions(machines, required),
                *machine.check_devices(machines),
                machine.check_compilers(machines, compiles_blocks),
                *machine.check_limits(machines, len(files)),
            ]
            # A group of ranks on different kinds of devices cannot be formed.
            return not any(each.no_device for each in machines) and len({each.device for each in machines}) == 1

        self.can_form_group = self.ranks.gather_and_decide((asdict(own), launch_problem), judge)

    def data(self) -> None:
        """Check the data on the first rank of each host."""
        self.ranks.begin("data", self.effort.limit_s)
        state = None
        if self.ranks.gather_and_decide(self.host, list).index(self.host) == self.ranks.rank:
            seconds = min(self.effort.data_s, self.effort.limit_s / 2)
            state = asdict(self._locally(lambda: measurements.look_at_data(self.stages, seconds), DataState.failed))

        def judge(values: list[Any]) -> None:
            states = {rank: DataState(**value) for rank, value in enumerate(values) if value is not None}
            self.rows.append(measurements.check_data(states, self.all_machines))

        self.ranks.gather_and_decide(state, judge)

    def _locally(self, measure: Callable[[], T], failed: Callable[[str], T]) -> T:
        """Measure on this rank alone; return what `failed` makes of the problem where the disk gives no answer."""
        try:
            return run_bounded(measure, max(1.0, self.effort.limit_s - RESERVE_S))
        except OSError as error:
            return failed(f"{error.strerror or error}")
        except Overdue as error:
            return failed(str(error))

    def disks(self) -> None:
        """Write on all ranks at once, as in a save."""
        effort = self.effort
        self.ranks.begin("writing to run.root", effort.limit_s)
        # Before anything is written, which would change the folder's times.
        before = self._locally(lambda: measurements.look_at_disk(self.run_dir), DiskState.failed)
        need, unknown = self._storage_needed() if dist.is_main() else (None, "")

        def write() -> DiskState:
            size = effort.disk_mib * MIB
            if before.problem or before.free < 2 * size * self.ranks.size:
                return before  # that there is too little room for a run is a finding of its own
            rates, small_s = measurements.measure_writing(Path(before.folder), size, max(1.0, effort.limit_s / 3))
            return replace(before, rates=rates, small_s=small_s)

        def judge(values: list[Any]) -> None:
            states, timeout_s = [DiskState(**value) for value in values], self.config.engine.timeout_s
            self.rows += measurements.check_disks(states, self.all_machines, need, timeout_s, unknown)

        self.ranks.wait_for_all()
        written = self._locally(write, lambda problem: replace(before, problem=problem))
        self.ranks.gather_and_decide(asdict(written), judge)

    def _storage_needed(self) -> tuple[Storage | None, str]:
        """Return what the checkpoints of the run take; None and the reason where that is not known."""
        try:
            outlines = [outline(stage.config, stage.trainable, lora=stage.lora) for stage in self.stages]
            return checkpoint_storage(outlines, self.config.checkpoint.keep), ""
        except UserError as error:
            return None, "" if measurements.is_made_at_start(self.stages) else str(error)

    def computing(self) -> None:
        """Multiply matrices on all ranks at once."""
        self.ranks.begin("computing", self.effort.limit_s)
        self.ranks.wait_for_all()
        rates = measurements.measure_computing(self.device, self.config.engine.dtype)
        self.ranks.gather_and_decide(
            rates, lambda rates_RN: self.rows.append(measurements.check_computing(rates_RN, self.all_machines))
        )

    def network(self) -> None:
        """Form the process group as the training would; compare clocks and all-reduce in it."""
        config = replace(self.config.engine, kind="deepspeed", timeout_s=int(self.effort.limit_s + LATER_S))
        size, gather = self.effort.reduce_mib * MIB, self.ranks.gather_and_decide
        if self._works("process group", lambda: engine.start(config)) is None:
            return
        if (stamps := self._works("clock", lambda: measurements.stamp_barriers(self.device))) is None:
            return
        gather(stamps, lambda stamps_RN2: self.rows.append(measurements.check_clocks(stamps_RN2, self.all_machines)))
        if (seconds := self._works("all-reduce", lambda: measurements.measure_all_reduce(size, self.device))) is None:
            return
        gather(seconds, lambda seconds_RN: self.rows.append(measurements.show_all_reduce(size, seconds_RN)))
        self._works("leaving the process group", engine.stop)

    def _works(self, what: str, action: Callable[[], T]) -> T | None:
        """COLLECTIVE. Return the action's result, or None when it failed on some rank, which a row then names."""
        self.ranks.begin(what, self.effort.limit_s)
        problem, result = "", None
        try:
            result = action()
        except (RuntimeError, UserError) as error:  # torch's own: a peer is gone, or the network is not there
            problem = (str(error).splitlines() or [type(error).__name__])[0][:200]

        def judge(problems: list[str]) -> bool:
            if wrong := [rank for rank, each in enumerate(problems) if each]:
                fix = "look at the network between the hosts (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)"
                finding = Finding("E-DOC-24", name_ranks(wrong), f"{what} failed ({problems[wrong[0]]})", fix)
                self.rows.append(Row(what, ["failed" if each else "works" for each in problems], [finding]))
            return not wrong

        return result if self.ranks.gather_and_decide(problem, judge) else None
