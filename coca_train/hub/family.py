"""What a family of transformers declares: families.py has them all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from coca_train.config.schema import ModelConfig
from coca_train.hub.config_keys import Fixed, Json, Keys, Kind
from coca_train.hub.layer_rules import CausalLayers, LayerRule
from coca_train.hub.layouts import Layout
from coca_train.hub.position_rules import PositionRule, RopeRule
from coca_train.positions.hugging_face import NotTheSame

Words = Mapping[str | bool, object]  # theirs, and ours for each


class Power(NamedTuple):
    """Our number is theirs to a power."""

    exponent: float

    def ours(self, theirs: float) -> float:
        return theirs**self.exponent

    def theirs(self, ours: float) -> float:
        value = ours ** (1 / self.exponent)
        return float(round(value)) if math.isclose(value, round(value), rel_tol=1e-12) else value


INVERSE, INVERSE_ROOT = Power(-1.0), Power(-0.5)


class Field(NamedTuple):
    """A key of config.json that is an option of ours."""

    theirs: str
    ours: str
    kind: Kind[Any] | Words
    default: object = None  # of the class, where the key is missing
    power: Power | None = None
    also: str = ""  # another name that its class reads

    def read(self, keys: Keys) -> object:
        """Return our value. Raises UserError E-IOP-03, E-IOP-04."""
        other = keys.take(self.also) if self.also else None
        name = self.theirs if other is None else self.also
        if other is not None and keys.take(self.theirs) not in (None, other):
            both = f"{self.theirs}={keys.take(self.theirs)!r}, {name}={other!r}"
            raise keys.wrong(both, "they are one thing", "correct the file")
        if isinstance(self.kind, Mapping):
            return keys.word(name, self.kind, self.default)
        value: Any = keys.read(name, self.kind, self.default)
        return value if self.power is None else self.power.ours(value)

    def write(self, model: ModelConfig) -> object:
        """Return their value; the first of several words for one of ours. Raises NotTheSame."""
        value = getattr(model, self.ours)
        if isinstance(self.kind, Mapping):
            return next(theirs for theirs, ours in self.kind.items() if ours == value)
        if self.power is None:
            return value
        theirs = self.power.theirs(value)
        if isinstance(self.default, float):  # its class refuses an int
            return theirs
        if not theirs.is_integer():
            raise NotTheSame(f"{self.theirs}={theirs:g}, where its class takes whole numbers")
        return int(theirs)


class BiasKey(NamedTuple):
    """A key of config.json that gives parts of the model biases, or none."""

    theirs: str
    parts: tuple[str, ...]
    default: bool = False


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model_type of transformers. Numbers are the defaults of its class for keys missing from config.json."""

    transformers_class: str  # "": none, and another family of these computes the same
    fields: tuple[Field, ...]  # keys that are options of ours
    always: Json  # options with a fixed value in its class
    names: Mapping[str, str]  # of its modules, by ours
    model_type: str = ""  # "": its name in FAMILIES
    bias: tuple[str, ...] = ()  # the parts that always have one
    biases: tuple[BiasKey, ...] = ()  # keys of the others
    root_embedding: bool = False  # it multiplies embeddings by the root of their width
    layers: LayerRule = CausalLayers()  # noqa: RUF009  # it has no state
    layouts: tuple[Layout, ...] = ()  # modules whose rows are not as ours
    positions: PositionRule = RopeRule()  # noqa: RUF009
    fixed: tuple[Fixed, ...] = ()
    harmless: tuple[str, ...] = ()  # keys of released files that its class does not read
    for_llama_cpp: tuple[tuple[str, object], ...] = ()  # keys that its converter needs and its class does not read
    packs: bool = True  # its class keeps texts apart whose positions begin again
    divisible: bool = False  # its class refuses heads that do not divide the width, even where head_dim is given
