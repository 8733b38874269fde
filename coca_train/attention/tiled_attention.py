"""Attention tile by tile with an online softmax: memory O(T), forward and backward, for every scheme and attention
pattern.

Forward keeps a running maximum and sum per query (Milakov and Gimelshein, arXiv 1805.02867; FlashAttention,
arXiv 2205.14135, section 3.1), so no more than one tile of scores is ever alive. Backward recomputes each tile
from the saved log-sum-exp and lets autograd take the tile's own gradients, so that the formula of the scores
is in one place (scores.py). Tiles in which nothing is seen are never visited: a window costs O(T·window).

Tiles of keys are visited from the nearest to the farthest, as a hook may carry what it sums up from one to the next.
Backward goes the other way round, since a tile's gradient needs that of what it carried on. So for a hook that carries
it first runs along the tiles to compute what each receives, and keeps no more than that: N numbers for each tile, head
and query of one block of queries.

Shape legend: as in scores.py; T all queries, S all keys.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from coca_train.attention.linear import is_linear, linear
from coca_train.attention.pattern import Layout, may_see
from coca_train.attention.scores import (
    Part,
    Tensors,
    Tile,
    apply_values,
    apply_values_backward,
    check_carry,
    is_free_to_read,
    leaves,
    masked_pairs,
    rest_of,
    scores,
    slice_tile,
    tensors_of,
    tile_index,
    unflatten,
)
from coca_train.positions.base import Hook, Terms
from coca_train.runtime import autograd

QUERY_TILE, KEY_TILE = 128, 512  # [tokens]; see benchmarks/
# With few heads up to four times as many queries, while a tile has no more pairs than this: more of them share what is
# done once for a tile, and with each key that is read or added to. Larger tiles leave the cache.
TILE_PAIRS = 2**19
LOG2_E = 1 / math.log(2)

# Halves that the CPU has no instructions for are multiplied one by one, twenty times slower than float32 on an AVX2
# core. There they are cast to float32, for all tiles at once, which also rounds less.
_ONEDNN = torch.ops.mkldnn if torch.backends.mkldnn.is_available() else None
WIDENED = {
    torch.bfloat16: _ONEDNN is not None and not _ONEDNN._is_mkldnn_bf16_supported(),
    torch.float16: _ONEDNN is not None and not _ONEDNN._is_mkldnn_fp16_supported(),
}

Visit = tuple[int, Tile, Tensor | None]  # part, tile, what is hidden in it


class _Plan(NamedTuple):
    """The arguments of the computation that are not tensors to differentiate."""

    layouts: tuple[Layout, ...]
    hooks: tuple[Hook | None, ...]
    carries: bool
    forms: tuple[Tensors, ...]  # which tensors each part has, without any
    scale: float
    rows: int  # of a tile [queries]

    def parts(self, flat: Iterable[Tensor | None]) -> list[Tensors]:
        """Group the flat list of tensors by part."""
        left = iter(flat)
        return [unflatten(form, left) for form in self.forms]

    def scores(self, piece: Tensors, visit: Visit, carry_BHtN: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return (scores, float32 or wider, masked pairs at -inf; the numbers that are carried on)."""
        number, tile, masked_B1ts = visit
        s_BHts, carry_BHtN = scores(self.hooks[number], piece, tile, self.scale, masked_B1ts, carry_BHtN)
        s_BHts = s_BHts.to(torch.promote_types(s_BHts.dtype, torch.float32))
        return s_BHts if masked_B1ts is None else s_BHts.masked_fill(masked_B1ts, -torch.inf), carry_BHtN


def query_tile(parts: Sequence[Part]) -> int:
    """Return how many queries a tile has: few where a hook may hold any number of values for each pair, and where every
    query is multiplied with every distance of the tile, whose number grows with that of the queries."""
    if any(part.hook is not None or part.terms._replace(distance_HR=None) != Terms() for part in parts):
        return QUERY_TILE
    batch, _, n_heads, _ = parts[0].q_BTHE.shape
    return QUERY_TILE * min(4, max(1, TILE_PAIRS // (batch * n_heads * QUERY_TILE * KEY_TILE)))


def tiled(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute attention over the parts' keys under one softmax, or without one by `linear`. Returns out_BTHD."""
    if is_linear(parts):
        return linear(parts, v_BSGD)
    given = [tensors_of(part) for part in parts]
    flat = [tensor for tensors in given for _, tensor in leaves(tensors)]
    forms = tuple(unflatten(tensors, [None] * len(leaves(tensors))) for tensors in given)
    layouts, hooks = tuple(part.layout for part in parts), tuple(part.hook for part in parts)
    plan = _Plan(layouts, hooks, check_carry(parts), forms, scale, query_tile(parts))
    return autograd.apply(_Online, plan, v_BSGD.transpose(1, 2), *flat).transpose(1, 2)


def _blocks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _visits(layouts: Sequence[Layout], queries: slice) -> Iterator[Visit]:
    """Yield all tiles that some queries may see, the nearest keys first."""
    for keys in reversed(_blocks(layouts[0].text_BS.shape[1], KEY_TILE)):
        for number, layout in enumerate(layouts):
            if may_see(layout, queries, keys):
                tile = Tile(layout, queries, keys, layout.contiguous)
                masked_B1ts = masked_pairs(tile)
                if masked_B1ts is None or not (is_free_to_read(masked_B1ts) and bool(masked_B1ts.all())):
                    yield number, tile, masked_B1ts


class _Planned(autograd.Context, Protocol):
    plan: _Plan


class _Online(torch.autograd.Function):
    """Inputs: plan, v, and the tensors of every part one after the other (scores.leaves); None where there is none."""

    @staticmethod
    def forward(ctx: _Planned, plan: _Plan, v_BGSD: Tensor, *flat: Tensor | None) -> Tensor:
        wide_v_BGSD, wide = _widen(v_BGSD), [None if tensor is None else _widen(tensor) for tensor in flat]
        parts = plan.parts(wide)
        outs, lses = [], []
        for queries in _blocks(plan.layouts[0].text_BT.shape[1], plan.rows):
            out, lse = _attend(plan, parts, wide_v_BGSD, queries)
            outs.append(out.to(v_BGSD.dtype))
            lses.append(lse)
        out_BHTD, lse_BHT1 = torch.cat(outs, 2), torch.cat(lses, 2)
        ctx.plan = plan
        ctx.save_for_backward(v_BGSD, out_BHTD, lse_BHT1, *flat)
        return out_BHTD

    @staticmethod
    def backward(ctx: _Planned, *grads: Tensor) -> tuple[Tensor | None, ...]:
        v, out_BHTD, lse_BHT1, *flat = ctx.saved_tensors
        plan = ctx.plan
        v_BGSD, wide = _widen(v), [None if tensor is None else _widen(tensor) for tensor in flat]
        parts = plan.parts(wide)
        wanted = ctx.needs_input_grad[1:]
        sums = [None if t is None or not need else _zeros(t) for t, need in zip((v_BGSD, *wide), wanted, strict=True)]
        g_v_BGSD, into = sums[0], plan.parts(sums[1:])
        for queries in _blocks(plan.layouts[0].text_BT.shape[1], plan.rows):
            g_BHtD, lse_BHt1 = grads[0][:, :, queries].to(v_BGSD.dtype), lse_BHT1[:, :, queries]
            delta_BHt1 = (g_BHtD.to(lse_BHt1.dtype) * out_BHTD[:, :, queries]).sum(-1, keepdim=True)
            visits = list(_visits(plan.layouts, queries))
            carries, carry_BHtN = _carries(plan, parts, visits)
            totals = into[visits[-1][0]]
            g_carry_BHtN = _rest_gradients(plan, parts, visits[-1], carry_BHtN, totals, lse_BHt1, delta_BHt1)
            for visit, carry_BHtN in zip(reversed(visits), reversed(carries), strict=True):
                number, tile, _ = visit
                wants = [total is not None for _, total in leaves(into[number])]
                flow = _Flow(g_BHtD, lse_BHt1, delta_BHt1, carry_BHtN, g_carry_BHtN)
                g_v, g_piece, g_carry_BHtN = _gradients(plan, parts[number], v_BGSD, visit, wants, flow)
                if g_v_BGSD is not None:
                    g_v_BGSD[:, :, tile.keys] += g_v
                for (name, total), gradient in zip(leaves(into[number]), g_piece, strict=True):
                    if total is not None and gradient is not None:
                        _add(total, gradient, tile_index(name, total, tile))
        given = [None if s is None else s.to(t.dtype) for s, t in zip(sums, (v, *flat), strict=True)]
        return None, *given


class _Flow(NamedTuple):
    """The inputs of a tile's backward pass from other tiles."""

    g_BHtD: Tensor  # gradient of the output
    lse_BHt1: Tensor
    delta_BHt1: Tensor  # gradient · output
    carry_BHtN: Tensor | None  # of the tile on its right
    g_carry_BHtN: Tensor | None  # gradient of what it carries on to the tile on its left


def _gradients(
    plan: _Plan, part: Tensors, v_BGSD: Tensor, visit: Visit, wants: Sequence[bool], flow: _Flow
) -> tuple[Tensor, list[Tensor | None], Tensor | None]:
    """Return the gradients of one tile: of its values, of its leaves (those that are wanted), of the numbers carried to
    it."""
    tile = visit[1]
    with torch.enable_grad():
        piece = _detach(slice_tile(part, tile), wants)
        carry_BHtN = None if flow.carry_BHtN is None else flow.carry_BHtN.detach().requires_grad_()
        s_BHts, carried_BHtN = plan.scores(piece, visit, carry_BHtN)
    p_BHts = _exp(s_BHts.detach() - flow.lse_BHt1)
    g_p_BHts, g_v, g_value = apply_values_backward(flow.g_BHtD, p_BHts, v_BGSD[:, :, tile.keys], piece.value_RD, tile)
    # The gradient of a softmax row needs its sum over all keys, Σ p·dp = gradient · output (delta): it is known before
    # the first tile, so that tiles need not wait for one another (arXiv 2205.14135, appendix B.2).
    outs, g_outs = [s_BHts], [g_p_BHts.sub_(flow.delta_BHt1).mul_(p_BHts)]
    if carried_BHtN is not None and flow.g_carry_BHtN is not None:
        outs, g_outs = [*outs, carried_BHtN], [*g_outs, flow.g_carry_BHtN]
    *g_piece, g_carry_BHtN = _grad(outs, g_outs, [*(x for _, x in leaves(piece)), carry_BHtN])
    value_at = Tensors._fields.index("value_RD")
    g_piece[value_at] = g_value
    return g_v, g_piece, g_carry_BHtN


def _grad(outs: list[Tensor], g_outs: list[Tensor], inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradient of every input; None where there is none, or none is wanted."""
    pairs = [(out, g) for out, g in zip(outs, g_outs, strict=True) if out.requires_grad]
    differentiable = [x for x in inputs if x is not None and x.requires_grad]
    if not pairs or not differentiable:
        return [None] * len(inputs)
    outs, g_outs = ([pair[at] for pair in pairs] for at in (0, 1))
    grads = iter(torch.autograd.grad(outs, differentiable, g_outs, allow_unused=True))
    return [next(grads) if x is not None and x.requires_grad else None for x in inputs]


def _rest_gradients(
    plan: _Plan,
    parts: Sequence[Tensors],
    farthest: Visit,
    carry_BHtN: Tensor | None,
    totals: Tensors,
    lse_BHt1: Tensor,
    delta_BHt1: Tensor,
) -> Tensor | None:
    """Add the gradients of what the key without a value is made of; return that of the carry of all keys."""
    number, tile, _ = farthest
    hook = plan.hooks[number]
    if hook is None or hook.rest is None:
        return None
    wants = [total is not None for _, total in leaves(totals)]
    with torch.enable_grad():
        piece = _detach(slice_tile(parts[number], tile), wants)
        carry_BHtN = _no_carry(lse_BHt1) if carry_BHtN is None else carry_BHtN.detach().requires_grad_()
        rest_BHt1 = rest_of(hook, piece, carry_BHtN)
    assert rest_BHt1 is not None
    # As that of every key, p·(dp - delta), with a value of zero.
    g_rest_BHt1 = -_exp(rest_BHt1.detach() - lse_BHt1) * delta_BHt1
    inputs = [*piece.parameters, carry_BHtN]
    *g_parameters, g_carry = _grad([rest_BHt1], [g_rest_BHt1.sum_to_size(rest_BHt1.shape)], inputs)
    for total, gradient in zip(totals.parameters, g_parameters, strict=True):
        if total is not None and gradient is not None:
            total.add_(gradient)
    return g_carry if plan.carries else None


def _no_carry(lse_BHt1: Tensor) -> Tensor:
    return lse_BHt1[..., :0]


def _carries(
    plan: _Plan, parts: Sequence[Tensors], visits: Sequence[Visit]
) -> tuple[list[Tensor | None], Tensor | None]:
    """Return the numbers that the hook carries to each tile of a block of queries, and those of all of them; None: it
    carries none."""
    if not plan.carries:
        return [None] * len(visits), None
    carry_BHtN, carries = None, []
    for visit in visits:
        carries.append(carry_BHtN)
        _, carry_BHtN = plan.scores(slice_tile(parts[visit[0]], visit[1]), visit, carry_BHtN)
    return carries, carry_BHtN


def _attend(plan: _Plan, parts: Sequence[Tensors], v_BGSD: Tensor, queries: slice) -> tuple[Tensor, Tensor]:
    """Return output (in the dtype of v) and log-sum-exp of one block of queries."""
    top = total = out = carry_BHtN = None
    for visit in _visits(plan.layouts, queries):
        number, tile, _ = visit
        piece = slice_tile(parts[number], tile)
        s_BHts, carried_BHtN = plan.scores(piece, visit, carry_BHtN)
        carry_BHtN = carried_BHtN if plan.carries else None
        tile_max = s_BHts.amax(-1, keepdim=True)
        # Sums so far were taken against the maximum so far. A larger one makes them smaller by exp(old - new), so that
        # no exponent is ever above 0 and the end is as if the maximum had been known from the start.
        new_top = tile_max if top is None else torch.maximum(top, tile_max)
        finite = new_top.masked_fill(new_top == -torch.inf, 0.0)  # rows that have seen nothing so far
        p_BHts = _exp(s_BHts - finite)
        added = apply_values(p_BHts, v_BGSD[:, :, tile.keys], piece.value_RD, tile).to(p_BHts.dtype)
        if top is None or total is None or out is None:
            total, out = p_BHts.sum(-1, keepdim=True), added
        else:
            shrink = (top - finite).exp_()
            total, out = total * shrink + p_BHts.sum(-1, keepdim=True), out * shrink + added
        top = new_top
    assert top is not None and total is not None and out is not None, "a query sees at least itself"
    carry_BHtN = _no_carry(top) if carry_BHtN is None else carry_BHtN
    if (rest_BHt1 := rest_of(plan.hooks[number], piece, carry_BHtN)) is not None:
        new_top = torch.maximum(top, rest_BHt1)
        shrink = (top - new_top).exp_()
        total, out, top = total * shrink + (rest_BHt1 - new_top).exp(), out * shrink, new_top
    return (out / total).to(v_BGSD.dtype), top + total.log()


def _widen(tensor: Tensor) -> Tensor:
    """Return the tensor, or the same numbers in float32 where products in its dtype would be slow."""
    if not tensor.is_cpu or not WIDENED.get(tensor.dtype, False):
        return tensor
    return tensor.float()


def _exp(x: Tensor) -> Tensor:
    """Compute e^x in place: on the CPU 2^y takes half the time of e^x."""
    return x.mul_(LOG2_E).exp2_()


def _zeros(tensor: Tensor) -> Tensor:
    """Create a sum over tiles, float32 or wider."""
    return torch.zeros(tensor.shape, dtype=torch.promote_types(tensor.dtype, torch.float32), device=tensor.device)


def _detach(pieces: Tensors, wants: Sequence[bool]) -> Tensors:
    """Detach the values from the graph; those wanted become new leaves."""
    given = zip((x for _, x in leaves(pieces)), wants, strict=True)
    return unflatten(pieces, [None if x is None else x.detach().requires_grad_(want) for x, want in given])


def _add(total: Tensor, gradient: Tensor, where: tuple[int, slice | Tensor | None]) -> None:
    """Add the gradient: total[where] += gradient."""
    dim, what = where
    if isinstance(what, slice):
        total.narrow(dim, what.start, what.stop - what.start).add_(gradient)
    elif what is None:
        total.add_(gradient)
    else:
        total.index_add_(dim, what, gradient.to(total.dtype))
