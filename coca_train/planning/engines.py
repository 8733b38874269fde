"""What an engine holds, sends and moves on one GPU besides activations, by its settings.

P parameters, T of them trained, N GPUs, b bytes of the compute dtype. Published figures it must give: 16 bytes a
parameter for Adam in mixed precision, and with ZeRO 1, 2, 3 on 64 GPUs 31.4, 16.6 and 1.9 GB for 7.5B parameters
(Rajbhandari et al., arXiv 1910.02054, figure 1). Read from DeepSpeed 0.19.8, as `engine/deepspeed.py` sets it up:

| engine         | weights | masters | Adam | gradients                   | for a moment afterwards                 |
|----------------|---------|---------|------|-----------------------------|-----------------------------------------|
| local fp32     | 4P      |         | 8T   | 4T                          |                                         |
| local bf16     | 2P      | 4T      | 8T   | 2T; accumulating: 2T + 4T   | 2T; accumulating: nothing               |
| ZeRO 0, fp32   | 4P      |         | 8T   | 4T                          | 4T, in buckets of 5e8                   |
| ZeRO 1, bf16   | 2P      | 4T/N    | 8T/N | 2T + 4T (not sharded)       | 4T, if there are at most 5e8 and norms  |
| ZeRO 1, others | bP      | 4T/N    | 8T/N | bT                          | a flat copy, bT/N; fp16: + 4T/N         |
| ZeRO 2         | bP      | 4T/N    | 8T/N | bT/N; bf16: 4T/N            | a flat copy, bT/N; fp16: + 4T/N; bf16: - |
| ZeRO 3         | bP/N    | 4T/N    | 8T/N | bT/N; bf16: 4T/N            | a flat copy of at most 1e9; fp16: + 4   |

Muon keeps 4 bytes where Adam keeps 8; where ZeRO cuts its matrices, a step takes 6 of its part for a moment.

What GPUs send in a step, compared with DeepSpeed on a fake process group (tests/planning/test_collectives.py), in bytes
a parameter: g of gradients (communication_dtype: 4, in fp16 2), b as above. Parameters are the trained ones unless it
says all; M micro batches a step. With gradient_reduction=owner an
all-reduce is a reduce, but in ZeRO 0 and in bf16 ZeRO 1.

| engine        | gradients                                     | weights                                       |
|---------------|-----------------------------------------------|-----------------------------------------------|
| ZeRO 0 (fp32) | all-reduce, g, after the last backward        |                                               |
| ZeRO 1        | all-reduce, g, after the last one             | all-gather, b, after the update               |
| ZeRO 2        | all-reduce, g, in each backward               | all-gather, b, after the update               |
| ZeRO 3        | reduce-scatter, g, in each backward           | all-gather of all, b: 2 M times, forward and  |
|               |                                               | backward; M times where all stay so (LIVE)    |

What runs in a backward pass, and the gathers of ZeRO 3, is overlapped unless overlap_communication=false.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coca_train.config.schema import EngineConfig

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
MOMENTS = 8  # Adam's two, float32
MOMENTUM = 4  # of an optimizer with one, float32
MUON_STEP = 6  # its update, in float32 and in bfloat16
REDUCED_AT_ONCE = 500_000_000  # parameters DeepSpeed all-reduces in one go without ZeRO 2 (MEMORY_OPT_ALLREDUCE_SIZE)
SUB_GROUP = 1_000_000_000  # parameters ZeRO 3 steps at once (sub_group_size)
LOCAL, DEEPSPEED = "local", "deepspeed"
LIVE = 1_000_000_000  # parameters ZeRO 3 keeps gathered (stage3_max_live_parameters)


def engine_and_stage(engine: EngineConfig) -> tuple[str, int]:
    """Return the engine and its ZeRO stage, 0 where it has none."""
    return engine.kind, engine.zero_stage if engine.kind == DEEPSPEED else 0


def shards_optimizer(engine: EngineConfig) -> bool:
    """Return whether each GPU updates a part of the parameters alone."""
    return engine_and_stage(engine)[1] > 0


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters of a stage."""

    all: int
    trained: int
    trained_vectors: int  # norms and biases
    of_muon: int = 0
    with_one_moment: int = 0  # trained, of an optimizer that keeps one number for each where Adam keeps two
    at_once: int = 0  # that ZeRO 3 gathers in one call: what it prefetches, or the largest


@dataclass(frozen=True)
class States:
    """Bytes on one GPU."""

    weights: int
    moments: int
    starting: int  # the most while the model is built
    masters: int = 0
    own_gradients: int = 0  # as autograd leaves them, until the step
    summed_gradients: int = 0  # accumulated over micro batches, sharded or not
    buckets: int = 0
    between: int = 0  # gradients and buckets that stay between steps
    gathered: int = 0  # sharded weights, while their modules run
    arriving: int = 0  # weights on their way from other ranks; in a step another moment needs more
    afterwards: int = 0  # for a moment after backward

    @property
    def lasting(self) -> int:
        """Bytes that last from the start to the end of a run."""
        return self.weights + self.masters + self.moments


def engine_states(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, accumulates: bool) -> States:
    """Return what an engine holds, by the table on top. accumulates: whether a step has more than one micro batch."""
    zero, sharded = engine_and_stage(engine)[1], shards_optimizer(engine)
    b, low, trained = BYTES[engine.dtype], engine.dtype != "fp32", counts.trained

    def updated(n: int) -> int:
        return -(-n // n_gpus) if sharded else n

    shard, weights = updated(trained), b * (updated(counts.all) if zero == 3 else counts.all)
    held = States(
        weights=weights,
        masters=4 * shard if low or sharded else 0,
        moments=MOMENTS * shard - (MOMENTS - MOMENTUM) * updated(counts.with_one_moment),
        own_gradients=b * trained if zero < 2 else 0,
        # ZeRO 1 and 2 get a float32 model, cast it, and copy what is trained into one flat tensor.
        starting=max(4 * counts.all, b * (counts.all + trained)) if zero in (1, 2) else weights,
    )
    if zero == 0:
        held = _unsharded(held, engine, counts, accumulates)
    elif zero == 1:
        held = _zero_1(held, engine, counts, shard)
    elif zero == 2:
        held = _zero_2(held, engine, shard, accumulates)
    else:
        held = _zero_3(held, engine, counts, shard, n_gpus)
    of_muon = MUON_STEP * updated(counts.of_muon) if sharded else 0
    return replace(held, afterwards=max(held.afterwards, of_muon))


def _unsharded(held: States, engine: EngineConfig, counts: ParameterCounts, accumulates: bool) -> States:
    if engine.kind == DEEPSPEED:  # float32 alone
        return replace(held, afterwards=4 * min(counts.trained, REDUCED_AT_ONCE))
    if engine.dtype == "fp32":
        return held
    if accumulates:
        return replace(held, summed_gradients=4 * counts.trained)
    return replace(held, afterwards=2 * counts.trained)


def _zero_1(held: States, engine: EngineConfig, counts: ParameterCounts, shard: int) -> States:
    b = BYTES[engine.dtype]
    if engine.dtype != "bf16":
        afterwards = (b + (4 if engine.dtype == "fp16" else 0)) * shard
        return replace(held, buckets=b * engine.bucket_size, afterwards=afterwards)
    matrices, summed = counts.trained - counts.trained_vectors, 4 * counts.trained
    copied = bool(counts.trained_vectors) and matrices <= REDUCED_AT_ONCE
    return replace(held, summed_gradients=summed, between=summed, afterwards=summed if copied else 0)


def _zero_2(held: States, engine: EngineConfig, shard: int, accumulates: bool) -> States:
    b, overlapped = BYTES[engine.dtype], engine.overlap_communication is not False
    filled = b * (2 if overlapped else 1)  # one bucket is filled while the other is sent
    if engine.dtype == "bf16":  # sums in float32, in place of the flat copy
        return replace(held, summed_gradients=4 * shard, buckets=(filled + 4) * engine.bucket_size)
    summed = b * shard * (2 if accumulates else 1)
    afterwards = (b + (4 if engine.dtype == "fp16" else 0)) * shard
    return replace(held, summed_gradients=summed, buckets=filled * engine.bucket_size, afterwards=afterwards)


def _zero_3(held: States, engine: EngineConfig, counts: ParameterCounts, shard: int, n_gpus: int) -> States:
    b = BYTES[engine.dtype]
    sums = 4 if engine.dtype == "bf16" else b
    buffer = sums * engine.bucket_size  # which is copied rank by rank to be summed
    return replace(
        held,
        summed_gradients=sums * shard,
        buckets=buffer + sums * min(engine.bucket_size, counts.trained),
        between=sums * shard + buffer,
        gathered=b * min(counts.all, LIVE) if n_gpus > 1 else 0,
        arriving=b * min(counts.all, counts.at_once) if n_gpus > 1 else 0,
        afterwards=(sums + (4 if engine.dtype == "fp16" else 0)) * min(shard, SUB_GROUP),
    )


# ---- what a step sends and moves

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, REDUCE = "all-reduce", "all-gather", "reduce-scatter", "reduce"
ALL_TO_ALL = "all-to-all"
GRADIENTS, WEIGHTS, HEADS = "gradients", "weights", "tokens and heads"


@dataclass(frozen=True)
class Collective:
    """A collective operation, and how often a step calls it."""

    name: str
    what: str
    per_parameter: int  # bytes of a parameter in each call; 0: no parameters are sent
    times: int
    nbytes: float  # in all calls of a step
    overlapped: bool  # with forward and backward
    among: int = 0  # neighbouring GPUs that take part; 0: all

    def sent(self, n_gpus: int) -> float:
        """Return the bytes that each GPU sends, by the ring algorithm (all-to-all: to each other one directly)."""
        n = self.among or n_gpus
        return self.nbytes * (n - 1) / n * (2 if self.name == ALL_REDUCE else 1)

    @property
    def text(self) -> str:
        """The collective in words."""
        times = "" if self.times == 1 else f" x {self.times}"
        much = f"{self.per_parameter} B a parameter{times}" if self.per_parameter else f"in {self.times:,} calls"
        among = f" among {self.among}" if self.among else ""
        return f"{self.name} of {self.what}{among}, {much}" + (", overlapped" if self.overlapped else "")


def collectives(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, n_micro_batches: int) -> list[Collective]:
    """Return what a step sends, by the table on top; those of a few numbers (counts, norms) are left out."""
    if n_gpus == 1 or engine.kind == "local":
        return []
    b, g = BYTES[engine.dtype], _gradient_bytes(engine)
    overlapped = engine.zero_stage >= 2 and engine.overlap_communication is not False

    def of(name: str, what: str, per_parameter: int, n: int, times: int = 1, overlapped: bool = False) -> Collective:
        return Collective(name, what, per_parameter, times, per_parameter * n * times, overlapped)

    trained = counts.trained
    if engine.zero_stage == 0:
        return [of(ALL_REDUCE, GRADIENTS, g, trained)]
    if engine.zero_stage < 3:
        # ZeRO 1 in bf16 is an optimizer of its own in DeepSpeed, which knows no owners.
        to_owner = engine.gradient_reduction == "owner" and (engine.zero_stage, engine.dtype) != (1, "bf16")
        times = n_micro_batches if engine.zero_stage == 2 else 1
        reduced = of(REDUCE if to_owner else ALL_REDUCE, GRADIENTS, g, trained, times, overlapped)
        return [reduced, of(ALL_GATHER, WEIGHTS, b, trained)]
    gathers = n_micro_batches * (1 if counts.all <= LIVE else 2)
    return [
        of(ALL_GATHER, WEIGHTS, b, counts.all, gathers, overlapped),
        of(REDUCE_SCATTER, GRADIENTS, g, trained, n_micro_batches, overlapped),
    ]


def exchanges(nbytes: Sequence[int], n_ranks: int, n_micro_batches: int) -> list[Collective]:
    """Return what ranks that share sequences exchange in a step. nbytes: of each time in a micro batch, on one rank."""
    if n_ranks == 1:
        return []
    times = n_micro_batches * len(nbytes)
    return [Collective(ALL_TO_ALL, HEADS, 0, times, float(n_micro_batches * sum(nbytes)), False, n_ranks)]


def _gradient_bytes(engine: EngineConfig) -> int:
    """Return the bytes of one of its numbers on the way."""
    left_to_us = "fp16" if engine.dtype == "fp16" else "fp32"
    return BYTES[left_to_us if engine.communication_dtype == "auto" else engine.communication_dtype]


@dataclass(frozen=True)
class Update:
    """What an optimizer step moves besides forward, backward and collectives: gradients added up, their norm, clipping,
    AdamW (28 bytes a parameter in one pass: it is fused), weights rounded.

    Bytes a trained parameter and kernels a trained tensor, once a step; `_each`: once a micro batch.
    """

    of_all: float
    of_share: float  # of the parameters that a GPU updates
    of_all_each: float = 0.0
    of_share_each: float = 0.0
    kernels: float = 0.0
    kernels_each: float = 0.0

    def nbytes(self, n_trained: int, n_gpus: int, n_micro_batches: int) -> float:
        """Return the bytes of a step on each GPU."""
        of_all = self.of_all + self.of_all_each * n_micro_batches
        of_share = self.of_share + self.of_share_each * n_micro_batches
        return n_trained * (of_all + of_share / n_gpus)

    def n_kernels(self, n_tensors: int, n_micro_batches: int) -> int:
        """Return the kernels of a step on each GPU."""
        return round(n_tensors * (self.kernels + self.kernels_each * n_micro_batches))


# By engine, ZeRO stage and whether it is fp32 (fp16 as bf16); counted on the engines themselves.
UPDATES = {
    (LOCAL, 0, True): Update(40, 0, kernels=0.5, kernels_each=0.2),
    (LOCAL, 0, False): Update(34, 0, 18, kernels=0.5, kernels_each=2.2),
    (DEEPSPEED, 0, True): Update(64, 0, kernels=2, kernels_each=0.2),
    (DEEPSPEED, 1, True): Update(24.4, 87.1, kernels=4.5, kernels_each=0.2),
    (DEEPSPEED, 1, False): Update(33.3, 55.3, 18, kernels=2.5, kernels_each=2.2),
    (DEEPSPEED, 2, True): Update(0, 60, 17.1, 25.8, kernels=3, kernels_each=0.7),
    (DEEPSPEED, 2, False): Update(0, 74, 20, 18, kernels=5.4, kernels_each=0.7),
    (DEEPSPEED, 3, True): Update(0, 68, 16, 24, kernels=4.3, kernels_each=1.3),
    (DEEPSPEED, 3, False): Update(0, 66, 16, 18, kernels=4.3, kernels_each=1.3),
}


def engine_update(engine: EngineConfig) -> Update:
    """Return what an engine's update moves."""
    return UPDATES[*engine_and_stage(engine), engine.dtype == "fp32"]
