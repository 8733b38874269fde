"""NTK-by-parts (YaRN, arXiv 2309.00071, Definition 2): fast pairs keep θ_j, slow ones get θ_j/s, a ramp between.

convention `authors` is not this definition but their code of that name, of before the paper: between θ_j/s and θ_j come
NTK-aware frequencies, by a second ramp from 1.25 to 0.75 turns, and its first one is 16 to 2 turns.
"""

import math
from typing import Any, Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared, rounded
from coca_train.positions.hugging_face import SAME, Scaling, Words, extended, reach, yarn_from, yarn_to


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(_shared.PartsRamp):
    """NTK-by-parts by a fixed factor."""

    name: Literal["ntk_by_parts"]
    factor: _shared.Factor


def scaled(settings: _shared.PartsRamp, rotary_dim: int, factor: float) -> Spectrum:
    """The fields of the ramp and any factor s."""
    return rounded(_shared.by_parts(settings, factor, rotary_dim))


spectrum = _shared.fixed(scaled)


ROPE_TYPE = "yarn"
NATIVE = {"convention": "paper"}


def from_transformers(scaling: Scaling) -> dict[str, Any] | None:
    """Their YaRN with a temperature of 1; None: it has another one."""
    section, temperature = yarn_from(scaling)
    return section | {"convention": "indices"} if math.isclose(temperature, 1.0, rel_tol=SAME) else None


def to_transformers(settings: Settings, rotary_dim: int, rotary_pct: float) -> Words:
    """The paper's ramp is what they call llama3, that over indices their YaRN without its temperature."""
    if settings.convention == "paper":
        ends = {"low_freq_factor": settings.beta_slow, "high_freq_factor": settings.beta_fast}
        scaling = {"rope_type": "llama3", **extended(settings), **ends}
        return Words(settings.theta, scaling, min_positions=reach(settings))
    return yarn_to(settings, 1.0)
