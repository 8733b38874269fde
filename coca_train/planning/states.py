"""What an engine holds on one GPU besides activations, by its settings [bytes].

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
"""

from dataclasses import dataclass, replace

from coca_train.config.schema import EngineConfig

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
MOMENTS = 8  # Adam's two, float32
MOMENTUM = 4  # Muon's one, float32
MUON_STEP = 6  # its update, in float32 and in bfloat16
REDUCED_AT_ONCE = 500_000_000  # parameters DeepSpeed all-reduces in one go without ZeRO 2 (MEMORY_OPT_ALLREDUCE_SIZE)
SUB_GROUP = 1_000_000_000  # parameters ZeRO 3 steps at once (sub_group_size)
LIVE = 1_000_000_000  # parameters ZeRO 3 keeps gathered (stage3_max_live_parameters)
PREFETCHED = 50_000_000  # parameters it gathers at once ahead of their use (stage3_prefetch_bucket_size)


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a stage: all, those trained, those trained that are no matrices (norms, biases), and Muon's."""

    all: int
    trained: int
    trained_vectors: int
    of_muon: int = 0


@dataclass(frozen=True)
class States:
    """Bytes on one GPU.

    own_gradients: those of the parameters as autograd leaves them, which stay until the step. summed_gradients: where
    micro batches are added up, sharded or not. between: what of gradients and buckets is there from the start on, and
    stays between steps. afterwards: what is needed for a moment after backward. starting: the most that is held while
    the model is made. gathered: of sharded weights, while what they are of runs. arriving: those
    that come from other ranks, before they are put together: hidden in a step, where more is needed at another moment.
    """

    weights: int
    moments: int
    starting: int
    masters: int = 0
    own_gradients: int = 0
    summed_gradients: int = 0
    buckets: int = 0
    between: int = 0
    gathered: int = 0
    arriving: int = 0
    afterwards: int = 0

    @property
    def lasting(self) -> int:
        """There from the start to the end of a run."""
        return self.weights + self.masters + self.moments


def states(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, accumulates: bool) -> States:
    """By the table on top. accumulates: whether a step has more than one micro batch."""
    held = _local if engine.kind == "local" else (_zero_0, _zero_1, _zero_2, _zero_3)[engine.zero_stage]
    with_adam = held(engine, counts, n_gpus, accumulates)
    cut = engine.kind == "deepspeed" and engine.zero_stage > 0
    of_muon = _shard(counts.of_muon, n_gpus) if cut else counts.of_muon
    return replace(
        with_adam,
        moments=with_adam.moments - (MOMENTS - MOMENTUM) * of_muon,
        afterwards=max(with_adam.afterwards, MUON_STEP * of_muon if cut else 0),
    )


def _local(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, accumulates: bool) -> States:
    low, b = engine.dtype != "fp32", BYTES[engine.dtype]
    summed = 4 * counts.trained if low and accumulates else 0
    return States(
        weights=b * counts.all,
        masters=4 * counts.trained if low else 0,
        moments=MOMENTS * counts.trained,
        own_gradients=b * counts.trained,
        summed_gradients=summed,
        afterwards=2 * counts.trained if low and not accumulates else 0,
        starting=b * counts.all,
    )


def _zero_0(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, accumulates: bool) -> States:
    return States(
        weights=4 * counts.all,
        moments=MOMENTS * counts.trained,
        own_gradients=4 * counts.trained,
        afterwards=4 * min(counts.trained, REDUCED_AT_ONCE),
        starting=4 * counts.all,
    )


def _zero_1(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, accumulates: bool) -> States:
    b, shard = BYTES[engine.dtype], _shard(counts.trained, n_gpus)
    if engine.dtype == "bf16":
        matrices = counts.trained - counts.trained_vectors
        copied = bool(counts.trained_vectors) and matrices <= REDUCED_AT_ONCE
        summed, buckets, afterwards = 4 * counts.trained, 0, 4 * counts.trained if copied else 0
    else:
        summed, buckets = 0, b * engine.bucket_size
        afterwards = b * shard + (4 * shard if engine.dtype == "fp16" else 0)
    return States(
        weights=b * counts.all,
        masters=4 * shard,
        moments=MOMENTS * shard,
        own_gradients=b * counts.trained,
        summed_gradients=summed,
        buckets=buckets,
        between=summed,
        afterwards=afterwards,
        starting=_made_in_float32(b, counts),
    )


def _zero_2(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, accumulates: bool) -> States:
    b, shard = BYTES[engine.dtype], _shard(counts.trained, n_gpus)
    wide = engine.dtype == "bf16"  # sums in float32, in place of the flat copy
    overlapped = engine.overlap_communication is not False  # one bucket is filled while the other is sent
    afterwards = {"bf16": 0, "fp16": (b + 4) * shard, "fp32": b * shard}[engine.dtype]
    return States(
        weights=b * counts.all,
        masters=4 * shard,
        moments=MOMENTS * shard,
        summed_gradients=4 * shard if wide else b * shard * (2 if accumulates else 1),
        buckets=(b * (2 if overlapped else 1) + (4 if wide else 0)) * engine.bucket_size,
        afterwards=afterwards,
        starting=_made_in_float32(b, counts),
    )


def _zero_3(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, accumulates: bool) -> States:
    b, shard = BYTES[engine.dtype], _shard(counts.trained, n_gpus)
    sums = 4 if engine.dtype == "bf16" else b
    at_once, buffer = min(shard, SUB_GROUP), sums * engine.bucket_size  # which is copied rank by rank to be summed
    return States(
        weights=b * _shard(counts.all, n_gpus),
        masters=4 * shard,
        moments=MOMENTS * shard,
        summed_gradients=sums * shard,
        buckets=buffer + sums * min(engine.bucket_size, counts.trained),
        between=sums * shard + buffer,
        gathered=b * min(counts.all, LIVE) if n_gpus > 1 else 0,
        arriving=b * min(counts.all, PREFETCHED) if n_gpus > 1 else 0,
        afterwards=(sums + (4 if engine.dtype == "fp16" else 0)) * at_once,
        starting=b * _shard(counts.all, n_gpus),
    )


def _shard(n: int, n_gpus: int) -> int:
    return -(-n // n_gpus)


def _made_in_float32(b: int, counts: ParameterCounts) -> int:
    """ZeRO 1 and 2 get a float32 model, cast it, and copy what is trained into one flat tensor."""
    return max(4 * counts.all, b * (counts.all + counts.trained))
