"""No positions: the causal mask is all there is (arXiv 2203.16634, 2305.19466). Any fused kernel, no extra cost."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.base import Position


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """No hyper-parameters."""

    scheme: Literal["nope"]


class Scheme(Position):
    """Every hook is the identity."""

    has_effect = sees_positions = False
    bidirectional = True

    @classmethod
    def to_transformers(cls, settings: Settings, head_dim: int) -> None:
        """Return None: nothing is rotated. SmolLM3 has such layers."""
