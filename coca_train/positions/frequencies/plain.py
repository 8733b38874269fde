"""RoPE as published (RoFormer, arXiv 2104.09864): θ_j = theta^(-2j/D). A larger theta is the Code Llama form."""

from typing import Any, Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import Spectrum, _shared, rounded
from coca_train.positions.hugging_face import Scaling, Words


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Unscaled rotary frequencies."""

    name: Literal["plain"]
    theta: _shared.Theta


def spectrum(settings: Settings, rotary_dim: int, length: int) -> Spectrum:
    """Independent of `length` [tokens]."""
    return rounded(_shared.base_frequencies(settings.theta, rotary_dim))


ROPE_TYPE = "default"


def from_transformers(scaling: Scaling) -> dict[str, Any]:
    """Nothing but a base; a factor of 1 says nothing."""
    scaling.only_length()
    scaling.no_factor()
    return {"theta": scaling.theta}


def to_transformers(settings: Settings, rotary_dim: int, rotary_pct: float) -> Words:
    """A base."""
    return Words(settings.theta)
