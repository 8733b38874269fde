"""The scores of attention for one tile of queries and keys: the one place where everything is added up.

score = ((q'·k' + q_m·e_r + k_n·e_r) * scale + b(h, r)) * λ_m, r the distance of the pair as the scheme sees it, λ_m
the logit scale of the query; then what the scheme's hook makes of it; -inf where the pair is not seen. Terms are
tables over r; two ways to spread them over a tile, equal by test:

gathered  by the distance of each pair: the definition, for any positions;
shifted   where positions rise by one: the rows of a (queries x distances) matrix, each shifted by one against
          the one above, are a tile. A reshape: nothing is looked up, and the backward pass is one too.

Shape legend: B batch, H query heads, G key/value heads, t queries, s keys, W distances in the tile,
R rows of a table, E dot-product width, D width, N numbers that a hook carries.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.attention.pattern import Layout, all_seen, seen
from coca_train.positions.base import Hook, Pairs, PositionedQK, ScoreMod, Scores, Terms
from coca_train.runtime import autograd
from coca_train.runtime.compilation import compile_with_fallback
from coca_train.runtime.machine import can_compile


class Part(NamedTuple):
    """One view of attention: queries and keys with positions applied, and their layout."""

    q_BTHE: Tensor
    k_BSGE: Tensor
    terms: Terms
    layout: Layout
    score_mod: ScoreMod | None = None
    scale_BT: Tensor | None = None  # of every query's scores (models/layers.py), float32
    divisor: tuple[Tensor, Tensor] | None = None  # of linear attention (attention/linear.py)

    @property
    def hook(self) -> Hook | None:
        return None if self.score_mod is None else self.score_mod.by


def part_of(mapped: PositionedQK, layout: Layout, scale_BT: Tensor | None = None) -> Part:
    """Combine the queries and keys of a layer with one layout."""
    return Part(mapped.q_BTHE, mapped.k_BSGE, mapped.terms, layout, mapped.score_mod, scale_BT, mapped.divisor)


def of_heads(part: Part, group: int, n_groups: int) -> Part:
    """Return a part for one of several equal groups of query heads, with the keys that belong to them."""
    n_heads = part.q_BTHE.shape[2]

    def rows(x: Tensor, dim: int) -> Tensor:  # of a table of all heads, or of one for all
        size = n_heads // n_groups
        return x.narrow(dim, group * size, size) if x.shape[dim] == n_heads else x

    terms, score_mod = part.terms, part.score_mod
    if terms.distance_HR is not None:
        terms = terms._replace(distance_HR=rows(terms.distance_HR, 0))
    if terms.query is not None:
        terms = terms._replace(query=(rows(terms.query[0], 2), rows(terms.query[1], 1)))
    if terms.key is not None:
        terms = terms._replace(key=(keys_of_heads(terms.key[0], group, n_groups, n_heads), rows(terms.key[1], 1)))
    if score_mod is not None:
        assert not score_mod.by.mixes_heads, "patterns/s2.py refuses this"
        per_head = score_mod.by.per_head
        parameters = (rows(x, 0) if i in per_head else x for i, x in enumerate(score_mod.parameters))
        queries = (rows(x, 2) if x.dim() > 2 else x for x in score_mod.queries)
        keys = (keys_of_heads(x, group, n_groups, n_heads) if x.dim() > 2 else x for x in score_mod.keys)
        score_mod = ScoreMod(score_mod.by, tuple(parameters), tuple(queries), tuple(keys))
    k_BSGE = keys_of_heads(part.k_BSGE, group, n_groups, n_heads)
    return part._replace(q_BTHE=rows(part.q_BTHE, 2), k_BSGE=k_BSGE, terms=terms, score_mod=score_mod)


def keys_of_heads(x_BSGD: Tensor, group: int, n_groups: int, n_heads: int) -> Tensor:
    """Return the keys or values of one of several equal groups of n_heads query heads."""
    if x_BSGD.shape[2] % n_groups:
        x_BSGD = x_BSGD.repeat_interleave(n_heads // x_BSGD.shape[2], 2)
    size = x_BSGD.shape[2] // n_groups
    return x_BSGD.narrow(2, group * size, size)


def check_carry(parts: Sequence[Part]) -> bool:
    """Whether a hook carries numbers from tile to tile. It runs along one view: attention patterns with several refuse
    it."""
    carries = any(part.hook is not None and part.hook.carried for part in parts)
    assert len(parts) == 1 or not carries, "patterns/_pairs.py refuses this"
    return carries


class Tensors(NamedTuple):
    """A part's tensors, heads first but for the hook's; of everything, or of one tile (`slice_tile`)."""

    q_BHtE: Tensor
    k_BGsE: Tensor
    query_q_BHtD: Tensor | None
    query_e_HRD: Tensor | None
    key_k_BGsD: Tensor | None
    key_e_HRD: Tensor | None
    distance_HR: Tensor | None
    value_RD: Tensor | None
    scale_B1t1: Tensor | None
    parameters: tuple[Tensor, ...]  # the hook's, unchanged
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]


def tensors_of(part: Part) -> Tensors:
    """Return views of a part's tensors with heads first."""
    query_q, query_e = part.terms.query or (None, None)
    key_k, key_e = part.terms.key or (None, None)
    return Tensors(
        part.q_BTHE.transpose(1, 2),
        part.k_BSGE.transpose(1, 2),
        None if query_q is None else query_q.transpose(1, 2),
        None if query_e is None else query_e.transpose(0, 1),
        None if key_k is None else key_k.transpose(1, 2),
        None if key_e is None else key_e.transpose(0, 1),
        part.terms.distance_HR,
        part.terms.value_RD,
        None if part.scale_BT is None else part.scale_BT[:, None, :, None],
        *((), (), ()) if part.score_mod is None else part.score_mod[1:],
    )


def leaves(tensors: Tensors) -> list[tuple[str, Tensor | None]]:
    """List every tensor with the name of its field; fields that hold several are unfolded."""
    pairs = []
    for name, value in zip(Tensors._fields, tensors, strict=True):
        pairs += [(name, each) for each in (value if isinstance(value, tuple) else (value,))]
    return pairs


def unflatten(tensors: Tensors, values: Iterable[Tensor | None]) -> Tensors:
    """Build Tensors of the same form with other values, in the order of `leaves`."""
    left = iter(values)
    return Tensors._make(tuple(islice(left, len(x))) if isinstance(x, tuple) else next(left) for x in tensors)


class Tile(NamedTuple):
    """Some queries (indices among the T) and keys (among the S) of a layout."""

    layout: Layout
    queries: slice
    keys: slice
    shifted: bool  # spread terms by shifting; else by gathering

    def row_Bts(self, n_rows: int) -> Tensor:
        """Return the row of each pair in a table by distance, as the scheme sees it; beyond its ends the last one."""
        pos_BT, pos_BS = self.layout.pos_BT[:, self.queries], self.layout.pos_BS[:, self.keys]
        distance_Bts = pos_BT[:, :, None] - pos_BS[:, None, :]
        return (distance_Bts + self.layout.rule.zero_row(n_rows)).clamp(0, n_rows - 1)

    def rows(self, n_rows: int, descending: bool, device: torch.device) -> Tensor | None:
        """Return which rows of a table the W = t + s - 1 distances of a shifted tile use; None: all of them."""
        if not self.shifted:
            return None
        offset = self.layout.text_BS.shape[1] - self.layout.text_BT.shape[1]
        lowest = offset + self.queries.start - (self.keys.stop - 1)
        highest = offset + self.queries.stop - 1 - self.keys.start
        zero = self.layout.rule.zero_row(n_rows)
        rows_W = torch.arange(lowest + zero, highest + zero + 1, device=device).clamp(0, n_rows - 1)
        return rows_W.flip(0) if descending else rows_W


# Where each field of Tensors is cut (dimension), and how its rows of distances are ordered in a shifted tile.
_QUERY_DIM = {"q_BHtE": 2, "query_q_BHtD": 2, "scale_B1t1": 2, "queries": 1}
_KEY_DIM = {"k_BGsE": 2, "key_k_BGsD": 2, "keys": 1}
_DESCENDING, _ASCENDING = ("query_e_HRD", "distance_HR", "value_RD"), ("key_e_HRD",)
ROW_DIM = {"query_e_HRD": 1, "key_e_HRD": 1, "distance_HR": 1, "value_RD": 0}


def tile_index(name: str, tensor: Tensor, tile: Tile) -> tuple[int, slice | Tensor | None]:
    """Return (dimension, index) of what a tile uses of a tensor in this field of Tensors; index None: all of it."""
    if name in _QUERY_DIM:
        return _QUERY_DIM[name], tile.queries
    if name in _KEY_DIM:
        return _KEY_DIM[name], tile.keys
    if name == "parameters":
        return 0, None
    dim = ROW_DIM[name]
    return dim, tile.rows(tensor.shape[dim], name in _DESCENDING, tensor.device)


def slice_tile(tensors: Tensors, tile: Tile) -> Tensors:
    """Slice the tensors of one tile."""
    pieces = []
    for name, tensor in leaves(tensors):
        if tensor is not None:
            dim, what = tile_index(name, tensor, tile)
            if isinstance(what, slice):
                tensor = tensor.narrow(dim, what.start, what.stop - what.start)
            elif what is not None:
                tensor = tensor.index_select(dim, what)
        pieces.append(tensor)
    return unflatten(tensors, pieces)


def repeat_heads(x_BGsD: Tensor, n_heads: int) -> Tensor:
    """Repeat key/value heads for the query heads they serve."""
    n_groups = x_BGsD.shape[1]
    return x_BGsD if n_groups == n_heads else x_BGsD.repeat_interleave(n_heads // n_groups, dim=1)


def grouped(x_BHtN: Tensor, y_BGNs: Tensor) -> Tensor:
    """Multiply every query head x with its key/value head y, (B, H, t, s). Nothing is repeated: the rows of the query
    heads of a group are stacked."""
    n_heads, n_groups = x_BHtN.shape[1], y_BGNs.shape[1]
    if n_heads == n_groups:
        return x_BHtN @ y_BGNs
    rows = x_BHtN.unflatten(1, (n_groups, -1)).flatten(2, 3)
    return (rows @ y_BGNs).unflatten(2, (n_heads // n_groups, -1)).flatten(1, 2)


def scores(
    hook: Hook | None,
    piece: Tensors,
    tile: Tile,
    scale: float,
    masked_B1ts: Tensor | None,
    carry_BHtN: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return (scores_BHts of a tile, the numbers that its hook carries to the tile on its left). Pairs that are not
    visible have some finite score. carry_BHtN: from the tile on its right; None: there is none. Float32 or wider with
    terms or a hook, else in the dtype of q."""
    total_BHts = _sums(piece, tile, scale)
    if hook is None:
        return total_BHts, None
    if carry_BHtN is None:
        carry_BHtN = _wide(total_BHts).new_zeros(*total_BHts.shape[:3], hook.carried)
    pairs = Pairs(
        _wide(total_BHts),
        None if masked_B1ts is None else ~masked_B1ts,
        tile.layout.pos_BT[:, tile.queries],
        tile.layout.pos_BS[:, tile.keys],
        piece.parameters,
        piece.queries,
        piece.keys,
        piece.scale_B1t1,
    )
    compiles_alone = fuses(total_BHts.device.type) and not torch.compiler.is_compiling()  # else its graph has the hook
    return (_compiled(hook.scores) if compiles_alone else hook.scores)(pairs, carry_BHtN)


def rest_of(hook: Hook | None, piece: Tensors, carry_BHtN: Tensor | None) -> Tensor | None:
    """Return the score of the key without a value, (B, H, t, 1); None: there is none. carry_BHtN: of all keys."""
    if hook is None or hook.rest is None:
        return None
    assert carry_BHtN is not None
    return hook.rest(piece.parameters, carry_BHtN)


def fuses(device: str) -> bool:
    """Whether kernels are compiled on the fly for tensors of this device: on CUDA, where something can compile them.
    While a graph is being compiled there is a compiler."""
    return device == "cuda" and (torch.compiler.is_compiling() or can_compile(device))


@cache
def _compiled(function: Scores, backend: str = "inductor") -> Scores:
    """Compile a hook into one fused kernel, instead of a dozen on tensors of a tile's size. Not on the CPU, where a
    tile stays in the cache, and compiling costs more than it gains."""
    return compile_with_fallback(function, backend, f"attention's hook {function.__module__}.{function.__qualname__}")


def _sums(piece: Tensors, tile: Tile, scale: float) -> Tensor:
    """Add q'·k' and the terms of every pair, (B, H, t, s)."""
    n_heads = piece.q_BHtE.shape[1]
    total = grouped(piece.q_BHtE * scale, piece.k_BGsE.transpose(-1, -2))
    if piece.query_q_BHtD is not None and piece.query_e_HRD is not None:
        by_distance = (piece.query_q_BHtD * scale) @ piece.query_e_HRD.transpose(-1, -2)
        total = _wide(total) + _spread(by_distance, None if tile.shifted else tile.row_Bts(by_distance.shape[-1]))
    if piece.key_k_BGsD is not None and piece.key_e_HRD is not None:
        by_distance = (repeat_heads(piece.key_k_BGsD, n_heads) * scale) @ piece.key_e_HRD.transpose(-1, -2)
        row_Bst = None if tile.shifted else tile.row_Bts(by_distance.shape[-1]).transpose(-1, -2)
        total = _wide(total) + _spread(by_distance, row_Bst).transpose(-1, -2)
    if piece.distance_HR is not None:
        if tile.shifted:
            bias = autograd.apply(_Diagonals, piece.distance_HR, piece.q_BHtE.shape[2])
        else:
            bias = piece.distance_HR[:, tile.row_Bts(piece.distance_HR.shape[1])].transpose(0, 1)
        total = _wide(total) + bias
    return total if piece.scale_B1t1 is None else _wide(total) * piece.scale_B1t1


def apply_values(p_BHts: Tensor, v_BGsD: Tensor, value_RD: Tensor | None, tile: Tile) -> Tensor:
    """Return Σ_s p·(v_s + value[r]), a tile's contribution to the output: out_BHtD in the dtype of v."""
    out = grouped(p_BHts.to(v_BGsD.dtype), v_BGsD)
    if value_RD is None:
        return out
    by_distance = _gathered(p_BHts, tile, value_RD.shape[0])
    return out + (by_distance.to(value_RD.dtype) @ value_RD).to(out.dtype)


def apply_values_backward(
    g_BHtD: Tensor, p_BHts: Tensor, v_BGsD: Tensor, value_RD: Tensor | None, tile: Tile
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of p (a new tensor in its dtype), v and value, from that of the result of `apply_values`,
    which is not computed again."""
    n_groups = v_BGsD.shape[1]
    g_p_BHts = grouped(g_BHtD, v_BGsD.transpose(-1, -2)).to(p_BHts.dtype)
    rows_p, rows_g = (x.unflatten(1, (n_groups, -1)).flatten(2, 3) for x in (p_BHts.to(v_BGsD.dtype), g_BHtD))
    g_v_BGsD = rows_p.transpose(-1, -2) @ rows_g
    if value_RD is None:
        return g_p_BHts, g_v_BGsD, None
    g_BHtD, row_Bts = g_BHtD.to(value_RD.dtype), None if tile.shifted else tile.row_Bts(value_RD.shape[0])
    g_p_BHts += _spread(g_BHtD @ value_RD.transpose(-1, -2), row_Bts)
    by_distance = _gathered(p_BHts, tile, value_RD.shape[0]).to(value_RD.dtype)
    return g_p_BHts, g_v_BGsD, torch.einsum("bhtr,bhtd->rd", by_distance, g_BHtD)


def masked_pairs(tile: Tile) -> Tensor | None:
    """Return the pairs of a tile that are masked, (B, 1, t, s); None: no pair is."""
    # Most tiles lie below the diagonal, where all is seen: that saves the masking of their scores.
    if all_seen(tile.layout, tile.queries, tile.keys):
        return None
    seen_Bts = seen(tile.layout, tile.queries, tile.keys)
    # Indices do not tell it where there are documents.
    return None if is_free_to_read(seen_Bts) and bool(seen_Bts.all()) else ~seen_Bts[:, None]


def is_free_to_read(tensor: Tensor) -> bool:
    """Whether reading values is free: on a device the host would wait, and a graph has no values yet."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def _wide(x: Tensor) -> Tensor:
    """Widen to float32 or more: a bias reaches thousands, and bfloat16 would round the score away."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _spread(x_BHtR: Tensor, row_Bts: Tensor | None) -> Tensor:
    """Map columns by distance to columns by key. row_Bts: of each pair; None: the columns are those of a shifted
    tile."""
    if row_Bts is None:
        return _shift(x_BHtR)
    return x_BHtR.gather(-1, row_Bts[:, None].expand(*x_BHtR.shape[:2], -1, -1))


def _gathered(x_BHts: Tensor, tile: Tile, n_rows: int) -> Tensor:
    """Map columns by key to columns by distance, summed where keys share one: the transpose of `_spread`."""
    if tile.shifted:
        return _unshift(x_BHts)
    index = tile.row_Bts(n_rows)[:, None].expand_as(x_BHts)
    return x_BHts.new_zeros(*x_BHts.shape[:3], n_rows).scatter_add(-1, index, x_BHts)


class _Diagonals(torch.autograd.Function):
    """Apply `_shift` to one row for all queries, (H, W) -> (H, t, s), without a t x W matrix. Its gradient sums every
    diagonal."""

    @staticmethod
    def forward(ctx: autograd.Context, x_HW: Tensor, t: int) -> Tensor:
        return x_HW.unfold(-1, x_HW.shape[-1] - t + 1, 1).flip(-2)

    @staticmethod
    def backward(ctx: autograd.Context, *grads: Tensor) -> tuple[Tensor, None]:
        return _unshift(grads[0]).sum(-2), None


def _shift(x: Tensor) -> Tensor:
    """Map (…, t, W) to (…, t, s), W = t + s - 1: row i from column t - 1 - i on.

    Row i begins one element earlier than row i - 1, so that with rows of length W - 1 it is a straight slice.
    """
    t, w = x.shape[-2:]
    if t == 1:
        return x
    flat = x.flatten(-2)[..., t - 1 : t - 1 + t * (w - 1)]
    return flat.unflatten(-1, (t, w - 1))[..., : w - t + 1]


def _unshift(x: Tensor) -> Tensor:
    """Map (…, t, s) to (…, t, W), with zeros where a row has no key: the transpose of `_shift`."""
    t, s = x.shape[-2:]
    if t == 1:
        return x
    w = t + s - 1
    flat = F.pad(x, (0, w - 1 - s)).flatten(-2)
    return F.pad(flat, (t - 1, 1)).unflatten(-1, (t, w))
