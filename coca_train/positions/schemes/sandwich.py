"""Sandwich (Chi et al., arXiv 2212.10356): the product of two sinusoidal embeddings as a bias, compressed per head.

    b(h, r) = (Σ_{i < d̄/2} cos(r / 10000^(2i/d̄)) - d̄/2) / (8h/H),   h = 1 … H,   r = m - n

d̄/2, the value at r = 0, is subtracted so that b is 0 there and negative elsewhere, like ALiBi's: a constant per head,
which the softmax does not see. Nothing is learned.

Path: a bias by distance: `blocked` on the CPU (memory O(T·block)), FlexAttention on CUDA (O(T)). The table over
distances takes O(T·(H + d̄)) memory and T·d̄/2 cosines, once per forward. Cost: one addition per score. Relative.
"""

from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions.base import Position, Problem, Terms
from coca_train.positions.token_positions import Positions, distances

THETA = 10000.0  # the base of the paper's sinusoids


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Biases from sinusoids."""

    scheme: Literal["sandwich"]
    d_bar: int = Field(gt=0, description="width d̄ of the sinusoidal embedding, even; the bias is a sum of d̄/2 cosines")

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse an odd d_bar: sines and cosines come in pairs."""
        if self.d_bar % 2:
            wrong = f"sandwich with d_bar {self.d_bar}: half of it are cosines, so this must be even"
            return [("position.d_bar", wrong, f"position.d_bar={self.d_bar + 1}")]
        return []


class Scheme(Position):
    """A fixed, wavy penalty on distance, weaker in each further head."""

    settings: Settings
    bidirectional = True

    def forward(self, queries: Positions, keys: Positions, length: int) -> Terms:
        """Return the bias of each distance, float32. The sum is taken in float64, since its terms cancel far out."""
        wide = {"dtype": torch.float64, "device": queries.pos_BT.device}
        inv_freq_J = THETA ** (-torch.arange(0, self.settings.d_bar, 2, **wide) / self.settings.d_bar)
        distance_R = distances(queries, keys, self.shape.bidirectional, torch.float64)
        sum_R = (distance_R[:, None] * inv_freq_J).cos().sum(-1) - self.settings.d_bar / 2
        compression_H = torch.arange(1, self.shape.n_heads + 1, **wide) * 8 / self.shape.n_heads
        return Terms(distance_HR=(sum_R / compression_H[:, None]).float())
