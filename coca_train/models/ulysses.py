"""Sequence parallelism over heads: several ranks share one sequence (DeepSpeed-Ulysses, arXiv 2309.14509).

Every rank has a slice of the tokens of each row in everything that works token by token, and the whole sequence of some
of the heads inside attention. The projections are exchanged before the scheme maps them: keys as the cache holds them,
so that CoCA's t goes at half width, and positions, documents, tables and logit scales are simply those of the whole
row. One all-to-all comes before the scheme, one after the kernel; their transposes are the same again in the backward
pass.

Key/value heads that are fewer than the ranks, or not a multiple of them, are repeated first. Texts that do not divide
evenly are padded at their end, which nothing before it sees (of an encoder they divide: check_slices).

Shape legend: B batch, T tokens of a whole row, t of a slice, P ranks of a sequence, H query heads, G key/value heads, h
and g those of a rank, D head_dim, K cached key width, W width.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.positions.base import Heads, PositionedQK, Projections
from coca_train.positions.token_positions import Positions
from coca_train.runtime import IGNORE, autograd

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Exchange(Protocol):
    """A collective of the ranks that share a sequence."""

    def __call__(self, x_PBtW: Tensor) -> Tensor:
        """Send part p of every rank to rank p; what came from rank p is part p. Differentiable."""
        ...


class AllToAll:
    """All-to-all in a process group, by torch's functional collectives: a compiled block keeps it in its graph."""

    def __init__(self, group: "ProcessGroup") -> None:
        self.name = group.group_name

    def __call__(self, x_PBtW: Tensor) -> Tensor:
        return autograd.apply(_AllToAll, x_PBtW, self.name)


class _Named(autograd.Context, Protocol):
    name: str


class _AllToAll(torch.autograd.Function):
    """Its own transpose."""

    @staticmethod
    def forward(ctx: _Named, x_PBtW: Tensor, name: str) -> Tensor:
        ctx.name = name
        return _exchanged(x_PBtW, name)

    @staticmethod
    def backward(ctx: _Named, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchanged(grads[0], ctx.name), None


def _exchanged(x_PBtW: Tensor, name: str) -> Tensor:
    parts, ops = [1] * x_PBtW.shape[0], torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_to_all_single(x_PBtW.contiguous(), parts, parts, name))


class SequenceShare:
    """This rank's share of each sequence: slice `rank` of `size`, and the heads of that number."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        assert 0 <= rank < size, (rank, size)
        self.rank, self.size, self.exchange = rank, size, exchange

    # ---- tokens

    def whole(self, length: int) -> int:
        """Round a length up to one that divides evenly [tokens]."""
        return -(-length // self.size) * self.size

    def filled(self, x_BT: Tensor, rise: int = 0) -> Tensor:
        """Pad at the end to a length that divides evenly: repeat the last number, each time larger by `rise`."""
        missing = self.whole(x_BT.shape[1]) - x_BT.shape[1]
        if not missing:
            return x_BT
        more_m = torch.arange(1, missing + 1, device=x_BT.device) * rise
        return torch.cat((x_BT, x_BT[:, -1:] + more_m), 1)

    def rows(
        self, tokens_BT: Tensor, positions: Positions, doc_BT: Tensor | None
    ) -> tuple[Tensor, Positions, Tensor | None]:
        """Return padded whole rows: the last document continues."""
        if self.whole(tokens_BT.shape[1]) == tokens_BT.shape[1]:
            return tokens_BT, positions, doc_BT
        doc_BT = None if doc_BT is None else self.filled(doc_BT)
        return self.filled(tokens_BT), Positions.of(self.filled(positions.pos_BT, rise=1), doc_BT), doc_BT

    def own(self, x_BT: Tensor) -> Tensor:
        """Return this rank's tokens of whole rows that divide evenly (a view)."""
        size = x_BT.shape[1] // self.size
        return x_BT.narrow(1, self.rank * size, size)

    def targets(self, targets_BT: Tensor) -> Tensor:
        """Return the targets of this rank's tokens; padding is not scored."""
        missing = self.whole(targets_BT.shape[1]) - targets_BT.shape[1]
        return self.own(F.pad(targets_BT, (0, missing), value=IGNORE))

    def gathered(self, x_Bt: Tensor) -> Tensor:
        """Gather the slices of all ranks into whole rows, on every rank."""
        return self._joined(self.exchange(x_Bt.expand(self.size, *x_Bt.shape)))

    @contextmanager
    def own_randomness(self, device: torch.device) -> Iterator[None]:
        """Give each rank its own random numbers in the block (for dropout, as its tokens differ). Outside, the ranks of
        a sequence draw the same (a scheme may draw positions)."""
        seed = int(torch.randint(2**62, (), device="cpu")) + self.rank
        with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]):
            torch.manual_seed(seed)
            yield

    # ---- heads

    def heads(self, n_heads: int, n_kv_heads: int) -> Heads:
        """Return which of that many heads this rank computes."""
        n_shared = math.lcm(n_kv_heads, self.size)
        return Heads(self._heads(n_heads), self._heads(n_shared), n_shared // n_kv_heads)

    def _heads(self, n_heads: int) -> slice:
        own = n_heads // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def projections(self, project: Projections, heads: Heads) -> Projections:
        """Return the layer's W_Q and W_K for the heads of this rank."""
        return Projections(
            lambda x_C: project.query(x_C)[..., heads.query, :],
            lambda x_C: project.key(x_C).repeat_interleave(heads.repeats, -2)[..., heads.key, :],
            heads,
        )

    def mapped(self, mapped: PositionedQK, heads: Heads, n_heads: int) -> PositionedQK:
        """Select this rank's rows of tables over all n_heads."""

        def rows(x: Tensor, dim: int) -> Tensor:
            return x.narrow(dim, heads.query.start, n_heads // self.size) if x.shape[dim] == n_heads else x

        terms, score_mod = mapped.terms, mapped.score_mod
        if terms.distance_HR is not None:
            terms = terms._replace(distance_HR=rows(terms.distance_HR, 0))
        if terms.query is not None:
            terms = terms._replace(query=(terms.query[0], rows(terms.query[1], 1)))
        if terms.key is not None:
            terms = terms._replace(key=(terms.key[0], rows(terms.key[1], 1)))
        if score_mod is not None:
            per_head = score_mod.by.per_head
            parameters = (rows(x, 0) if i in per_head else x for i, x in enumerate(score_mod.parameters))
            score_mod = score_mod._replace(parameters=tuple(parameters))
        return mapped._replace(terms=terms, score_mod=score_mod)

    def to_heads(
        self,
        q_BtHD: Tensor,
        k_BtGK: Tensor,
        v_BtGD: Tensor,
        tokens: Sequence[Tensor],
        tokens_per_head: bool,
        heads: Heads,
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """Exchange queries, keys, values and a hook's token inputs: from all heads of a slice to some heads of the
        whole row. In the dtype of the values (reduced keys may be wider), tokens in their own.

        tokens_per_head: their third dimension is that of the query heads; else they go to every rank as they are.
        """
        keyed = (x.to(v_BtGD.dtype).repeat_interleave(heads.repeats, 2) for x in (k_BtGK, v_BtGD))
        tensors = [q_BtHD, *keyed]
        parts = [self._by_rank(x) for x in tensors]
        # One collective for all three: what each rank gets of them lies side by side.
        got_BTW = self._joined(self.exchange(torch.cat(parts, -1)))
        widths = [part.shape[-1] for part in parts]
        q, k, v = (
            x_BTW.unflatten(-1, (-1, x.shape[-1])) for x_BTW, x in zip(got_BTW.split(widths, -1), tensors, strict=True)
        )
        if not tokens_per_head:
            return q, k, v, tuple(self.gathered(x) for x in tokens)
        # (B, t, H, …) as one width to each rank, and back.
        got = [self._joined(self.exchange(self._by_rank(x.flatten(2)[..., None]))) for x in tokens]
        return q, k, v, tuple(x.unflatten(-1, (-1, *before.shape[3:])) for x, before in zip(got, tokens, strict=True))

    def to_tokens(self, out_BThD: Tensor, n_heads: int) -> Tensor:
        """Exchange the outputs back: from some heads of the whole row to all heads of a slice."""
        assert out_BThD.shape[2] * self.size == n_heads, "a scheme has taken all heads where a rank has some of them"
        x_PBtW = out_BThD.flatten(2).unflatten(1, (self.size, -1)).movedim(1, 0)
        return self.exchange(x_PBtW).movedim(0, 2).flatten(2).unflatten(-1, (n_heads, -1))

    def _by_rank(self, x_BtHD: Tensor) -> Tensor:
        """Return the heads of each rank, (P, B, t, W)."""
        return x_BtHD.flatten(2).unflatten(-1, (self.size, -1)).movedim(2, 0)

    def _joined(self, x_PBt: Tensor) -> Tensor:
        """Concatenate the slices of all ranks: (P, B, t, …) -> (B, T, …)."""
        return x_PBt.movedim(0, 1).flatten(1, 2)
