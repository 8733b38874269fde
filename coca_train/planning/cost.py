"""A stage's whole cost: FLOPs, hours, memory, and the smallest change that makes it fit where it does not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, partial
from itertools import product

from coca_train.attention.rules import heads_shared
from coca_train.config.check import TRAINING, check_batches, check_slices
from coca_train.config.compose import Assembled
from coca_train.config.messages import ConfigError
from coca_train.config.rules import World
from coca_train.config.schema import Config
from coca_train.config.sizes import micro_batch_size
from coca_train.planning.activations import watch_activations
from coca_train.planning.hardware import Gpu, peak_of, rates_of
from coca_train.planning.memory import GpuMemory, gpu_memory
from coca_train.planning.meta_step import Flops, count_flops
from coca_train.planning.outline import Outline
from coca_train.planning.roofline import Step, count_step
from coca_train.settings import TRAIN
from coca_train.stages import Stage, fitted
from coca_train.tracking.throughput import Peak

MOST_GPUS = 4096
CHEAPEST = ("none", "selective", "full")  # ways of activation checkpointing, the fastest first


@dataclass(frozen=True)
class Change:
    """Options with another value; None: unchanged. The kinds of change, the most welcome first."""

    micro_batch_size: int | None = None
    activation_checkpointing: str | None = None
    zero_stage: int | None = None
    sequence_parallel: int | None = None
    n_gpus: int | None = None

    def typed(self, stage: str = "") -> str:
        """Return it as words of a command line. stage: for this stage alone."""
        place = f"stages.{stage}." if stage else ""
        words = {
            f"{place}train.micro_batch_size": self.micro_batch_size,
            f"{place}engine.activation_checkpointing": self.activation_checkpointing,
            f"{place}engine.zero_stage": self.zero_stage,
            f"{place}engine.sequence_parallel": self.sequence_parallel,
            "gpus": self.n_gpus,
        }
        return " ".join(f"{key}={value}" for key, value in words.items() if value is not None)

    def applied(self, config: Config) -> Config:
        """Return the configuration with it."""
        known = {key: value for key, value in asdict(self).items() if value is not None and key != "n_gpus"}
        train = {key: known.pop(key) for key in ("micro_batch_size",) if key in known}
        return replace(config, train=replace(config.train, **train), engine=replace(config.engine, **known))


def smallest_change(config: Config, n_gpus: int, fits: Callable[[Config, int], bool]) -> Change | None:
    """Return the first change that fits: one kind before two, in each the order of `Change`; None: nothing fits, or
    only more than MOST_GPUS.

    No change alters what is learned: the global batch stays as it is.
    """

    def kinds(change: Change) -> tuple[int, list[bool]]:
        changed = [value is not None for value in reversed(astuple(change))]
        return sum(changed), changed

    for change in sorted(_changes(config, n_gpus), key=kinds):  # stable: of one kind the nearest stays first
        n = change.n_gpus or n_gpus
        if fits(fitted(change.applied(config), n), n):
            return change
    return None


def _changes(config: Config, n_gpus: int) -> Iterator[Change]:
    """Yield every combination of other values that divides the global batch, of each option the nearest first."""
    train, engine = config.train, config.engine
    gpus: list[int | None] = [None]
    zero: list[int | None] = [None]
    shared: list[int | None] = [None]
    if engine.kind == "deepspeed":
        doubled = [n_gpus * 2**k for k in range(1, 13)]
        gpus += [n for n in doubled if n <= MOST_GPUS]
        zero += list(range(engine.zero_stage + 1, 4))
        shared += [n for n in (2, 4, 8, 16, 32) if n > engine.sequence_parallel and _can_share(config, n)]
    ways: list[str | None] = [None, *CHEAPEST[CHEAPEST.index(engine.activation_checkpointing) + 1 :]]
    for n, together in product(gpus, shared):
        n_readers, rest = divmod(n or n_gpus, together or engine.sequence_parallel)
        if rest or not n_readers or train.global_batch_size % n_readers:
            continue
        rows = train.global_batch_size // n_readers
        largest = micro_batch_size(train, replace(engine, sequence_parallel=1), n_readers)
        sizes: list[int | None] = [None, *(m for m in range(largest - 1, 0, -1) if rows % m == 0)]
        for z, recompute, m in product(zero, ways, sizes):
            if (change := Change(m, recompute, z, together, n)) != Change():
                yield change


def _can_share(config: Config, n_ranks: int) -> bool:
    """Return whether so many ranks can share each sequence."""
    engine = replace(config.engine, sequence_parallel=n_ranks)
    of_scheme = heads_shared(engine, config.layers, config.position, config.attention_pattern, config.model)
    return not [*check_slices(engine, config.model, config.train), *of_scheme]


@dataclass(frozen=True)
class Cluster:
    """The GPUs of a run. mfu: assumed model FLOPs utilisation (as in throughput.py); None: that of the counted step."""

    n_gpus: int
    gpu: Gpu
    mfu: float | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of one stage."""

    stage: Stage
    outline: Outline
    per_token: Flops
    n_tokens: int
    peak: Peak
    step: Step  # counted, on one GPU
    measured: dict[str, float] | None  # seconds of such a step on this machine, by part
    hours: float | None  # None: nothing is known of the GPU
    memory: dict[str, GpuMemory]  # activation checkpointing -> memory
    fits: bool
    change: Change | None  # the smallest that fits; None: it fits, or nothing does

    def cheapest(self, usable: float) -> str | None:
        """Return the fastest way of activation checkpointing that fits into so much [bytes]; None: none does."""
        return next((way for way in CHEAPEST if self.memory[way].total <= usable), None)


def plan_stage(
    stage: Stage,
    outline: Outline,
    cluster: Cluster,
    stages: Sequence[Stage] = (),
    measure: Callable[[Outline, float], dict[str, float]] | None = None,
) -> Cost:
    """Plan one stage, which `check_launch` has accepted. stages: of the whole run, which has as many GPUs. measure:
    times a step of so many micro batches on this machine; None: nothing is measured."""
    config = stage.config
    others = [other.config for other in stages if other.name != stage.name]
    watch = cache(partial(watch_activations, outline))  # no change below changes the model

    def fits(changed: Config, n_gpus: int) -> bool:
        # A run has one number of GPUs: what helps this stage must still divide the batches of the others.
        if any(any(check_batches(other.train, other.engine, World(0, n_gpus, 0))) for other in others):
            return False
        return gpu_memory(replace(outline, config=changed), n_gpus, cluster.gpu.kind, watch).total <= cluster.gpu.usable

    by_checkpointing = {}
    for checkpointing in CHEAPEST:
        engine = replace(config.engine, activation_checkpointing=checkpointing)
        other = replace(outline, config=replace(config, engine=engine))
        by_checkpointing[checkpointing] = gpu_memory(other, cluster.n_gpus, cluster.gpu.kind, watch)
    as_set = by_checkpointing[config.engine.activation_checkpointing].total <= cluster.gpu.usable
    per_token, tokens = count_flops(outline), n_tokens(stage)
    peak = peak_of(cluster.gpu, config.engine.dtype)
    step = count_step(outline, per_token, cluster.n_gpus, cluster.gpu.kind)
    measured = None if measure is None else measure(outline, step.n_micro_batches / config.engine.sequence_parallel)
    seconds = _step_seconds(step, cluster, peak, measured)
    hours = None if seconds is None else stage.max_steps * seconds / 3600
    change = None if as_set else smallest_change(config, cluster.n_gpus, fits)
    return Cost(stage, outline, per_token, tokens, peak, step, measured, hours, by_checkpointing, as_set, change)


def _step_seconds(step: Step, cluster: Cluster, peak: Peak, measured: dict[str, float] | None) -> float | None:
    """Return the seconds by mfu, else as counted, else as measured here; None: nobody knows."""
    if cluster.mfu is not None:
        return step.n_tokens * step.per_token.total / (peak.flops * cluster.mfu)
    if (rates := rates_of(cluster.gpu)) is not None:
        return step.seconds(rates)
    return sum(measured.values()) if measured and cluster.gpu.kind == "cpu" else None


def n_tokens(stage: Stage) -> int:
    """Return the tokens that a stage trains on."""
    train = stage.config.train
    return stage.max_steps * train.global_batch_size * train.seq_len


def check_launch(config: Config, cluster: Cluster) -> None:
    """Check the rules for a launch with this many processes; those about this machine do not hold for another one.

    Raises ConfigError with all problems, UserError for a GPU that does not compute in the dtype.
    """
    sections = {**vars(config), "world": World(0, cluster.n_gpus, 0)}
    if problems := TRAINING.problems(sections, ["launch"]):
        raise ConfigError(problems, Assembled(TRAIN, asdict(config), problems=problems).lines())
    peak_of(cluster.gpu, config.engine.dtype)
