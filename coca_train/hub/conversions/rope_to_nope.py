"""No positions in place of RoPE, in all layers or in some: drop it after pretraining, recalibrate (arXiv 2512.12167).

Every weight is kept. Without the rotation the model is another one beyond its first token, and a short training at the
window it had must bring it back; its context then reaches as far as that of a model that never had positions.
"""

from dataclasses import replace

from coca_train.config.schema import StartConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.conversions import AT_FIRST
from coca_train.hub.weights import Source

EQUAL = AT_FIRST


def leads(before: Architecture, after: Architecture) -> bool:
    return len(before.kinds) == len(after.kinds) and any(
        (theirs.position.scheme, ours.position.scheme) == ("rope", "nope")
        for theirs, ours in zip(before.kinds, after.kinds, strict=True)
    )


def converted(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    before = source.architecture
    # Where only some layers lose it, `own` keeps what it was trained with.
    position = after.position if after.position.scheme == "nope" else before.position
    return replace(source, architecture=replace(before, position=position, layers=after.layers))
