"""FlexAttention: terms and rules compiled into one fused kernel, O(T) memory, on CUDA.

A term becomes a table that the kernel looks up by distance: b(h, r) as it is; q_m · e_r and k_n · e_r as products,
computed before, T x R, which is why they must be short. Several views are several calls, merged by their log-sum-exp.

On the CPU the same call runs uncompiled and forward only (torch has no CPU backward for it): slow, T x S, for tests.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D value width, R rows of a table,
I blocks of queries, J blocks of keys.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from coca_train.attention.pattern import BIDIRECTIONAL, CAUSAL, Layout
from coca_train.attention.scores import Part, leaves, repeat_heads, rest_of, tensors_of
from coca_train.positions.base import Pair
from coca_train.runtime.compilation import compile_alone

MAX_ROWS = 512  # of a table that is multiplied with every query or key beforehand
MIN_WIDTH = 16  # of heads, below which torch has no kernel
BLOCK = 128  # FlexAttention's own [tokens]

# torch's own blocks are chosen for a causal mask alone. With the look-ups of masks and terms they do not fit: up
# to 6 KB a thread go through memory, and on Blackwell some need more shared memory than there is. These leave next to
# none (tests/pretended_gpu/attention.py). On Hopper that is no gain: measured on an H200, torch's own blocks were 1.13
# to 1.62 times as fast (docs/gpu.md), and they stay where they fit. Elsewhere `make gpu` has yet to say.
FORWARD: dict[str, int] = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64, "fwd_num_warps": 8}
SMALL_FORWARD: dict[str, int] = FORWARD | {"fwd_BLOCK_M": 64}
# Where a block shares 99 KB, on RTX 30 and 40.
LITTLE_SHARED: dict[str, int] = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32, "fwd_num_warps": 4}
FLOAT32_LITTLE_SHARED: dict[str, int] = {"fwd_BLOCK_M": 32, "fwd_BLOCK_N": 16, "fwd_num_warps": 4}
BACKWARD: dict[str, int] = {f"bwd_BLOCK_{side}": 64 for side in ("M1", "N1", "M2", "N2")} | {"bwd_num_warps": 8}
SMALL_BACKWARD: dict[str, int] = BACKWARD | {"bwd_BLOCK_M1": 32, "bwd_BLOCK_N2": 32}

# (score, batch, head, query index, key index) -> score, and without the score -> seen
Modify = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def is_supported(parts: Sequence[Part]) -> bool:
    """Whether every term can be looked up and every hook computed for one pair: no value term, and no long table that
    is multiplied by queries or keys. Where sums must have one order, also whether gradients reach no looked-up
    tensor."""
    if torch.are_deterministic_algorithms_enabled() and _learns(parts):
        return False
    for part in parts:
        if part.divisor is not None or (part.hook is not None and part.hook.pointwise is None):
            return False
        products = [e_RHD for term in (part.terms.query, part.terms.key) if term is not None for e_RHD in term[1:]]
        if part.terms.value_RD is not None or any(len(e_RHD) > MAX_ROWS for e_RHD in products):
            return False
    return True


def _learns(parts: Sequence[Part]) -> bool:
    """Whether gradients reach what score_mod looks up. The backward kernel adds them by atomics, in an order that is
    different every time, even where deterministic algorithms are on in torch (2.11 to 2.13)."""
    looked_up = (x for part in parts for name, x in leaves(tensors_of(part)) if name not in ("q_BHtE", "k_BGsE"))
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in looked_up)


def flex(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    """Compute attention over the parts' keys under one softmax; return out_BTHD. Call it only where `serves` is
    true."""
    assert is_supported(parts), "this term is for `blocked`"
    v_BGSD = v_BSGD.transpose(1, 2)
    done = [_attend(part, v_BGSD, scale) for part in parts]
    if len(done) == 1:
        return _without_rest(parts[0], *done[0]).transpose(1, 2)
    # Each view is a softmax of its own. Its share of the softmax over all keys is exp(its log-sum-exp - that of all); a
    # view in which a query sees nothing has -inf, and so the share 0.
    total_BHT = torch.stack([lse_BHT for _, lse_BHT in done]).logsumexp(0)
    outs = [out_BHTD * (lse_BHT - total_BHT).exp()[..., None].to(out_BHTD.dtype) for out_BHTD, lse_BHT in done]
    return _without_rest(parts[0], torch.stack(outs).sum(0), total_BHT).transpose(1, 2)


def _without_rest(part: Part, out_BHTD: Tensor, lse_BHT: Tensor) -> Tensor:
    """Return the output where one more key, without a value, takes its share of the softmax."""
    rest_BHT1 = rest_of(part.hook, tensors_of(part), lse_BHT[..., None][..., :0])
    if rest_BHT1 is None:
        return out_BHTD
    return out_BHTD * (lse_BHT[..., None] - rest_BHT1).sigmoid().to(out_BHTD.dtype)


def _attend(part: Part, v_BGSD: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return out_BHTD and log-sum-exp lse_BHT (natural; -inf where a query sees nothing) of one view."""
    q_BHTE, k_BGSE = (_pad_width(x.transpose(1, 2)) for x in (part.q_BTHE, part.k_BSGE))
    run = _compiled(_key(part)) if _compiles(q_BHTE) else flex_attention
    modify = score_mod(part, scale)
    out_BHTD, aux = run(
        q_BHTE,
        k_BGSE,
        _pad_width(v_BGSD),
        score_mod=modify,
        block_mask=_blocks(part.layout),
        scale=scale,
        enable_gqa=q_BHTE.shape[1] != k_BGSE.shape[1],
        return_aux=AuxRequest(lse=True),
        kernel_options=options(
            q_BHTE, modify is not None, part.terms.key is not None or part.layout.rule not in (CAUSAL, BIDIRECTIONAL)
        ),
    )
    assert aux.lse is not None
    return out_BHTD[..., : v_BGSD.shape[-1]], aux.lse


def _pad_width(x: Tensor) -> Tensor:
    """Pad with zeros up to the width of a kernel: they change neither a product nor the part of an output that is
    kept."""
    return F.pad(x, (0, MIN_WIDTH - x.shape[-1])) if x.shape[-1] < MIN_WIDTH else x


def _compiles(q_BHTE: Tensor) -> bool:
    """Whether the call compiles its own kernel: the CPU has none, and a compiled block has it in its own graph."""
    return q_BHTE.is_cuda and not torch.compiler.is_compiling()


def options(q_BHTE: Tensor, modifies: bool = False, looks_far: bool = False) -> Any:
    """Return FlexAttention's kernel options; None: torch's own. modifies: there is a score_mod. looks_far: it looks up
    products of keys, or the mask positions. float32 is multiplied without tensor cores, by torch's own blocks where
    they fit."""
    width = q_BHTE.shape[-1]
    if not q_BHTE.is_cuda or not 64 <= width <= 256:
        return None
    capability = torch.cuda.get_device_capability(q_BHTE.device)
    major, little = capability[0], capability in ((8, 6), (8, 9))
    if q_BHTE.dtype == torch.float32:
        return FLOAT32_LITTLE_SHARED if little and width > 64 else None
    if major not in (8, 9, 10):
        return None
    if width > 128:
        return SMALL_BACKWARD | (LITTLE_SHARED if little else {})
    if major == 9:  # with further look-ups by pairs torch's own blocks need 240 KB of shared memory, of 227
        return FORWARD if modifies and looks_far else None
    if modifies:
        return SMALL_FORWARD | SMALL_BACKWARD
    return FORWARD | (BACKWARD if width > 64 or major == 10 else SMALL_BACKWARD)


def _blocks(layout: Layout) -> BlockMask:
    """Return the block mask of a layout, computed once in a forward for all its layers; a compiled block's graph has
    its own."""
    if torch.compiler.is_compiling():
        return block_mask(layout, mask_mod(layout))
    if "block_mask" not in layout.per_forward:
        layout.per_forward["block_mask"] = block_mask(layout, mask_mod(layout))
    kept = layout.per_forward["block_mask"]
    assert isinstance(kept, BlockMask)
    return kept


def _key(part: Part) -> Hashable:
    """Return what the code of a kernel depends on: the scheme's hook, which terms it has, and the rule of the view."""
    terms = tuple(None if term is None else len(term) for term in part.terms)
    shape = part.scale_BT is not None, part.layout.doc_BS is not None, part.q_BTHE.shape[2] != part.k_BSGE.shape[2]
    return part.hook, terms, part.layout.rule, shape


@cache
def _compiled(key: Hashable, backend: str = "inductor") -> Any:
    """Compile a separate kernel for every combination of scheme and rule. Crossing torch's limit of recompilations
    (lengths become dynamic long before) is an error: otherwise dense attention, T x S, would run silently."""
    return compile_alone(flex_attention, backend)


def score_mod(part: Part, scale: float) -> Modify | None:
    """Return the terms and the hook of a part as FlexAttention's score_mod, or None when there are none."""
    t, layout, n_heads = tensors_of(part), part.layout, part.q_BTHE.shape[2]
    pos_BT, pos_BS, n_rows = layout.pos_BT, layout.pos_BS, layout.pos_BT.shape[0]
    bidirectional = layout.rule.bidirectional

    def row(r: Tensor, table: Tensor) -> Tensor:
        """Return the row of a distance in a table (…, R)."""
        last = table.shape[-1] - 1
        return (r + layout.rule.zero_row(last + 1)).clamp(0, last) if bidirectional else r.clamp(max=last)

    lookups: list[Callable[..., Tensor]] = []
    if t.distance_HR is not None:
        bias_HR = t.distance_HR
        lookups.append(lambda b, h, m, n, r: bias_HR[h, row(r, bias_HR)])
    if t.query_q_BHtD is not None and t.query_e_HRD is not None:
        by_query_BHTR = (t.query_q_BHtD * scale) @ t.query_e_HRD.transpose(-1, -2)
        lookups.append(lambda b, h, m, n, r: by_query_BHTR[b, h, m, row(r, by_query_BHTR)])
    if t.key_k_BGsD is not None and t.key_e_HRD is not None:
        by_key_BHSR = (repeat_heads(t.key_k_BGsD, n_heads) * scale) @ t.key_e_HRD.transpose(-1, -2)
        lookups.append(lambda b, h, m, n, r: by_key_BHSR[b, h, n, row(r, by_key_BHSR)])
    scale_BT = part.scale_BT
    rewrite, offset = None, layout.text_BS.shape[1] - layout.text_BT.shape[1]
    if part.score_mod is not None:
        assert part.score_mod.by.pointwise is not None, "`serves` says so"
        rewrite = part.score_mod.by.pointwise(part.score_mod)
    if not lookups and rewrite is None and part.scale_BT is None:
        return None

    def modify(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        r = pos_BT[b % n_rows, m] - pos_BS[b % n_rows, n]
        r = r if bidirectional else r.clamp(min=0)
        for lookup in lookups:
            score = score + lookup(b, h, m, n, r)
        if scale_BT is not None:
            score = score * scale_BT[b % scale_BT.shape[0], m]
        return score if rewrite is None else rewrite(score, Pair(b, h, m, m + offset, n, r))

    return modify


def mask_mod(layout: Layout) -> Mask:
    """Return the visible pairs of a layout as FlexAttention's mask_mod: pair by pair the same as
    `attention.pattern.seen`."""
    text_BT, text_BS, doc_BS, rule = layout.text_BT, layout.text_BS, layout.doc_BS, layout.rule
    n_rows, offset = text_BT.shape[0], text_BS.shape[1] - text_BT.shape[1]

    def mask(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        distance = text_BT[b % n_rows, m] - text_BS[b % n_rows, n]
        if rule.bidirectional:
            visible, distance = n >= 0, distance.abs()
        else:
            visible = n <= m + offset
        if rule.window is not None:
            visible = visible & (distance < rule.window)
        if rule.beyond:
            visible = visible & (distance >= rule.beyond)
        if rule.first is not None:
            visible = visible & (text_BS[b % n_rows, n] < rule.first)
        if rule.every > 1:
            visible = visible & (distance % rule.every == 0)
        if rule.after:
            visible = visible & (text_BS[b % n_rows, n] >= rule.after)
        if rule.chunks is not None:
            visible = visible & rule.chunks.has(rule.chunks.apart(text_BT[b % n_rows, m], text_BS[b % n_rows, n]))
        if doc_BS is not None:
            row = b % doc_BS.shape[0]
            visible = visible & (doc_BS[row, m + offset] == doc_BS[row, n])
        return visible

    return mask


# ---- the block mask


class _Ends(NamedTuple):
    """Lowest and highest value of each block, (B, I)."""

    low: Tensor
    high: Tensor


def block_mask(layout: Layout, mask: Callable[..., Tensor]) -> BlockMask:
    """Return the visible pairs of a layout by blocks. mask: the same pair by pair."""
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    visible, whole = _classify_blocks(layout)
    # The last block may reach beyond the text, where nothing is seen.
    device = layout.text_BS.device
    full_I, full_J = (torch.arange(-(-n // BLOCK), device=device) < n // BLOCK for n in (n_queries, n_keys))
    whole = whole & visible & full_I[:, None] & full_J
    return BlockMask.from_kv_blocks(
        *_list_blocks(visible & ~whole),
        *_list_blocks(whole),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask,
        seq_lengths=(n_queries, n_keys),
    )


def _classify_blocks(layout: Layout) -> tuple[Tensor, Tensor]:
    """Return (blocks in which a pair may be seen, blocks in which all pairs are seen), bool (B, I, J) both."""
    rule, n_keys = layout.rule, layout.text_BS.shape[1]
    before = n_keys - layout.text_BT.shape[1]
    index_1S = torch.arange(n_keys, device=layout.text_BS.device)[None]
    query, key = _rows(index_1S[:, before:]), _columns(index_1S)
    visible, whole = key.low <= query.high, key.high <= query.low
    query, key = _rows(layout.text_BT), _columns(layout.text_BS)
    nearest, farthest = query.low - key.high, query.high - key.low
    if rule.bidirectional:
        visible, whole = torch.ones_like(visible), torch.ones_like(whole)
        nearest = torch.maximum(nearest, key.low - query.high)
        farthest = torch.maximum(farthest, key.high - query.low)
    if rule.window is not None:
        visible, whole = visible & (nearest < rule.window), whole & (farthest < rule.window)
    if rule.beyond:
        visible, whole = visible & (farthest >= rule.beyond), whole & (nearest >= rule.beyond)
    if rule.first is not None:
        visible, whole = visible & (key.low < rule.first), whole & (key.high < rule.first)
    visible, whole = visible & (key.high >= rule.after), whole & (key.low >= rule.after)
    if rule.every > 1:
        whole = torch.zeros_like(whole)
    if rule.chunks is not None:
        _, least, most, _ = rule.chunks
        near, far = rule.chunks.apart(query.low, key.high), rule.chunks.apart(query.high, key.low)
        visible, whole = visible & (far >= least), whole & (near >= least)
        if most is not None:
            visible, whole = visible & (near <= most), whole & (far <= most)
    if layout.doc_BS is not None:
        query, key = _rows(layout.doc_BS[:, before:]), _columns(layout.doc_BS)
        visible = visible & (query.low <= key.high) & (key.low <= query.high)
        whole = whole & (query.low == key.high) & (query.high == key.low)
    return visible, whole.expand_as(visible)


def _ends(x_BS: Tensor) -> _Ends:
    """Return the ends of each block; the last block may be shorter."""
    missing = -x_BS.shape[1] % BLOCK
    by_block = torch.cat((x_BS, x_BS[:, -1:].expand(-1, missing)), 1).unflatten(1, (-1, BLOCK))
    return _Ends(by_block.amin(-1), by_block.amax(-1))


def _rows(x_BT: Tensor) -> _Ends:
    return _Ends(*(end_BI[:, :, None] for end_BI in _ends(x_BT)))


def _columns(x_BS: Tensor) -> _Ends:
    return _Ends(*(end_BJ[:, None, :] for end_BJ in _ends(x_BS)))


def _list_blocks(blocks_BIJ: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks of keys each block of queries visits, and which, those first: int32 (B, 1, I), (B, 1, I,
    J)."""
    blocks = blocks_BIJ[:, None].to(torch.int32)
    order = blocks.argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32), order.to(torch.int32)
