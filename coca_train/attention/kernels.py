"""Attention kernels. `eager` is the definition; every other path must equal it, gradients included.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D value width,
E dot-product width (>= D). The queries are the last T of the S keys. The parts are disjoint views of the
same tokens under one softmax (attention/pattern.py); almost always there is one.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.attention.flex import flex, is_supported
from coca_train.attention.linear import definition, is_linear, linear
from coca_train.attention.pattern import BIDIRECTIONAL, CAUSAL, Layout, may_see
from coca_train.attention.scores import (
    Part,
    Tensors,
    Tile,
    apply_values,
    check_carry,
    fuses,
    keys_of_heads,
    masked_pairs,
    of_heads,
    repeat_heads,
    rest_of,
    scores,
    slice_tile,
    tensors_of,
)
from coca_train.attention.tiled_attention import tiled
from coca_train.runtime.device import device_type

QUERY_BLOCK = 128  # rows of scores alive at once in `blocked` [queries]
MASK_BLOCK = 512  # rows of the mask alive at once in `sdpa` after a cache [queries]
RECOMPUTE_ABOVE = 1024  # `blocked` keeps no scores for the backward pass beyond this many keys
HALF = (torch.bfloat16, torch.float16)
BLOCKED_BELOW = 1024  # on CPU in bfloat16, blocked products beat the fused kernel up to this many keys

Kernel = Callable[[Sequence[Part], Tensor, float], Tensor]


def is_plain(parts: Sequence[Part]) -> bool:
    """Whether the scores are q'·k' under a causal mask, or none, and nothing else, so that any fused kernel can compute
    them."""
    first = parts[0]
    if is_linear(parts) or len(parts) > 1 or first.score_mod is not None:
        return False
    if first.layout.rule not in (CAUSAL, BIDIRECTIONAL) or first.layout.doc_BS is not None:
        return False
    return not any(term is not None for term in first.terms)  # in words that Dynamo of torch 2.11 follows


def _rows(
    parts: Sequence[tuple[Part, Tensors]], v_BGSD: Tensor, scale: float, queries: slice, keys: slice, shift: bool
) -> Tensor:
    """Compute attention of some queries over some keys (all those they see), out_BHtD; autograd differentiates it."""
    check_carry([part for part, _ in parts])
    merged, rest, pieces = None, None, []
    for part, tensors in parts:
        if not may_see(part.layout, queries, keys):
            continue
        tile = Tile(part.layout, queries, keys, shift and part.layout.contiguous)
        piece, masked_B1ts = slice_tile(tensors, tile), masked_pairs(tile)
        s_BHts, carry_BHtN = scores(part.hook, piece, tile, scale, masked_B1ts)
        if merged is None:
            rest = rest_of(part.hook, piece, carry_BHtN)
            merged = s_BHts if masked_B1ts is None else s_BHts.masked_fill(masked_B1ts, -torch.inf)
        # The views part the keys among them, so each pair takes its score from the one view that shows it, and one
        # softmax goes over all.
        elif masked_B1ts is not None:
            merged = torch.where(masked_B1ts, merged, s_BHts)
        pieces.append((piece, tile, masked_B1ts))
    assert merged is not None, "a query sees at least itself"
    p_BHts = merged.softmax(dim=-1) if rest is None else _softmax_with(merged, rest)
    if len(pieces) == 1:
        piece, tile, _ = pieces[0]
        return apply_values(p_BHts, v_BGSD[:, :, keys], piece.value_RD, tile)
    out = torch.zeros((), dtype=v_BGSD.dtype, device=v_BGSD.device)
    for piece, tile, masked_B1ts in pieces:
        own = p_BHts if masked_B1ts is None else p_BHts.masked_fill(masked_B1ts, 0.0)
        out = out + apply_values(own, v_BGSD[:, :, keys], piece.value_RD, tile)
    return out


def _softmax_with(s_BHts: Tensor, rest_BHt1: Tensor) -> Tensor:
    """Return the shares of the keys where one more takes its own."""
    rest_BHt1 = rest_BHt1.to(s_BHts.dtype).expand(*s_BHts.shape[:3], 1)
    return torch.cat((s_BHts, rest_BHt1), -1).softmax(-1)[..., :-1]


def eager(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute the definition, with the whole T x S score matrix and every term looked up pair by pair. Returns
    out_BTHD."""
    if is_linear(parts):
        return definition(parts, v_BSGD)
    everything = slice(0, parts[0].q_BTHE.shape[1]), slice(0, v_BSGD.shape[1])
    paired = [(part, tensors_of(part)) for part in parts]
    return _rows(paired, v_BSGD.transpose(1, 2), scale, *everything, shift=False).transpose(1, 2)


def blocked(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute any scheme under any attention pattern in memory that is linear in the length: O(S * QUERY_BLOCK) up to
    RECOMPUTE_ABOVE keys, with rows of scores kept for the backward pass; tiles with an online softmax beyond."""
    n_queries, n_keys = parts[0].q_BTHE.shape[1], v_BSGD.shape[1]
    if is_linear(parts) or (n_keys > RECOMPUTE_ABOVE and n_queries > 1):
        return tiled(parts, v_BSGD, scale)
    paired = [(part, tensors_of(part)) for part in parts]
    v_BGSD, out, bidirectional = v_BSGD.transpose(1, 2), [], parts[0].layout.rule.bidirectional
    for start in range(0, n_queries, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, n_queries)
        keys = slice(0, n_keys if bidirectional else stop + n_keys - n_queries)
        out.append(_rows(paired, v_BGSD, scale, slice(start, stop), keys, shift=True))
    return torch.cat(out, dim=2).transpose(1, 2)


def sdpa(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute torch's fused attention in O(T) memory. Plain scores only (`is_plain`); anything else is computed by
    `blocked`."""
    part = parts[0]
    n_queries, n_keys, width = part.q_BTHE.shape[1], v_BSGD.shape[1], v_BSGD.shape[-1]
    if not is_plain(parts):
        return blocked(parts, v_BSGD, scale)
    n_heads, q_BTHE = part.q_BTHE.shape[2], part.q_BTHE
    if part.scale_BT is not None:  # without terms the same as scaling the scores
        q_BTHE = (q_BTHE * part.scale_BT[:, :, None, None]).to(q_BTHE.dtype)
    q_BHTE = q_BTHE.transpose(1, 2)
    k_BHSE, v_BHSD = (x.transpose(1, 2) for x in (part.k_BSGE, v_BSGD))
    # torch's kernels for float32 on CUDA know no groups, and what it takes instead holds T x S scores.
    groups = k_BHSE.shape[1] != n_heads
    grouped = groups and q_BHTE.dtype in HALF
    if groups and not grouped:
        k_BHSE, v_BHSD = repeat_heads(k_BHSE, n_heads), repeat_heads(v_BHSD, n_heads)
    padded = q_BHTE.shape[-1] - width
    if padded:  # fused kernels want one width for q, k and v
        v_BHSD = F.pad(v_BHSD, (0, padded))
    all_seen = n_queries == 1 or part.layout.rule == BIDIRECTIONAL
    if all_seen or n_queries == n_keys:
        out_BHTE = F.scaled_dot_product_attention(
            q_BHTE, k_BHSE, v_BHSD, is_causal=not all_seen, scale=scale, enable_gqa=grouped
        )
    else:
        out_BHTE = _causal_after_cache(q_BHTE, repeat_heads(k_BHSE, n_heads), repeat_heads(v_BHSD, n_heads), scale)
    return (out_BHTE[..., :width] if padded else out_BHTE).transpose(1, 2)


def _causal_after_cache(q_BHTE: Tensor, k_BHSE: Tensor, v_BHSE: Tensor, scale: float) -> Tensor:
    """Compute causal attention of the last T of S tokens. torch's causal mask begins at the first key, so a mask is
    passed, some rows at a time."""
    n_queries, n_keys, out = q_BHTE.shape[2], k_BHSE.shape[2], []
    for start in range(0, n_queries, MASK_BLOCK):
        q_BHtE = q_BHTE[:, :, start : start + MASK_BLOCK]
        before, rows = n_keys - n_queries + start, q_BHtE.shape[2]
        seen_ts = torch.ones(rows, before + rows, dtype=torch.bool, device=q_BHTE.device).tril(before)
        keys = slice(0, before + rows)
        out.append(
            F.scaled_dot_product_attention(
                q_BHtE, k_BHSE[:, :, keys], v_BHSE[:, :, keys], attn_mask=seen_ts, scale=scale
            )
        )
    return torch.cat(out, dim=2)


def choose(parts: Sequence[Part], n_keys: int) -> str:
    """Return the fastest kernel for this device, dtype and length, as measured on the CPU (see benchmarks/)."""
    if is_linear(parts):
        return "linear"
    q_BTHE = parts[0].q_BTHE
    device = device_type(q_BTHE)
    if q_BTHE.shape[1] > 1:
        if device == "cpu" and q_BTHE.dtype == torch.bfloat16 and n_keys <= BLOCKED_BELOW:
            return "blocked"
        if device == "cuda" and not is_plain(parts) and is_supported(parts):
            return "flex"
    return "sdpa" if is_plain(parts) else "blocked"


def auto(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute attention by the kernel that `choose` returns."""
    return KERNELS[choose(parts, v_BSGD.shape[1])](parts, v_BSGD, scale)


def flex_or_blocked(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute attention by FlexAttention where it can look up every term and runs, else by `blocked`."""
    device = v_BSGD.device.type
    runs = device != "cuda" or fuses(device)  # elsewhere it is not compiled
    return (flex if is_supported(parts) and runs else blocked)(parts, v_BSGD, scale)


def by_heads(kernel: Kernel, part: Part, layouts: Sequence[Layout], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute attention of equal groups of heads that see different keys; return out_BTHD."""
    n_groups, n_heads, outs = len(layouts), part.q_BTHE.shape[2], []
    for group, layout in enumerate(layouts):
        own = of_heads(part, group, n_groups)._replace(layout=layout)
        outs.append(kernel([own], keys_of_heads(v_BSGD, group, n_groups, n_heads), scale))
    return torch.cat(outs, 2)


KERNELS: dict[str, Kernel] = {
    "auto": auto,
    "eager": eager,
    "sdpa": sdpa,
    "blocked": blocked,
    "flex": flex_or_blocked,
    "linear": lambda parts, v_BSGD, scale: linear(parts, v_BSGD),
}
