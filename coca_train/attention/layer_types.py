"""The position, attention pattern and logit scale of each layer: the section `layers`, resolved. Imports no torch.

Each layer has a type. `default` has the run's settings; another type states only what differs (config/inheritance.py),
so where the run's settings change, in a stage or a variant, it follows in everything else.
"""

from dataclasses import asdict, replace
from itertools import cycle, islice
from typing import NamedTuple

from coca_train.attention import ATTENTION_PATTERNS, PatternSettings
from coca_train.config.inheritance import merge
from coca_train.config.schema import DEFAULT, LayersConfig, LogitScaleConfig, ModelConfig
from coca_train.positions import SCHEMES, SchemeSettings

UNIFORM = LayersConfig(pattern=[])  # every layer is as the run says


class LayerType(NamedTuple):
    """The complete settings of the layers of one type."""

    position: SchemeSettings
    attention_pattern: PatternSettings
    logit_scale: LogitScaleConfig


def layer_types_of(layers: LayersConfig, n_layers: int) -> tuple[str, ...]:
    """Return the name of every layer's type."""
    return tuple(islice(cycle(layers.pattern or [DEFAULT]), n_layers))


def layer_types(
    layers: LayersConfig, model: ModelConfig, position: SchemeSettings, attention_pattern: PatternSettings
) -> dict[str, LayerType]:
    """Return the layer types that occur in a model, in the order of their first layers. Sections that were checked."""
    by_name = {DEFAULT: LayerType(position, attention_pattern, model.logit_scale)}
    for name, layer_type in layers.types.items():
        seen = ATTENTION_PATTERNS.settings(
            merge(asdict(attention_pattern), layer_type.attention_pattern, "attention_pattern")
        )
        scale = replace(model.logit_scale, **layer_type.logit_scale)
        by_name[name] = LayerType(position_of(layers, name, position), seen, scale)
    return {name: by_name[name] for name in dict.fromkeys(layer_types_of(layers, model.n_layers))}


def position_of(layers: LayersConfig, layer_type: str, position: SchemeSettings) -> SchemeSettings:
    """Return the position settings of the layers of one type."""
    if layer_type == DEFAULT:
        return position
    return SCHEMES.settings(merge(asdict(position), layers.types[layer_type].position, "position"))


def describe_layers(layers: LayersConfig, n_layers: int) -> str:
    """Describe the pattern of layers in a few words: `3 default, 1 nope`."""
    names = layer_types_of(layers, n_layers)
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
