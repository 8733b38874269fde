"""What a step takes of the host: one thread launches every kernel and keeps the engine's books, and where that takes
longer than the device computes, it is the step.

Measured by `python -m benchmarks.host` on one core of an AMD EPYC (torch 2.13, DeepSpeed 0.19.8): steps of models so
narrow that computing is next to nothing. A launch on a GPU takes about as long as dispatching an operation there.
"""

from typing import NamedTuple

from coca_train.config.schema import EngineConfig

OPERATION_S = 13e-6  # of forward and backward, autograd's part included
AGAIN_S = 58e-6  # of what activation checkpointing runs again: it packs and unpacks every tensor that is kept


class Books(NamedTuple):
    """What an engine does for each trained tensor [s]: in every micro batch, and in an update; and for each tensor it
    gathers, every time."""

    micro_batch: float
    update: float
    gather: float = 0.0


LOCAL = Books(micro_batch=0.0, update=20e-6)
ZERO = {
    0: Books(micro_batch=0.0, update=35e-6),
    1: Books(micro_batch=5e-6, update=70e-6),
    2: Books(micro_batch=50e-6, update=35e-6),
    3: Books(micro_batch=0.0, update=35e-6, gather=155e-6),
}


class Counted(NamedTuple):
    """On one GPU. operations, again: of a micro batch, those computed again apart. trained: tensors."""

    operations: int
    again: int
    trained: int
    tensors: int
    micro_batches: int


def seconds(engine: EngineConfig, counted: Counted) -> float:
    """Of a step, in one thread of the host."""
    books = LOCAL if engine.kind == "local" else ZERO[engine.zero_stage]
    gatherings = 2 if engine.activation_checkpointing == "none" else 3  # forward, again, backward
    micro_batch_s = (
        counted.operations * OPERATION_S
        + counted.again * AGAIN_S
        + counted.trained * books.micro_batch
        + counted.tensors * gatherings * books.gather
    )
    return counted.micro_batches * micro_batch_s + counted.trained * books.update
