"""Phases that tokens add up (GRAPE-M with context, Selective RoPE): sums along a document, and rotations by them.

Sums start again from zero with each document, which begins where positions do not rise. They are of fixed point
numbers, so that they are the same to the last bit whatever precedes it, and in a cache too; their gradients are
floating point sums.

Shape legend: B batch, S tokens, N phases of a token, G key/value heads (or 1), J pairs of a head, R taps.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.positions.rotary import CosSin
from coca_train.runtime import autograd

UNIT = 2.0**32  # of fixed point numbers: a sum may reach two billion


class Documents(NamedTuple):
    """Of each token: the index of the first token of its document, and that of the first one after it, S at the end."""

    begin_BS: Tensor
    end_BS: Tensor

    @classmethod
    def of(cls, pos_BS: Tensor) -> "Documents":
        """Find them by their positions, which rise within a document."""
        index_S = torch.arange(pos_BS.shape[1], device=pos_BS.device)
        first_BS = torch.ones_like(pos_BS, dtype=torch.bool)
        first_BS[:, 1:] = pos_BS[:, 1:] <= pos_BS[:, :-1]
        begin_BS = torch.where(first_BS, index_S, 0).cummax(1).values
        next_BS = torch.where(first_BS, index_S, len(index_S)).flip(1).cummin(1).values.flip(1)
        return cls(begin_BS, F.pad(next_BS[:, 1:], (0, 1), value=len(index_S)))

    @property
    def place_BS(self) -> Tensor:
        """How many tokens of its document stand before each token."""
        return torch.arange(self.begin_BS.shape[1], device=self.begin_BS.device) - self.begin_BS


def convolve(x_BSN: Tensor, mix_RN: Tensor, place_BS: Tensor) -> Tensor:
    """Return a causal convolution whose last tap meets the token itself. place_BS: how many tokens stand before each
    one; a document's first tokens have fewer taps."""
    total_BSN = torch.zeros_like(x_BSN)
    for back in range(mix_RN.shape[0]):
        before_BSN = x_BSN if not back else F.pad(x_BSN, (0, 0, back, 0))[:, : x_BSN.shape[1]]
        total_BSN = total_BSN + before_BSN * mix_RN[-1 - back] * (place_BS >= back)[..., None]
    return total_BSN


class _Sums(torch.autograd.Function):
    """What precedes each token in its document, summed."""

    @staticmethod
    def forward(ctx: autograd.Context, x_BSN: Tensor, begin_BS: Tensor, end_BS: Tensor) -> Tensor:
        ctx.save_for_backward(end_BS, x_BSN.new_empty(0))
        fixed_BSN = (x_BSN.double() * UNIT).round().long()
        sums_BSN = fixed_BSN.cumsum(1) - fixed_BSN
        begin_BSN = begin_BS[..., None].expand_as(sums_BSN)
        return (sums_BSN - sums_BSN.gather(1, begin_BSN)).double() / UNIT

    @staticmethod
    def backward(ctx: autograd.Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        end_BS, like = ctx.saved_tensors
        (g_BSN,) = grads
        later_BSN = g_BSN.flip(1).cumsum(1).flip(1)  # from each token to the end of the row
        after_BSN = F.pad(later_BSN, (0, 0, 0, 1)).gather(1, end_BS[..., None].expand_as(g_BSN))
        return (later_BSN - g_BSN - after_BSN).to(like.dtype), None, None


def sums_before(x_BSN: Tensor, documents: Documents) -> Tensor:
    """Return the sum of what precedes each token in its document, float64 (B, S, N)."""
    return autograd.apply(_Sums, x_BSN, *documents)


def rotation(angle_BSGJ: Tensor, dtype: torch.dtype) -> CosSin:
    """Return the rotation by angles [radians], float64; within one turn before they are rounded to dtype, as float32
    has few digits left at the end of a long text."""
    angle_BSGJ = angle_BSGJ.remainder(2 * math.pi).to(dtype)
    cos, sin = angle_BSGJ.cos(), angle_BSGJ.sin()
    return CosSin(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1), 1.0)


def of_queries(turn: CosSin, n_queries: int) -> CosSin:
    """Return the rotation of the queries, which are the last of the tokens."""
    return turn._replace(cos_BT1R=turn.cos_BT1R[:, -n_queries:], sin_BT1R=turn.sin_BT1R[:, -n_queries:])
