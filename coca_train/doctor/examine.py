"""An examination: what is measured in which order, each part bounded and announced."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from coca_train import engine
from coca_train.config.schema import Config
from coca_train.doctor import disk, machines, measured, network
from coca_train.doctor.compute import MOMENT_S, MOMENTS, compute_rates
from coca_train.doctor.disk import DiskState
from coca_train.doctor.facts import SMI_S, Facts, Pins, facts, pins
from coca_train.doctor.files import DataState, data_state, to_come
from coca_train.doctor.finding import Row
from coca_train.doctor.rates import offsets
from coca_train.doctor.roll import Overdue, Roll, bounded
from coca_train.doctor.table import conclusion, exit_code, findings, line_of, table
from coca_train.planning.outline import outline
from coca_train.planning.storage import Storage, storage
from coca_train.runtime import dist
from coca_train.runtime.errors import UserError
from coca_train.runtime.printing import n_bytes
from coca_train.schedule import Stage, resolve

T = TypeVar("T")
RESERVE_S = 5.0  # of a part's limit, for the ranks to say that a disk gives no answer
LATER_S = 60.0  # torch's own limit comes after ours, which names the rank


@dataclass(frozen=True)
class Effort:
    """How much is measured. limit_s: of each part; meet_s: of the meeting [seconds]. data_s: of blocks of data, and
    disk_mib: what each rank writes. reduce_mib: the largest all-reduce."""

    limit_s: float
    meet_s: float
    data_s: float
    disk_mib: int
    reduce_mib: int


def examine(config: Config, effort: Effort, launch_problem: str) -> int:
    """COLLECTIVE. Print the table on rank 0; the exit code, the same on every rank.

    launch_problem: what this rank's launch has against the configuration. Raises PeerLost, or ends the process with
    code 76, when a rank does not come.
    """
    with Roll(effort.meet_s) as roll:
        rows: list[Row] = []
        roll.last_words = lambda: print(table(rows, roll.size), *map(line_of, findings(rows)), sep="\n", flush=True)
        examination = _Examination(config, effort, roll, rows)
        examination.announce()
        examination.machines(launch_problem)
        examination.data()
        examination.disks()
        examination.computing()
        if roll.size > 1:
            examination.together()
        code = roll.agree(None, lambda _: exit_code(rows))
        if dist.is_main():
            print(table(rows, roll.size), conclusion(rows), sep="\n", end="", flush=True)
        roll.part("leaving", effort.limit_s)
        roll.leave()
    return code


class _Examination:
    """rows: filled on rank 0, as parts end."""

    def __init__(self, config: Config, effort: Effort, roll: Roll, rows: list[Row]) -> None:
        self.config, self.effort, self.roll, self.rows = config, effort, roll, rows
        self.stages: tuple[Stage, ...] = resolve(config)
        self.run_dir = Path(config.run.root) / config.run.name
        self.facts: list[Facts] = []  # of all ranks, on rank 0
        self.device = torch.device("cpu")  # of this rank

    def announce(self) -> None:
        """How long it will take, before it does."""
        n, effort = self.roll.size, self.effort
        seconds = 3 + effort.data_s + MOMENT_S * MOMENTS + effort.disk_mib / 50
        if n > 1:
            seconds += 5 + (network.REDUCE_S + 0.3) * len(network.reduce_sizes(effort.reduce_mib))
        dist.log(
            f"doctor    {n} rank{'s' * (n > 1)}: about {seconds:.0f} s, more where something is measured again; each "
            f"part at most limit_s={effort.limit_s:g} s"
        )

    def machines(self, launch_problem: str) -> None:
        """What each rank knows of itself."""
        self.roll.part("versions and limits", max(self.effort.limit_s, 2 * SMI_S))
        wanted: Pins = pins()
        own = facts(self.config.engine, wanted.names)
        self.device = torch.device(own.device, own.local_rank) if own.gpu else torch.device("cpu")
        sources = [source for stage in self.stages for source in stage.config.data.sources.values()]
        compiles_blocks = any(stage.config.engine.compile == "blocks" for stage in self.stages)
        files = {path for source in sources for path in (source.path, source.valid_path) if path}

        def judged(values: list[Any]) -> bool:
            self.facts = [Facts.read(each) for each, _ in values]
            self.rows += [machines.launch([problem for _, problem in values]), machines.hosts(self.facts)]
            self.rows += [
                *machines.versions(self.facts, wanted),
                *machines.devices(self.facts),
                machines.threads(self.facts),
                machines.compilers(self.facts, compiles_blocks),
            ]
            self.rows += [*machines.limits(self.facts, len(files)), machines.shared_memory(self.facts)]
            self.rows += [machines.environment(self.facts)]
            # A group of ranks on different kinds of devices cannot be formed.
            return not any(each.no_device for each in self.facts) and len({each.device for each in self.facts}) == 1

        self.has_devices = self.roll.agree((asdict(own), launch_problem), judged)
        self.host = own.host

    def data(self) -> None:
        """The first rank of each host looks."""
        self.roll.part("data", self.effort.limit_s)
        hosts = self.roll.agree(self.host, list)
        looks = hosts.index(self.host) == self.roll.rank
        state = None
        if looks:
            seconds = min(self.effort.data_s, self.effort.limit_s / 2)
            looked = self._local(lambda: data_state(self.stages, seconds), lambda text: DataState(problem=text), "data")
            state = asdict(looked)

        def judged(values: list[Any]) -> None:
            states = {rank: DataState(**value) for rank, value in enumerate(values) if value is not None}
            self.rows.append(measured.data(states, self.facts))

        self.roll.agree(state, judged)

    def _local(self, action: Callable[[], T], otherwise: Callable[[str], T], what: str) -> T:
        """A measurement of this rank alone, or what stands for it where the disk fails or gives no answer."""
        try:
            return bounded(action, max(1.0, self.effort.limit_s - RESERVE_S))
        except OSError as error:
            return otherwise(f"{error.strerror or error}")
        except Overdue as error:
            text = f"E-DOC-15 {what}: {error}. Fix: look at the disk or network folder that holds it"
            return otherwise(text if what == "data" else str(error))

    def disks(self) -> None:
        """All ranks write at once, as in a save."""
        effort = self.effort
        self.roll.part("room at run.root", effort.limit_s)
        state = self._local(lambda: disk.look(self.run_dir), lambda text: DiskState(problem=text), "disk")
        need, unknown = self._need() if dist.is_main() else (None, "")

        def writing(state: DiskState) -> DiskState:
            if state.problem:
                return state
            size = effort.disk_mib << 20
            if state.free < 2 * size * self.roll.size:
                return state  # too little to try; that it is too little for a run is told
            seconds = max(1.0, effort.limit_s / 3)
            rates, small_s = disk.write_speed(Path(state.folder), size, seconds)
            return replace(state, rates=rates, small_s=small_s)

        def speed() -> DiskState:
            return self._local(lambda: writing(state), lambda text: replace(state, problem=text), "disk")

        def judged(values: list[Any], slow: dict[Any, Any]) -> None:
            states = [DiskState(**{**value, "identity": tuple(value["identity"])}) for value in values]
            self.rows += measured.disks(states, self.facts, need, slow, self.config.engine.timeout_s, unknown)

        self._twice("writing to run.root", lambda: asdict(speed()), _slow_writing, judged)

    def _need(self) -> tuple[Storage | None, str]:
        """What the plan's checkpoints take; None: not known, and why."""
        try:
            outlines = [outline(stage.config, stage.trainable, lora=stage.lora) for stage in self.stages]
            return storage(outlines, self.config.checkpoint.keep), ""
        except UserError as error:
            return None, "" if to_come(self.stages) else str(error)

    def computing(self) -> None:
        """All ranks at once."""

        def judged(rates: list[Any], slow: dict[Any, Any]) -> None:
            self.rows.append(measured.compute(rates, self.facts, slow))

        rates = lambda: compute_rates(self.device, self.config.engine.dtype)  # noqa: E731
        self._twice("computing", rates, measured.slow_computing, judged)

    def _twice(
        self,
        name: str,
        measure: Callable[[], Any],
        slow_of: Callable[[list[Any]], dict[Any, Any]],
        judged: Callable[[list[Any], dict[Any, Any]], None],
    ) -> None:
        """COLLECTIVE. Measure on all ranks; again where somebody is slow, and only who is slow both times is named."""
        first: list[Any] = []

        def look(values: list[Any]) -> bool:
            first.extend(slow_of(values))
            if not first:
                judged(values, {})
            return bool(first)

        self.roll.part(name, self.effort.limit_s)
        self.roll.agree(None, lambda _: None)  # all begin together
        if self.roll.agree(measure(), look):
            self.roll.part(f"{name}, again", self.effort.limit_s)
            self.roll.agree(None, lambda _: None)
            self.roll.agree(measure(), lambda values: judged(values, measured.slow_in_both(first, slow_of(values))))

    def together(self) -> None:
        """The process group as the training would form it, and what goes through it."""
        if not self.has_devices:
            return
        roll, effort = self.roll, self.effort
        config = replace(self.config.engine, kind="deepspeed", timeout_s=int(effort.limit_s + LATER_S))
        if not self._works("process group", lambda: engine.start(config) is None):
            return
        stamps: list[Any] = []
        if not self._works("clock", lambda: stamps.extend(network.barrier_stamps(self.device))):
            return
        roll.agree(stamps, lambda values: self.rows.append(measured.clocks(offsets(values), self.facts)))
        if not self._links():
            return
        for size in network.reduce_sizes(effort.reduce_mib):
            seconds: list[float] = []

            def reducing(size: int = size, seconds: list[float] = seconds) -> None:
                how_often = lambda first_s: roll.agree(first_s, lambda values: network.repeats(max(values)))  # noqa: E731
                seconds.extend(network.reduce_seconds(size, self.device, how_often))

            if not self._works(f"all-reduce of {n_bytes(size)}", reducing):
                return
            roll.agree(seconds, lambda values, size=size: self.rows.append(measured.all_reduce(size, values)))
        self._works("leaving the process group", engine.stop)

    def _links(self) -> bool:
        phases = network.ring(self.roll.size)
        rates: list[dict[str, list[float]]] = []

        def measure() -> dict[str, list[float]]:
            worked = self._works("links", lambda: rates.append(network.link_rates(self.roll.rank, phases, self.device)))
            return rates[-1] if worked else {}

        def read(values: list[dict[str, list[float]]]) -> dict[tuple[int, int], list[float]]:
            named = {name: each for value in values for name, each in value.items()}
            pairs = {name: name.split("-") for name in named}
            return {(int(pairs[name][0]), int(pairs[name][1])): each for name, each in named.items()}

        def judged(values: list[Any], slow: dict[Any, Any]) -> None:
            if rates_L := read(values):
                self.rows.append(measured.links(rates_L, self.facts, slow))

        self._twice("links", measure, lambda values: measured.slow_of_links(read(values), self.facts), judged)
        return bool(rates)

    def _works(self, what: str, action: Callable[[], Any]) -> bool:
        """COLLECTIVE. Whether it worked on every rank; where it did not, a row says why."""
        self.roll.part(what, self.effort.limit_s)
        problem = ""
        try:
            action()
        except (RuntimeError, UserError) as error:  # torch's own: a peer is gone, or the network is not there
            problem = (str(error).splitlines() or [type(error).__name__])[0][:200]

        def judged(problems: list[str]) -> bool:
            if any(problems):
                self.rows.append(measured.failed(what, problems))
            return not any(problems)

        return self.roll.agree(problem, judged)


def _slow_writing(values: Sequence[dict[str, Any]]) -> dict[int, Any]:
    return measured.slow_writing([DiskState(**value) for value in values])
