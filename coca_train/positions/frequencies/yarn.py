"""YaRN (arXiv 2309.00071, Definition 3): NTK-by-parts and the temperature sqrt(1/t) = 0.1 ln s + 1 on q' and k'."""

import math
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared, rounded
from coca_train.positions.hugging_face import SAME, NotTheSame, Scaling, Words, whole_head, yarn_from, yarn_to


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(_shared.YarnRamp):
    """YaRN by a fixed factor."""

    name: Literal["yarn"]
    factor: _shared.Factor


def scaled(settings: _shared.YarnRamp, rotary_dim: int, factor: float) -> Spectrum:
    """The fields of the ramp and any factor s."""
    return rounded(_shared.by_parts(settings, factor, rotary_dim), _shared.yarn_temperature(factor))


spectrum = _shared.fixed(scaled)


ROPE_TYPE = "yarn"
NATIVE = {"convention": "code"}


def from_transformers(scaling: Scaling) -> dict[str, Any] | None:
    """The authors' ramp and YaRN's temperature; None: that is 1, which is NTK-by-parts."""
    section, temperature = yarn_from(scaling)
    if math.isclose(temperature, 1.0, rel_tol=SAME):
        return None
    if not math.isclose(temperature, _shared.yarn_temperature(section["factor"]), rel_tol=SAME):
        raise NotTheSame(f"an attention factor of {temperature:g}, where YaRN's is 0.1 ln(factor) + 1")
    whole_head("yarn", scaling.rotary_pct)
    return section


def to_transformers(settings: Settings, rotary_dim: int, rotary_pct: float) -> Words:
    """They have the authors' ramp only."""
    whole_head("yarn", rotary_pct)
    return yarn_to(settings, _shared.yarn_temperature(settings.factor))
