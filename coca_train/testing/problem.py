"""Attention as a definition sees it: whole T x S matrices in float64, in which every pair of tokens has positions
(m, n) of its own. No table, map or mask is shared between pairs. Slow, and meant to be read.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim, K cached key width, C d_model.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from coca_train.attention.pattern import Layout, seen
from coca_train.positions import rope_scaling
from coca_train.positions.base import Projections
from coca_train.testing import parts
from coca_train.testing.contract import Case

# The rotated width to (θ of every pair of features, temperature).
Turns = Callable[[int], tuple[Tensor | list[float], float]]


@dataclass(frozen=True)
class Problem:
    """One attention problem. Keys are repeated to the query heads (k_BHSK); k_BSGK are those of the cache."""

    settings: Case
    q_BHTD: Tensor
    k_BHSK: Tensor
    k_BSGK: Tensor
    x_BSC: Tensor  # the layer's normalised input
    seen_BTS: Tensor  # bool
    m_BTS: Tensor  # position of the query of every pair, as the scheme sees it
    n_BTS: Tensor  # and its key
    length: int  # what dynamic frequencies adapt to [tokens]
    parameters: Mapping[str, Tensor] = field(default_factory=dict)  # by the names that a checkpoint has for them
    project: Projections | None = None  # the layer's own W_Q and W_K
    turns: Turns | None = None  # in place of `spectrum`
    bidirectional: bool = False  # whether queries see keys that come later

    @property
    def content_BHTS(self) -> Tensor:
        """q·k / √D."""
        return self.q_BHTD @ self.k_BHSK.mT / math.sqrt(self.q_BHTD.shape[-1])

    @property
    def distance_BTS(self) -> Tensor:
        """m - n of every pair, 0 where causality masks it; |m - n| where nothing is masked so."""
        distance_BTS = self.m_BTS - self.n_BTS
        return distance_BTS.abs() if self.bidirectional else distance_BTS.clamp(min=0)

    def row_BTS(self, farthest: int) -> Tensor:
        """Return the row of every pair in a table of the distances 0 … farthest, or of both sides from -farthest on."""
        if self.bidirectional:
            return (self.m_BTS - self.n_BTS).clamp(-farthest, farthest) + farthest
        return self.distance_BTS.clamp(max=farthest)

    def spectrum(self, width: int) -> tuple[Tensor | list[float], float]:
        """Return (θ of every pair of features, temperature) of the settings' frequencies, which have their own contract
        (testing/rope_scaling.py)."""
        if self.turns is not None:
            return self.turns(width)
        typed = rope_scaling.ROPE_SCALINGS.settings(self.settings["rope_scaling"])
        spectrum = typed.build(width)(self.length)
        return spectrum.inv_freq_J.double().tolist(), spectrum.temperature


class Definition(Protocol):
    """The definition of a scheme, pair by pair."""

    def score(self, problem: Problem) -> Tensor:
        """Return the score of every pair before the softmax, divided by √D, (B, H, T, S)."""
        ...

    def value(self, problem: Problem) -> Tensor | None:
        """Return what is added to the value of key n when query m reads it, (B, T, S, D); None: nothing."""
        ...

    def weight(self, problem: Problem) -> Tensor | None:
        """Return the weight of every pair that is seen, (B, H, T, S), where it is not the softmax of its score; None:
        it is."""
        ...

    def rest(self, problem: Problem) -> Tensor | None:
        """Return the score of one more key, without a value, that every query sees, (B, H, T); None: there is none."""
        ...


def problem(
    settings: Case,
    q_BTHD: Tensor,
    k_BSGK: Tensor,
    pos_BT: Tensor,
    pos_BS: Tensor,
    length: int,
    d_model: int = 24,
    parameters: Mapping[str, Tensor] | None = None,
    project: Projections | None = None,
    turns: Turns | None = None,
) -> Problem:
    """Build a problem whose pairs have the positions of their tokens. Causal: the queries are the last T tokens."""
    q, k = q_BTHD.transpose(1, 2), k_BSGK.transpose(1, 2)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    m_BTS, n_BTS = torch.broadcast_tensors(pos_BT[:, :, None], pos_BS[:, None, :])
    seen_BTS = torch.ones(m_BTS.shape, dtype=torch.bool).tril(m_BTS.shape[2] - m_BTS.shape[1])
    x_BSC = parts.inputs(k_BSGK, d_model)
    return Problem(settings, q, k, k_BSGK, x_BSC, seen_BTS, m_BTS, n_BTS, length, parameters or {}, project, turns)


def placed(layouts: tuple[Layout, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return (seen, m, n), each (B, T, S): the union of the views of an attention pattern. AssertionError where two
    views share a pair."""
    everything = slice(0, layouts[0].text_BT.shape[1]), slice(0, layouts[0].text_BS.shape[1])
    total = [seen(layouts[0], *everything).new_zeros(()), torch.tensor(0), torch.tensor(0)]
    for layout in layouts:
        visible = seen(layout, *everything)
        assert not (total[0] & visible).any(), "two views show one pair"
        placed_at = torch.broadcast_tensors(layout.pos_BT[:, :, None], layout.pos_BS[:, None, :])
        total = [
            total[0] | visible,
            *(torch.where(visible, x, old) for x, old in zip(placed_at, total[1:], strict=True)),
        ]
    return total[0], total[1], total[2]


def attend(
    scores_BHTS: Tensor,
    v_BSGD: Tensor,
    seen: Tensor,
    value_BTSD: Tensor | None = None,
    rest_BHT: Tensor | None = None,
) -> Tensor:
    """Apply softmax over the visible keys and add up the values, (B, T, H, D). seen: broadcastable to (B, H, T, S).
    rest_BHT: of one more key, without a value."""
    v = v_BSGD.transpose(1, 2).repeat_interleave(scores_BHTS.shape[1] // v_BSGD.shape[2], 1)
    scores_BHTS = scores_BHTS.masked_fill(~seen, -math.inf)
    if rest_BHT is None:
        alpha = scores_BHTS.softmax(-1)
    else:
        alpha = torch.cat((scores_BHTS, rest_BHT[..., None]), -1).softmax(-1)[..., :-1]
    out = alpha @ v
    if value_BTSD is not None:
        out = out + torch.einsum("bhts,btsd->bhtd", alpha, value_BTSD.expand(alpha.shape[0], -1, -1, -1))
    return out.transpose(1, 2)


def attention(definition: Definition, task: Problem, v_BSGD: Tensor) -> Tensor:
    """Compute attention by the definition, (B, T, H, D)."""
    with doubles():
        if (weight_BHTS := definition.weight(task)) is not None:
            v = v_BSGD.transpose(1, 2).repeat_interleave(weight_BHTS.shape[1] // v_BSGD.shape[2], 1)
            return (weight_BHTS.masked_fill(~task.seen_BTS[:, None], 0.0) @ v).transpose(1, 2)
        value, rest = definition.value(task), definition.rest(task)
        return attend(definition.score(task), v_BSGD, task.seen_BTS[:, None], value, rest)


@contextmanager
def doubles() -> Iterator[None]:
    """Make float64 the default dtype in the block: a number times an integer distance would otherwise be float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
