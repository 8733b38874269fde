"""Which position, visibility and logit scale each layer has: the section `layers`, resolved. Imports no torch.

A layer is of a kind. `own` is what the run says; another kind says what it does differently (config/inheritance.py),
so where the run's own settings change, in a stage or a variant, it follows in all it does not say itself.
"""

from dataclasses import asdict
from itertools import cycle, islice
from typing import Any, NamedTuple

from coca_train.attention import VISIBILITIES
from coca_train.config.inheritance import merge
from coca_train.config.schema import OWN, LayersConfig, LogitScaleConfig, ModelConfig
from coca_train.positions import SCHEMES

UNIFORM = LayersConfig(pattern=[])  # every layer is as the run says


class Kind(NamedTuple):
    """What the layers of one kind have: settings, complete."""

    position: Any
    visibility: Any
    logit_scale: LogitScaleConfig


def kinds_of(layers: LayersConfig, n_layers: int) -> tuple[str, ...]:
    """The kind of every layer, by name."""
    return tuple(islice(cycle(layers.pattern or [OWN]), n_layers))


def kinds(layers: LayersConfig, model: ModelConfig, position: Any, visibility: Any) -> dict[str, Kind]:
    """The kinds that occur in a model, in the order of their first layers. Sections that were checked."""
    by_name = {OWN: Kind(position, visibility, model.logit_scale)}
    for name, kind in layers.kinds.items():
        seen = VISIBILITIES.settings(merge(asdict(visibility), kind.visibility, "visibility"))
        scale = LogitScaleConfig(**merge(asdict(model.logit_scale), kind.logit_scale))
        by_name[name] = Kind(position_of(layers, name, position), seen, scale)
    return {name: by_name[name] for name in dict.fromkeys(kinds_of(layers, model.n_layers))}


def position_of(layers: LayersConfig, kind: str, position: Any) -> Any:
    """The position settings of the layers of a kind."""
    if kind == OWN:
        return position
    return SCHEMES.settings(merge(asdict(position), layers.kinds[kind].position, "position"))


def in_words(layers: LayersConfig, n_layers: int) -> str:
    """The schedule in a few words: `3 own, 1 nope`."""
    names = kinds_of(layers, n_layers)
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
