"""NTK-aware scaling (YaRN, arXiv 2309.00071, Definition 1): the base grows by s^(D/(D-2))."""

from typing import Any, Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared, rounded
from coca_train.positions.hugging_face import Words


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """NTK-aware scaling by a fixed factor."""

    name: Literal["ntk"]
    theta: _shared.Theta
    factor: _shared.Factor


def scaled(settings: Any, rotary_dim: int, factor: float) -> Spectrum:
    """θ_j of the grown base for any factor s."""
    theta = _shared.ntk_theta(settings.theta, factor, rotary_dim)
    return rounded(_shared.base_frequencies(theta, rotary_dim))


spectrum = _shared.fixed(scaled)


def to_transformers(settings: Settings, rotary_dim: int, rotary_pct: float) -> Words:
    """They have no word for it, but for the base that it comes to."""
    return Words(_shared.ntk_theta(settings.theta, settings.factor, rotary_dim))
