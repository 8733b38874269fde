"""The architecture of a model: the sections of the configuration that determine what it computes."""

from dataclasses import asdict, dataclass, replace
from typing import TypedDict

import torch

from coca_train import positions
from coca_train.attention import PatternSettings, patterns
from coca_train.attention.layer_types import UNIFORM, LayerType, layer_types, layer_types_of
from coca_train.config.schema import DEFAULT, Config, LayersConfig, ModelConfig
from coca_train.models.transformer import Transformer
from coca_train.positions import SchemeSettings
from coca_train.positions.rope_scaling import RopeScaling
from coca_train.positions.schemes import rope

Shapes = dict[str, tuple[int, ...]]


class Sections(TypedDict):
    """The sections of an Architecture as plain values."""

    model: dict[str, object]
    position: dict[str, object]
    attention_pattern: dict[str, object]
    layers: dict[str, object]
    seq_len: int


def rope_scaling_of(position: SchemeSettings) -> RopeScaling | None:
    """Return the rotary frequencies of a scheme's settings; None: it has none."""
    return getattr(position, "rope_scaling", None)


@dataclass(frozen=True)
class Architecture:
    """The sections that determine a model, vocab_size included."""

    model: ModelConfig
    position: SchemeSettings
    attention_pattern: PatternSettings
    seq_len: int  # training window of the weights [tokens]
    layers: LayersConfig = UNIFORM

    @classmethod
    def of(cls, config: Config, vocab_size: int) -> "Architecture":
        """Return the architecture of a run with this configuration, as it is used after training. vocab_size: rows of
        the embedding."""
        model, seen = replace(config.model, vocab_size=vocab_size), config.attention_pattern
        if patterns.build(seen).in_training():  # elsewhere it sees everything
            seen = patterns.settings({"name": "causal"})
        position = config.position
        if isinstance(position, rope.Settings):  # a penalty of the training that is over
            position = replace(position, angle_penalty=0.0)
        return cls(model, position, seen, config.train.seq_len, config.layers)

    def with_coca(self, variant: str, t_width: str) -> "Architecture":
        """Return the same with CoCA instead of RoPE."""
        assert isinstance(self.position, rope.Settings) and self.rope_scaling is not None
        section: dict[str, object] = {"scheme": "coca", "variant": variant, "t_width": t_width}
        section |= {key: getattr(self.position, key) for key in ("rotary_pct", "temperature_on")}
        return replace(self, position=positions.settings(section | {"rope_scaling": asdict(self.rope_scaling)}))

    @property
    def complete(self) -> ModelConfig:
        """The `model` section without null: numbers that follow from others are filled in."""
        return replace(self.model, n_kv_heads=self.n_kv_heads, head_dim=self.head_dim)

    @property
    def layer_type_names(self) -> tuple[str, ...]:
        """Return the name of every layer's type."""
        return layer_types_of(self.layers, self.model.n_layers)

    @property
    def settings(self) -> dict[str, LayerType]:
        """Return the settings of every declared layer type and of the default."""
        own = {DEFAULT: LayerType(self.position, self.attention_pattern, self.model.logit_scale)}
        return own | layer_types(self.layers, self.model, self.position, self.attention_pattern)

    @property
    def layer_types(self) -> list[LayerType]:
        """Return the settings of every layer."""
        settings = self.settings
        return [settings[name] for name in self.layer_type_names]

    @property
    def is_uniform(self) -> bool:
        """Whether all layers are of one type. By comparison: settings with lists (longrope) have no hash."""
        first, *others = self.layer_types
        return all(kind == first for kind in others)

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """The rotary frequencies, but of layers with others; None: a scheme without."""
        return rope_scaling_of(self.position)

    @property
    def thetas(self) -> list[float | None]:
        """The rotary base of every layer; None: no rotation."""
        scalings = [rope_scaling_of(kind.position) for kind in self.layer_types]
        return [None if scaling is None else scaling.theta for scaling in scalings]

    @property
    def n_rows(self) -> int:
        """Embedding rows [tokens]."""
        assert self.model.vocab_size is not None
        return self.model.vocab_size

    @property
    def head_dim(self) -> int:
        return self.model.head_dim or self.model.d_model // self.model.n_heads

    @property
    def n_kv_heads(self) -> int:
        return self.model.n_kv_heads or self.model.n_heads

    def build(self) -> Transformer:
        """Build the model, on the current torch device, not initialised."""
        return Transformer(
            self.model,
            self.position,
            self.attention_pattern,
            vocab_size=self.n_rows,
            max_seq_len=self.seq_len,
            layers=self.layers,
        )

    def shapes(self) -> Shapes:
        """Return every parameter's shape by name; shared ones once."""
        with torch.device("meta"):
            outline = self.build()
        return {name: tuple(parameter.shape) for name, parameter in outline.named_parameters()}

    def sections(self) -> Sections:
        """Return the sections as config.yaml and our exports hold them."""
        return {
            "model": asdict(self.model),
            "position": asdict(self.position),
            "attention_pattern": asdict(self.attention_pattern),
            "layers": asdict(self.layers),
            "seq_len": self.seq_len,
        }
