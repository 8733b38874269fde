"""Rules between the position scheme, the visibility and the rest of a training (in the form of config/check.py)."""

from typing import Any

from coca_train.config.check import World, heads, kv_heads, scheme
from coca_train.config.messages import Problem
from coca_train.config.schema import ModelConfig


def visibility_fits(visibility: Any, position: Any, model: ModelConfig) -> list[Problem]:
    """Whether the visibility goes with the scheme."""
    from coca_train.positions import visibilities  # torch, which help does not wait for

    if heads(model) or kv_heads(model) or scheme(model, position):
        return []  # the scheme cannot even be built
    problems = visibilities.problems(visibility, position, model)
    return [Problem("E-CFG-44", (key, "position.scheme"), text, fix) for key, text, fix in problems]


def visibility_trains(visibility: Any, position: Any, world: World) -> list[Problem]:
    """Asks for the world because it is about launches only: trained weights may be read in any way."""
    from coca_train.positions import visibilities

    rules = visibilities.build(visibility)
    if not rules.trains:
        text = f"{visibility.name} is for evaluation only; in training it is what a shorter window does"
        fix = "write visibility=causal and a smaller train.seq_len"
        return [Problem("E-CFG-45", ("visibility.name",), text, fix)]
    keep = rules.keep()
    if keep is not None and keep.first and getattr(position, "memory_len", 0):
        text = f"{visibility.name} looks back to the first tokens of a text, and a memory holds the last ones"
        fix = "write position.memory_len=0, or visibility=causal or sliding_window"
        return [Problem("E-CFG-45", ("visibility.name", "position.memory_len"), text, fix)]
    return []
