"""Another base of the rotary frequencies, as Code Llama was tuned with (arXiv 2308.12950)."""

from dataclasses import replace
from typing import Any

from coca_train.config.schema import StartConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.conversions import AT_FIRST
from coca_train.hub.weights import Source

EQUAL = AT_FIRST


def leads(before: Architecture, after: Architecture) -> bool:
    pairs = zip(before.thetas, after.thetas, strict=False)
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def converted(source: Source, after: Architecture, start: StartConfig, seed: int) -> Source:
    before = source.architecture
    # The kinds of layers are taken as they are to be: whatever else differs in them is refused behind this.
    return replace(source, architecture=replace(before, position=_with_theta(before, after), layers=after.layers))


def _with_theta(before: Architecture, after: Architecture) -> Any:
    theirs: Any = getattr(before.position, "frequencies", None)
    ours: Any = getattr(after.position, "frequencies", None)
    if None in (getattr(theirs, "theta", None), getattr(ours, "theta", None)):
        return before.position
    return replace(before.position, frequencies=replace(theirs, theta=ours.theta))
