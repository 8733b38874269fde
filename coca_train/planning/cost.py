"""A stage's whole cost: a step counted by part, its hours and memory, and the smallest change that makes it fit.

Forward and backward of the step are those of the model itself (meta_step.py), a kernel for each operation: what
compiled blocks save is not counted. Update and communication are the engine's (engines.py). Times are sums of the
longer of moving a kernel's bytes and computing its FLOPs. What the host has to do for it (hardware.py) is the step
where it takes longer.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from typing import NamedTuple

import torch

from coca_train.attention.rules import heads_shared
from coca_train.checkpoint.format import file_size
from coca_train.config.check import TRAINING, check_batches, check_slices
from coca_train.config.compose import Assembled
from coca_train.config.messages import ConfigError
from coca_train.config.rules import World
from coca_train.config.schema import Config
from coca_train.config.sizes import micro_batch_size
from coca_train.engine.base import spec_of
from coca_train.engine.optim import MUON
from coca_train.models.lora import named_parameters
from coca_train.planning.count import (
    ATTENTION,
    COMMUNICATION,
    ELEMENTWISE,
    FORWARD,
    LINEAR,
    LOSS,
    OPTIMIZER,
    RECOMPUTED,
    Operation,
)
from coca_train.planning.engines import (
    GRADIENTS,
    Collective,
    ParameterCounts,
    collectives,
    engine_update,
    exchanges,
    shards_optimizer,
)
from coca_train.planning.hardware import GPUS, Gpu, Rates, host_seconds, peak_of, rates_of
from coca_train.planning.memory import Activations, GpuMemory, gpu_memory, watch_activations
from coca_train.planning.meta_step import Flops, count_flops, count_micro_batch
from coca_train.planning.outline import Outline
from coca_train.settings import TRAIN
from coca_train.stages import Stage, fitted
from coca_train.tracking.throughput import Peak

PARTS = (LOSS, ATTENTION, LINEAR, ELEMENTWISE, RECOMPUTED)
MOST_GPUS = 4096
CHEAPEST = ("none", "selective", "full")  # ways of activation checkpointing, the fastest first


# ---- a step


class Row(NamedTuple):
    """A part of a step on one GPU, over all micro batches."""

    kernels: float  # of communication: collectives
    nbytes: float
    flops: float
    seconds: tuple[float, ...]  # at each of the rates


@dataclass(frozen=True)
class Step:
    """A step on each of n_gpus."""

    outline: Outline
    n_gpus: int
    kernels: tuple[Operation, ...]  # of one micro batch
    collectives: tuple[Collective, ...]
    syncs: Counter[str]
    per_token: Flops
    saved: int  # of a checkpoint [bytes]

    @property
    def n_micro_batches(self) -> int:
        """Micro batches of a step on one GPU, which has a slice of each where GPUs share sequences."""
        return n_micro_batches(self.outline.config, self.n_gpus)

    @property
    def n_tokens(self) -> int:
        """Tokens of a step on one GPU."""
        train = self.outline.config.train
        return train.global_batch_size * train.seq_len // self.n_gpus

    def rows(self, rates: Iterable[Rates]) -> dict[str, Row]:
        """Return a row for each part of the step."""
        rates, n = tuple(rates), self.n_micro_batches
        rows = {}
        for part in PARTS:
            kernels = [kernel for kernel in self.kernels if kernel.part == part]
            nbytes, flops = sum(each.nbytes for each in kernels), sum(each.flops for each in kernels)
            seconds = tuple(n * sum(map(each.seconds, kernels)) for each in rates)
            rows[part] = Row(n * len(kernels), n * nbytes, n * flops, seconds)
        rows[OPTIMIZER] = self._optimizer(rates)
        rows[COMMUNICATION] = self._communication(rates)
        return {name: row for name, row in rows.items() if row.kernels}

    def device_seconds(self, rates: Rates) -> float:
        """Return the time that the GPU computes and waits in a step."""
        return sum(row.seconds[0] for row in self.rows([rates]).values())

    @cached_property
    def host_seconds(self) -> float:
        """The time of the host's thread for a step."""
        n_again = sum(kernel.part == RECOMPUTED for kernel in self.kernels)
        return host_seconds(
            self.outline.config.engine,
            operations=len(self.kernels) - n_again,
            again=n_again,
            trained=len(self.outline.trained),
            tensors=len(dict(named_parameters(self.outline.model))),
            micro_batches=self.n_micro_batches,
        )

    def seconds(self, rates: Rates) -> float:
        """Return the longer of the device's and the host's time."""
        return max(self.device_seconds(rates), self.host_seconds)

    def mfu(self, rates: Rates, seconds: float) -> float:
        """Return the FLOPs of the model (without recomputation) as a share of the peak."""
        peak = peak_of(GPUS[rates.gpu], self.outline.config.engine.dtype).flops
        return self.per_token.total * self.n_tokens / (seconds * peak)

    def _optimizer(self, rates: tuple[Rates, ...]) -> Row:
        engine = self.outline.config.engine
        moved = engine_update(engine)
        nbytes = moved.nbytes(self.outline.n_trained, self.n_gpus, self.n_micro_batches)
        n_kernels = moved.n_kernels(len(self.outline.trained), self.n_micro_batches)
        # Where ZeRO cuts matrices, each of them is one GPU's to orthogonalise.
        flops = muon_flops(self.outline) / (self.n_gpus if shards_optimizer(engine) else 1)
        shape = (torch.Size(), torch.bfloat16)
        computing = Operation(OPTIMIZER, None, FORWARD, "muon", (shape,), (shape,), (), (), flops)
        seconds = (each.moving(nbytes, n_kernels) + each.seconds(computing) * bool(flops) for each in rates)
        return Row(n_kernels, nbytes, flops, tuple(seconds))

    def _communication(self, rates: tuple[Rates, ...]) -> Row:
        """Return the collectives' row. Overlapped ones cost only what exceeds the computation, those of gradients what
        exceeds the backward pass."""

        def sent(collectives: Iterable[Collective]) -> float:
            return sum(each.sent(self.n_gpus) for each in collectives)

        waited_for = [each for each in self.collectives if not each.overlapped]
        overlapped = [each for each in self.collectives if each.overlapped]
        of_gradients = sent(each for each in overlapped if each.what == GRADIENTS)
        seconds = []
        for each in rates:
            computing = self.n_micro_batches * sum(each.seconds(kernel) for kernel in self.kernels)
            forward = self.n_micro_batches * sum(each.seconds(k) for k in self.kernels if k.phase == FORWARD)
            link = each.link(self.n_gpus)
            longer = max(0.0, sent(overlapped) / link - computing, of_gradients / link - (computing - forward))
            waiting = sum(one.sent(self.n_gpus) / each.link(one.among or self.n_gpus) for one in waited_for)
            seconds.append(waiting + longer)
        return Row(len(self.collectives), sent(self.collectives), 0, tuple(seconds))


def n_micro_batches(config: Config, n_gpus: int) -> int:
    """Return the micro batches of a step on each of n_gpus."""
    train = config.train
    return train.global_batch_size * config.engine.sequence_parallel // (train.micro_batch_size * n_gpus)


def muon_flops(outline: Outline) -> float:
    """Return the FLOPs of Muon's products in a step.

    In each of five iterations, of a matrix of m rows and n columns, m the fewer: X X', its square, their sum times X.
    """
    parameters = dict(named_parameters(outline.model))
    shapes = [sorted(parameters[name].shape) for name, kept in outline.moments.items() if kept == MUON]
    return 5.0 * sum(4 * m * m * n + 2 * m**3 for m, n in shapes)


def split_kernels(operations: Iterable[Operation]) -> list[Operation]:
    """Return the kernel of each operation; two for the backward of a norm, whose sums over tokens run the other way."""
    kernels = []
    for each in operations:
        if each.name != "native_layer_norm_backward":
            kernels.append(each)
            continue
        by_rows = tuple(nbytes for nbytes in each.writes if nbytes == each.reads[0])
        by_columns = tuple(nbytes for nbytes in each.writes if nbytes != each.reads[0])
        kernels += [each._replace(writes=writes) for writes in (by_rows, by_columns) if writes]
    return kernels


def count_step(outline: Outline, per_token: Flops, n_gpus: int, device: str) -> Step:
    """Count a stage's step on each of n_gpus. device: cpu or cuda, whose kernels are chosen."""
    engine, micro_batches = outline.config.engine, n_micro_batches(outline.config, n_gpus)
    count = count_micro_batch(outline, device)
    counts = ParameterCounts(outline.n_parameters, outline.n_trained, 0)
    sent = collectives(engine, counts, n_gpus, micro_batches)
    sent += exchanges(count.exchanged, engine.sequence_parallel, micro_batches)
    saved = file_size(spec_of(outline.model, outline.moments))
    return Step(outline, n_gpus, tuple(split_kernels(count.operations)), tuple(sent), count.syncs, per_token, saved)


# ---- the smallest change that fits

Change = dict[str, int | str]  # options with another value
# The kinds of change, the most welcome first. None of them alters what is learned: the global batch stays as it is.
KINDS = (
    "train.micro_batch_size",
    "engine.activation_checkpointing",
    "engine.zero_stage",
    "engine.sequence_parallel",
    "gpus",
)


def typed(change: Change, stage: str = "") -> str:
    """Return a change as words of a command line. stage: for this stage alone."""
    place = f"stages.{stage}." if stage else ""
    return " ".join(f"{'' if key == 'gpus' else place}{key}={value}" for key, value in change.items())


def applied(change: Change, config: Config) -> Config:
    """Return the configuration with a change."""
    values: dict[str, dict[str, int | str]] = {"train": {}, "engine": {}}
    for key, value in change.items():
        section, _, option = key.rpartition(".")
        if section:
            values[section][option] = value
    train, engine = replace(config.train, **values["train"]), replace(config.engine, **values["engine"])
    return replace(config, train=train, engine=engine)


def smallest_change(config: Config, n_gpus: int, fits: Callable[[Config, int], bool]) -> Change | None:
    """Return the first change that fits: one kind before two, in each the order of KINDS; None: nothing fits, or only
    more than MOST_GPUS."""

    def welcome(candidate: tuple[Change, int]) -> tuple[int, list[bool]]:
        return len(candidate[0]), [kind in candidate[0] for kind in reversed(KINDS)]

    for change, n in sorted(_changes(config, n_gpus), key=welcome):  # stable: of one kind the nearest stays first
        if fits(fitted(applied(change, config), n), n):
            return change
    return None


def _changes(config: Config, n_gpus: int) -> Iterator[tuple[Change, int]]:
    """Yield every combination of other values that divides the global batch, of each option the nearest first, and the
    GPUs there are then."""
    train, engine = config.train, config.engine
    gpus: list[int | None] = [None]
    zero: list[int | None] = [None]
    shared: list[int | None] = [None]
    if engine.kind == "deepspeed":
        gpus += [n_gpus * 2**k for k in range(1, 13) if n_gpus * 2**k <= MOST_GPUS]
        zero += range(engine.zero_stage + 1, 4)
        shared += [n for n in (2, 4, 8, 16, 32) if n > engine.sequence_parallel and _can_share(config, n)]
    ways: list[str | None] = [None, *CHEAPEST[CHEAPEST.index(engine.activation_checkpointing) + 1 :]]
    for n, together in product(gpus, shared):
        n_readers, rest = divmod(n or n_gpus, together or engine.sequence_parallel)
        if rest or not n_readers or train.global_batch_size % n_readers:
            continue
        rows = train.global_batch_size // n_readers
        largest = micro_batch_size(train, replace(engine, sequence_parallel=1), n_readers)
        sizes: list[int | None] = [None, *(m for m in range(largest - 1, 0, -1) if rows % m == 0)]
        for z, way, m in product(zero, ways, sizes):
            values = zip(KINDS, (m, way, z, together, n), strict=True)
            if change := {kind: value for kind, value in values if value is not None}:
                yield change, n or n_gpus


def _can_share(config: Config, n_ranks: int) -> bool:
    """Return whether so many ranks can share each sequence."""
    engine = replace(config.engine, sequence_parallel=n_ranks)
    of_scheme = heads_shared(engine, config.layers, config.position, config.attention_pattern, config.model)
    return not [*check_slices(engine, config.model, config.train), *of_scheme]


# ---- a stage


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
    cluster: Cluster
    others: tuple[Config, ...]  # of the run's other stages
    per_token: Flops
    peak: Peak
    step: Step  # counted, on one GPU
    hours: float | None  # None: nothing is known of the GPU
    memory: dict[str, GpuMemory]  # activation checkpointing -> memory
    watch: Callable[..., Activations]  # of this outline

    @property
    def n_tokens(self) -> int:
        """Tokens of the stage."""
        return n_tokens(self.stage)

    @property
    def checkpointing(self) -> str:
        """The way of activation checkpointing that is set."""
        return self.stage.config.engine.activation_checkpointing

    @property
    def as_set(self) -> GpuMemory:
        """The memory of one GPU as the stage is configured."""
        return self.memory[self.checkpointing]

    @property
    def fits(self) -> bool:
        """Whether one GPU has the memory."""
        return self.as_set.total <= self.cluster.gpu.usable

    @property
    def report_fits(self) -> bool:
        """Whether the report of the run fits too."""
        return self.as_set.report <= self.cluster.gpu.usable

    @property
    def fastest(self) -> str | None:
        """The fastest way of activation checkpointing that fits; None: none does."""
        usable = self.cluster.gpu.usable
        return next((way for way in CHEAPEST if self.memory[way].total <= usable), None)

    @cached_property
    def change(self) -> Change | None:
        """The smallest change that fits; None: it fits, or nothing does."""
        gpu = self.cluster.gpu

        def fits(changed: Config, n_gpus: int) -> bool:
            # A run has one number of GPUs: what helps this stage must still divide the batches of the others.
            if any(any(check_batches(other.train, other.engine, World(0, n_gpus, 0))) for other in self.others):
                return False
            outline = replace(self.outline, config=changed)
            return gpu_memory(outline, n_gpus, gpu.kind, self.watch).total <= gpu.usable

        return None if self.fits else smallest_change(self.stage.config, self.cluster.n_gpus, fits)


def plan_stage(stage: Stage, outline: Outline, cluster: Cluster, stages: Sequence[Stage] = ()) -> Cost:
    """Plan one stage, which `check_launch` has accepted. stages: of the whole run, which has as many GPUs."""
    config, gpu = stage.config, cluster.gpu
    watch = cache(partial(watch_activations, outline))  # no change alters the model
    memory = {}
    for way in CHEAPEST:
        changed = replace(config, engine=replace(config.engine, activation_checkpointing=way))
        memory[way] = gpu_memory(replace(outline, config=changed), cluster.n_gpus, gpu.kind, watch)
    per_token, peak = count_flops(outline), peak_of(gpu, config.engine.dtype)
    step, rates = count_step(outline, per_token, cluster.n_gpus, gpu.kind), rates_of(gpu)
    seconds = None
    if cluster.mfu is not None:
        seconds = step.n_tokens * per_token.total / (peak.flops * cluster.mfu)
    elif rates is not None:
        seconds = step.seconds(rates)
    hours = None if seconds is None else stage.max_steps * seconds / 3600
    others = tuple(other.config for other in stages if other.name != stage.name)
    return Cost(stage, outline, cluster, others, per_token, peak, step, hours, memory, watch)


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
