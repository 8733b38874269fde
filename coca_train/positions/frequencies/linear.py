"""Position interpolation (Chen et al., arXiv 2306.15595): every position divided by s, written as θ_j/s."""

from typing import Any, Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared, rounded
from coca_train.positions.hugging_face import Scaling, Words


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Linear scaling by a fixed factor."""

    name: Literal["linear"]
    theta: _shared.Theta
    factor: _shared.Factor


def scaled(settings: Any, rotary_dim: int, factor: float) -> Spectrum:
    """θ_j/s for any factor s."""
    return rounded(_shared.base_frequencies(settings.theta, rotary_dim) / factor)


spectrum = _shared.fixed(scaled)


ROPE_TYPE = "linear"


def from_transformers(scaling: Scaling) -> dict[str, Any]:
    """Their factor is ours."""
    scaling.only_length()
    return {"theta": scaling.theta, "factor": scaling.factor()}


def to_transformers(settings: Settings, rotary_dim: int, rotary_pct: float) -> Words:
    """Their factor is ours."""
    return Words(settings.theta, {"rope_type": ROPE_TYPE, "factor": settings.factor})
