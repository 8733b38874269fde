"""ALiBi (Press et al., arXiv 2108.12409): the score loses slope_h per token of distance. Nothing is learned.

Two paths with one meaning:

plain   b(h, r) = -slope_h·r as a table over distances: the definition. Memory is that of the kernel
        that reads it (blocked: O(T·block), eager: O(T²)).
folded  eight more features in q' and k' whose product is slope_h·√D·(n-m), up to a constant per
        query, which a softmax does not see. Any fused kernel, O(T·D) memory. attend divides by √D, or by what
        model.attention_multiplier has in its place.

On the CPU plain up to 1024 tokens and folded beyond, on CUDA always folded (`fold: auto`). Relative.

Where attention is bidirectional, b(h, r) = -slope_h·|r|: the same on both sides, and always plain, as no product of a
query's and a key's feature is |r|.

Accuracy of the folded path. slope·√D·n reaches 185 000 at n = 32k, where one float32 ulp is 0.016, so
adding it to q·k would cost 2e-3 in the score. Three things keep it small: every factor is split into
parts that the dtype holds exactly (a position in bfloat16: three parts), so that each product is exact;
-slope·m comes along, so that the sum is small for near keys, the only ones with weight; and
these features come first, so that a sequential accumulation meets them before q·k.
"""

import math
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions.base import Heads, Position, Problem, Terms
from coca_train.positions.token_positions import Positions, distances

PLAIN_UP_TO = 1024  # [tokens] on the CPU; beyond, the fused kernel on folded features is faster than a bias
UNIT = 256.0  # positions are held in this unit: keeps slope·√D·m within float16


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Attention with linear biases."""

    scheme: Literal["alibi"]
    fold: Literal["auto", "always", "never"] = Field(
        description="carry the bias in q and k, so that fused kernels run it; auto: on CUDA, and beyond 1024 tokens"
    )

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse to fold where a softmax is not over q'·k' alone."""
        named = {"model.score_scale": model.score_scale != "none", "model.learned_sink": model.learned_sink}
        wrong = (
            "folded, a bias is right up to a number for each query, which only a softmax over nothing else leaves out"
        )
        keys = [key for key, given in named.items() if given and self.fold == "always"]
        return [("position.fold", f"{wrong} ({key})", "write position.fold=auto") for key in keys]


class Folded(NamedTuple):
    """Tables of the folded path."""

    slope_H: Tensor  # slope·√D, float64
    shift_BTH: Tensor  # slope·√D·m, float64
    pos_BS: Tensor


def slopes(n_heads: int, device: torch.device) -> Tensor:
    """Return 2^(-8h/H), h = 1 … H. For H not a power of two: those of the power of two below it, then every second one
    of the next power of two (the paper's released code).

    float32, (H,). Computed on each call: a buffer would be cast with the model, and lost when it starts on `meta`.
    Computed on the device: copying a list of numbers to it would make the CPU wait in every forward. The powers are
    float64, so that rounded once they equal those of any library.
    """
    below = 2 ** (n_heads.bit_length() - 1)
    wide = {"dtype": torch.float64, "device": device}
    own = torch.arange(1, below + 1, **wide) * (-8 / below)
    between = torch.arange(1, 2 * (n_heads - below) + 1, 2, **wide) * (-4 / below)
    return torch.cat((own, between)).exp2().float()


class Scheme(Position):
    """A linear penalty on distance, in the scores or folded into queries and keys."""

    settings: Settings

    bidirectional = True

    def bidirectional_problems(self) -> list[Problem]:
        """Refuse to fold what is not linear in the distance."""
        if self.settings.fold != "always":
            return []
        text = "queries see keys on both sides, and alibi's |m - n| cannot be folded into queries and keys"
        return [("position.fold", text, "write position.fold=auto")]

    def _folds(self, device: torch.device, length: int) -> bool:
        if self.shape.bidirectional:
            return False
        if self.settings.fold == "auto":
            # Folded, a bias is right up to a number for each query, which only a softmax over nothing else leaves out.
            return self.shape.scores_alone and (device.type == "cuda" or length > PLAIN_UP_TO)
        return self.settings.fold == "always"

    def forward(self, queries: Positions, keys: Positions, length: int) -> Folded | Terms:
        """Return the folded tables or the bias of each distance (float32), by device and length."""
        device = queries.pos_BT.device
        slope_H = slopes(self.shape.n_heads, device)
        if not self._folds(device, length):
            distance_R = distances(queries, keys, self.shape.bidirectional, torch.float32)
            return Terms(distance_HR=-slope_H[:, None] * distance_R.abs())
        multiplier = self.shape.attention_multiplier
        slope_H = slope_H.double() * (1 / multiplier if multiplier else math.sqrt(self.shape.head_dim))
        return Folded(slope_H, queries.pos_BT[..., None] * slope_H, keys.pos_BT)

    def select_heads(self, tables: Folded | Terms, heads: Heads) -> Folded | Terms:
        """Select the slopes of some heads, where they are folded."""
        if isinstance(tables, Terms):
            return tables
        return tables._replace(slope_H=tables.slope_H[heads.query], shift_BTH=tables.shift_BTH[..., heads.query])

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: Folded | Terms) -> tuple[Tensor, Tensor]:
        """Append the folded features to queries and keys: E = D when plain, D + 8 when folded."""
        if isinstance(tables, Terms):
            return q_BTHD, k_BSGK
        dtype = q_BTHD.dtype
        s1, s2 = (part.expand_as(tables.shift_BTH) for part in _split(tables.slope_H * UNIT, 2, dtype))
        m1, m2 = _split(tables.shift_BTH / UNIT, 2, dtype)
        n1, n2, n3 = _split(tables.pos_BS.double() / UNIT, 3, dtype)
        unit = torch.full_like(n1, UNIT)
        query = torch.stack((-m1, s1, -m2, s1, s2, s2, s1, s2), -1)
        key = torch.stack((unit, n1, unit, n2, n1, n2, n3, n3), -1)
        query_BTH8 = query.expand(*q_BTHD.shape[:3], -1)
        key_BSG8 = key[:, :, None, :].expand(*k_BSGK.shape[:3], -1)
        return torch.cat((query_BTH8, q_BTHD), -1), torch.cat((key_BSG8, k_BSGK), -1)


def _split(x: Tensor, parts: int, dtype: torch.dtype) -> list[Tensor]:
    """Split float64 values into an unevaluated sum of `parts` numbers of `dtype`, largest first."""
    result = []
    for _ in range(parts):
        result.append(x.to(dtype))
        x = x - result[-1]
    return result
