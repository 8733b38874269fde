"""Attention tile by tile with an online softmax: memory O(T), forward and backward, for every scheme and visibility.

Forward keeps a running maximum and sum per query (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention,
arXiv 2205.14135, section 3.1), so no more than one tile of scores is ever alive. Backward recomputes each tile
from the saved log-sum-exp and lets autograd take the tile's own gradients, so that the formula of the scores
stands in one place (scores.py). Tiles in which nothing is seen are never visited: a window costs O(T·window).

Shape legend: as in scores.py; T all queries, S all keys.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coca_train.models.scores import Part, Tensors, Tile, cut, hidden, place, scores, tensors_of, weigh
from coca_train.positions.visibility import Layout, may_see

QUERY_TILE, KEY_TILE = 128, 512  # [tokens]; see benchmarks/

Flat = tuple[Tensor | None, ...]


class _Plan(NamedTuple):
    """What is no tensor to differentiate."""

    layouts: tuple[Layout, ...]
    scale: float


def online(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Attention over the parts' keys under one softmax. Returns out_BTHD."""
    flat = [tensor for part in parts for tensor in tensors_of(part)]
    plan = _Plan(tuple(part.layout for part in parts), scale)
    out: Any = _Online.apply(plan, v_BSGD.transpose(1, 2), *flat)
    return out.transpose(1, 2)


def _blocks(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _tiles(layouts: Sequence[Layout], queries: slice) -> Iterator[tuple[int, Tile, Tensor | None]]:
    """(part, tile, what is hidden in it) for all that some queries may see."""
    for keys in _blocks(layouts[0].text_BS.shape[1], KEY_TILE):
        for number, layout in enumerate(layouts):
            if may_see(layout, queries, keys):
                tile = Tile(layout, queries, keys, layout.contiguous)
                hidden_B1ts = hidden(tile)
                if hidden_B1ts is None or not bool(hidden_B1ts.all()):
                    yield number, tile, hidden_B1ts


def _parts_of(flat: Flat) -> list[Tensors]:
    width = len(Tensors._fields)
    return [Tensors._make(flat[start : start + width]) for start in range(0, len(flat), width)]


def _scores(pieces: Tensors, tile: Tile, hidden_B1ts: Tensor | None, scale: float) -> Tensor:
    """Float32 or wider, hidden pairs at -inf."""
    s_BHts = scores(pieces, tile, scale)
    s_BHts = s_BHts.to(torch.promote_types(s_BHts.dtype, torch.float32))
    return s_BHts if hidden_B1ts is None else s_BHts.masked_fill(hidden_B1ts, -torch.inf)


class _Online(torch.autograd.Function):
    """Inputs: plan, v, and the tensors of every part one after the other (scores.Tensors); None where there is none."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, v_BGSD: Tensor, *flat: Tensor | None) -> Tensor:
        parts = _parts_of(flat)
        outs, lses = [], []
        for queries in _blocks(plan.layouts[0].text_BT.shape[1], QUERY_TILE):
            out, lse = _attend(plan, parts, v_BGSD, queries)
            outs.append(out)
            lses.append(lse)
        out_BHTD, lse_BHT1 = torch.cat(outs, 2), torch.cat(lses, 2)
        ctx.plan = plan
        ctx.save_for_backward(v_BGSD, out_BHTD, lse_BHT1, *flat)
        return out_BHTD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        v_BGSD, out_BHTD, lse_BHT1, *flat = ctx.saved_tensors
        plan: _Plan = ctx.plan
        parts = _parts_of(tuple(flat))
        wanted = ctx.needs_input_grad[1:]
        sums = [_zeros(t) if need else None for t, need in zip((v_BGSD, *flat), wanted, strict=True)]
        width = len(Tensors._fields)
        for queries in _blocks(plan.layouts[0].text_BT.shape[1], QUERY_TILE):
            g_BHtD, lse_BHt1 = grads[0][:, :, queries], lse_BHT1[:, :, queries]
            delta_BHt1 = (g_BHtD.to(lse_BHt1.dtype) * out_BHTD[:, :, queries]).sum(-1, keepdim=True)
            for number, tile, hidden_B1ts in _tiles(plan.layouts, queries):
                into = sums[1 + number * width : 1 + (number + 1) * width]
                with torch.enable_grad():
                    piece = _leaves(cut(parts[number], tile), [total is not None for total in into])
                    v_BGsD = v_BGSD[:, :, tile.keys].detach().requires_grad_()
                    s_BHts = _scores(piece, tile, hidden_B1ts, plan.scale)
                    p_BHts = (s_BHts.detach() - lse_BHt1).exp().requires_grad_()
                    out_BHtD = weigh(p_BHts, v_BGsD, piece.value_RD, tile)
                through = [p_BHts, v_BGsD, *([] if piece.value_RD is None else [piece.value_RD])]
                g_p, g_v, *g_value = torch.autograd.grad(out_BHtD, through, g_BHtD)
                g_s = p_BHts.detach() * (g_p - delta_BHt1)
                leaves = [t for t in piece[:-1] if t is not None and t.requires_grad]
                found = iter(torch.autograd.grad(s_BHts, leaves, g_s) if leaves else ())
                gradients = [next(found) if t is not None and t.requires_grad else None for t in piece[:-1]]
                if sums[0] is not None:
                    sums[0][:, :, tile.keys] += g_v
                gradients += g_value or [None]
                for name, total, gradient in zip(Tensors._fields, into, gradients, strict=True):
                    if total is not None and gradient is not None:
                        _add(total, gradient, place(name, total, tile))
        given = [None if s is None else s.to(t.dtype) for s, t in zip(sums, (v_BGSD, *flat), strict=True)]
        return None, *given


def _attend(plan: _Plan, parts: Sequence[Tensors], v_BGSD: Tensor, queries: slice) -> tuple[Tensor, Tensor]:
    """Output (in the dtype of v) and log-sum-exp of one block of queries."""
    top = total = out = None
    for number, tile, hidden_B1ts in _tiles(plan.layouts, queries):
        piece = cut(parts[number], tile)
        s_BHts = _scores(piece, tile, hidden_B1ts, plan.scale)
        here = s_BHts.amax(-1, keepdim=True)
        new_top = here if top is None else torch.maximum(top, here)
        finite = new_top.masked_fill(new_top == -torch.inf, 0.0)  # rows that have seen nothing so far
        p_BHts = (s_BHts - finite).exp_()
        added = weigh(p_BHts, v_BGSD[:, :, tile.keys], piece.value_RD, tile).to(p_BHts.dtype)
        if top is None or total is None or out is None:
            total, out = p_BHts.sum(-1, keepdim=True), added
        else:
            shrink = (top - finite).exp_()
            total, out = total * shrink + p_BHts.sum(-1, keepdim=True), out * shrink + added
        top = new_top
    assert top is not None and total is not None and out is not None, "a query sees at least itself"
    return (out / total).to(v_BGSD.dtype), top + total.log()


def _zeros(tensor: Tensor) -> Tensor:
    """A sum over tiles, float32 or wider."""
    return torch.zeros(tensor.shape, dtype=torch.promote_types(tensor.dtype, torch.float32), device=tensor.device)


def _leaves(pieces: Tensors, wanted: Sequence[bool]) -> Tensors:
    """The same values, cut off from the graph, those wanted as its new leaves."""
    return Tensors._make(
        None if t is None else t.detach().requires_grad_(want) for t, want in zip(pieces, wanted, strict=True)
    )


def _add(total: Tensor, gradient: Tensor, where: tuple[int, slice | Tensor | None]) -> None:
    """total[where] += gradient."""
    dim, what = where
    if isinstance(what, slice):
        total.narrow(dim, what.start, what.stop - what.start).add_(gradient)
    elif what is None:
        total.add_(gradient)
    else:
        total.index_add_(dim, what, gradient.to(total.dtype))
