"""What the GPUs of a run send one another in an optimizer step, and what its update moves, by the engine's settings.

Read from DeepSpeed 0.19.8 as `engine/deepspeed.py` sets it up, and held against it on ranks of a fake process
group (tests/planning/test_collectives.py). b: bytes of the compute dtype; g: of the gradients on their way
(communication_dtype: 4, 2 in bf16; left to us 4, in fp16 2); parameters are the trained ones but where all is said; M
micro batches a step. With gradient_reduction=owner an all-reduce is a reduce, but in ZeRO 0 and in bf16 ZeRO 1.

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
from dataclasses import dataclass

from coca_train.config.schema import EngineConfig
from coca_train.planning.states import BYTES, LIVE, ParameterCounts

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, REDUCE = "all-reduce", "all-gather", "reduce-scatter", "reduce"
ALL_TO_ALL = "all-to-all"
GRADIENTS, WEIGHTS, HEADS = "gradients", "weights", "tokens and heads"


@dataclass(frozen=True)
class Collective:
    """One kind of them in a step. nbytes: of all parameters it is about, in all of a step. per_parameter: of one of
    these, each time; 0: it is not about parameters. overlapped: with the computing of forward and backward. among: GPUs
    that take part, neighbours; 0: all."""

    name: str
    what: str
    per_parameter: int
    times: int
    nbytes: float
    overlapped: bool
    among: int = 0

    def sent(self, n_gpus: int) -> float:
        """Bytes that each GPU sends, by the ring algorithm; to each other one directly in an all-to-all."""
        n = self.among or n_gpus
        return self.nbytes * (n - 1) / n * (2 if self.name == ALL_REDUCE else 1)

    @property
    def text(self) -> str:
        """In words."""
        times = "" if self.times == 1 else f" x {self.times}"
        much = f"{self.per_parameter} B a parameter{times}" if self.per_parameter else f"in {self.times:,} calls"
        among = f" among {self.among}" if self.among else ""
        return f"{self.name} of {self.what}{among}, {much}" + (", overlapped" if self.overlapped else "")


def collectives(engine: EngineConfig, counts: ParameterCounts, n_gpus: int, n_micro_batches: int) -> list[Collective]:
    """By the table on top; those of a few numbers (counts, norms) are left out."""
    if n_gpus == 1 or engine.kind == "local":
        return []
    b, g = BYTES[engine.dtype], _of_gradient(engine)
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


def exchanged(nbytes: Sequence[int], n_ranks: int, n_micro_batches: int) -> list[Collective]:
    """What ranks that share sequences exchange in a step. nbytes: of each time in a micro batch, on one of them."""
    if n_ranks == 1:
        return []
    times = n_micro_batches * len(nbytes)
    return [Collective(ALL_TO_ALL, HEADS, 0, times, float(n_micro_batches * sum(nbytes)), False, n_ranks)]


def _of_gradient(engine: EngineConfig) -> int:
    """Bytes of one of its numbers on the way."""
    left_to_us = "fp16" if engine.dtype == "fp16" else "fp32"
    return BYTES[left_to_us if engine.communication_dtype == "auto" else engine.communication_dtype]


@dataclass(frozen=True)
class Update:
    """What an optimizer step moves besides forward, backward and collectives: gradients added up, their norm, clipping,
    AdamW (28 bytes a parameter in one pass: it is fused), weights rounded. Bytes a trained parameter: of all, and of
    the share a GPU updates; once a step and once a micro batch. Kernels a trained tensor in the same way."""

    of_all: float
    of_share: float
    of_all_each: float = 0.0
    of_share_each: float = 0.0
    kernels: float = 0.0
    kernels_each: float = 0.0

    def nbytes(self, n_trained: int, n_gpus: int, n_micro_batches: int) -> float:
        """In all, on each GPU."""
        of_all = self.of_all + self.of_all_each * n_micro_batches
        of_share = self.of_share + self.of_share_each * n_micro_batches
        return n_trained * (of_all + of_share / n_gpus)

    def n_kernels(self, n_tensors: int, n_micro_batches: int) -> int:
        """In all, on each GPU."""
        return round(n_tensors * (self.kernels + self.kernels_each * n_micro_batches))


# By engine, ZeRO stage and whether it is fp32 (fp16 as bf16); counted on the engines themselves.
LOCAL, DEEPSPEED = "local", "deepspeed"
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


def update(engine: EngineConfig) -> Update:
    """Of an engine."""
    return UPDATES[engine.kind, engine.zero_stage if engine.kind == DEEPSPEED else 0, engine.dtype == "fp32"]
