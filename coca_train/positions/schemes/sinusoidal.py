"""Sinusoidal absolute positions (Vaswani et al., arXiv 1706.03762, section 3.5), added to the token embeddings:

    scale · (sin(m·w_0), …, sin(m·w_{J-1}), cos(m·w_0), …, cos(m·w_{J-1})),   w_j = theta^(-2j/C),   J = C/2

Amplitude. The paper multiplies its embeddings by √C, which gives them unit variance, and adds scale 1. Embeddings
here start at N(0, init_std) and are not multiplied: at init_std 0.02, scale 1 drowns them until they have grown,
and in bfloat16 leaves three bits of them. scale = init_std has the paper's ratio. In a small trial (two layers, 64
wide, 700 steps on bytes) scale 1 ended at 2.47 nats, worse than no positions at all (2.37); 0.1 at 2.14, 0.02 at 2.23.

Path: any fused kernel, on the CPU and on CUDA. Memory and cost: one (B, T, C) table in float32 per forward.
Not relative, though the products of two such vectors are: W_Q and W_K come between.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions._waves import waves, width_problems
from coca_train.positions.base import Position, Problem
from coca_train.positions.token_positions import Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Fixed absolute position embedding."""

    scheme: Literal["sinusoidal"]
    theta: float = Field(gt=1, description="base: feature pair j turns theta^(-2j/d_model) radians per position")
    scale: float = Field(
        gt=0,
        description="amplitude of what is added; 1 is the paper's, for embeddings of unit variance; for "
        "embeddings that start at N(0, init_std), init_std has that ratio, and up to 0.1 trained better than 1",
    )

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse an odd width: features come in pairs of sine and cosine."""
        return width_problems(model, "sinusoidal")


class Scheme(Position):
    """Sines and cosines of the position, added to the token embedding."""

    settings: Settings

    relative = False
    bidirectional = True
    by_pairs = False

    def embed(self, x_BTC: Tensor, positions: Positions) -> Tensor:
        """Add the waves. Angles are float32 of integer positions, the sum is float32 or wider and cast once."""
        waves_BTC = waves(positions.pos_BT, self.settings.theta, x_BTC.shape[-1])
        return (x_BTC + waves_BTC * self.settings.scale).to(x_BTC.dtype)
