"""FlexAttention's block mask, made block by block: memory of blocks, not of pairs (9.7 GB at 32k tokens, which is what
torch's create_block_mask takes uncompiled).

A block of pairs is left out, taken whole, or looked at pair by pair. What is known of it are the lowest and the highest
index, place in the text and document of its queries and of its keys; where that does not decide, it is looked at. So a
mask may look at more blocks than it had to, and never shows a pair that is not seen.

Shape legend: B rows (1 when all share them), T queries, S keys, I blocks of queries, J blocks of keys.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from coca_train.positions.visibility import Layout

BLOCK = 128  # FlexAttention's own [tokens]


class _Ends(NamedTuple):
    """Lowest and highest of each block, (B, I)."""

    low: Tensor
    high: Tensor


def block_mask(layout: Layout, mask: Callable[..., Tensor]) -> BlockMask:
    """What is seen in a layout. mask: the same pair by pair (models/flex.py)."""
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    shown, whole = _decided(layout)
    # The last block may reach beyond the text, where nothing is seen.
    device = layout.text_BS.device
    full_I, full_J = (torch.arange(-(-n // BLOCK), device=device) < n // BLOCK for n in (n_queries, n_keys))
    whole = whole & shown & full_I[:, None] & full_J
    return BlockMask.from_kv_blocks(
        *_listed(shown & ~whole), *_listed(whole), BLOCK_SIZE=BLOCK, mask_mod=mask, seq_lengths=(n_queries, n_keys)
    )


def _decided(layout: Layout) -> tuple[Tensor, Tensor]:
    """(blocks in which a pair may be seen, blocks in which all surely are), bool (B, I, J) both."""
    rule, n_keys = layout.rule, layout.text_BS.shape[1]
    before = n_keys - layout.text_BT.shape[1]
    index_1S = torch.arange(n_keys, device=layout.text_BS.device)[None]
    query, key = _rows(index_1S[:, before:]), _columns(index_1S)
    shown, whole = key.low <= query.high, key.high <= query.low
    query, key = _rows(layout.text_BT), _columns(layout.text_BS)
    nearest, farthest = query.low - key.high, query.high - key.low
    if rule.window is not None:
        shown, whole = shown & (nearest < rule.window), whole & (farthest < rule.window)
    if rule.beyond:
        shown, whole = shown & (farthest >= rule.beyond), whole & (nearest >= rule.beyond)
    if rule.first is not None:
        shown, whole = shown & (key.low < rule.first), whole & (key.high < rule.first)
    if layout.doc_BS is not None:
        query, key = _rows(layout.doc_BS[:, before:]), _columns(layout.doc_BS)
        shown = shown & (query.low <= key.high) & (key.low <= query.high)
        whole = whole & (query.low == key.high) & (query.high == key.low)
    return shown, whole.expand_as(shown)


def _ends(x_BS: Tensor) -> _Ends:
    """Of each block; the last one may be shorter."""
    missing = -x_BS.shape[1] % BLOCK
    by_block = torch.cat((x_BS, x_BS[:, -1:].expand(-1, missing)), 1).unflatten(1, (-1, BLOCK))
    return _Ends(by_block.amin(-1), by_block.amax(-1))


def _rows(x_BT: Tensor) -> _Ends:
    return _Ends(*(end_BI[:, :, None] for end_BI in _ends(x_BT)))


def _columns(x_BS: Tensor) -> _Ends:
    return _Ends(*(end_BJ[:, None, :] for end_BJ in _ends(x_BS)))


def _listed(blocks_BIJ: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries takes, and which, those first: int32 (B, 1, I), (B, 1, I, J)."""
    blocks = blocks_BIJ[:, None].to(torch.int32)
    order = blocks.argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).to(torch.int32), order.to(torch.int32)
