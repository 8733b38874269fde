"""FlexAttention's block masks, and ALiBi folded into tensor cores."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.timing import milliseconds, peak_gib
from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.flex import block_mask, mask_mod
from coca_train.positions.base import AttentionShape
from coca_train.positions.schemes.alibi import slopes

MASK_GIB = 64 / 1024  # at 32k: blocks, not pairs
LEAST_GIB = 1 / 64  # of any mask: what the allocator hands out at a time
FOLD_ERROR = 1e-2  # rounding to bfloat16 alone is about 3e-3


def run(scale: Scale, folder: Path) -> Iterator[Figure]:
    for n_tokens in scale.pick((4096, 16384, 32768), (256,)):
        yield from _mask(scale, n_tokens)
    for n_tokens in scale.pick((512, 4096, 32768), (64,)):
        what = f"folded ALiBi in bfloat16, {n_tokens:,} tokens: error"
        yield Figure("masks", what, fold_error(scale, n_tokens), "", high=FOLD_ERROR, by="float64")


def _mask(scale: Scale, n_tokens: int) -> Iterator[Figure]:
    pos_BT = torch.arange(n_tokens, device=scale.device)[None]
    (layout,) = patterns.build(patterns.settings({"name": "causal"})).layouts(pos_BT, pos_BT)

    def work() -> None:
        block_mask(layout, mask_mod(layout))

    what, high = f"block mask, {n_tokens:,} tokens", max(MASK_GIB * (n_tokens / 32768) ** 2, LEAST_GIB)
    yield Figure("masks", what, milliseconds(work, scale.device, scale.pick(3, 1)), "ms")
    if scale.device == "cuda":
        yield Figure(
            "masks", f"{what}: memory", peak_gib(work, scale.device), "GiB", high=max(high, 1 / 64), by="blocks"
        )


def fold_error(scale: Scale, n_tokens: int) -> float:
    """Of the last 64 outputs against float64, relative. ALiBi's slopes ride in columns of their own (schemes/alibi.py),
    whose terms are large and cancel."""
    device, heads, width = scale.device, 16, 64
    position = positions.build(
        positions.settings({"scheme": "alibi", "fold": "always"}), AttentionShape(heads, heads, width, 1024, 512)
    )
    pos_BT = torch.arange(n_tokens, device=device)[None]
    q, k, v = (torch.randn(1, n_tokens, heads, width, device=device).bfloat16() for _ in range(3))
    folded_q, folded_k = position.rotate(q, k, position(pos_BT, pos_BT, n_tokens))
    padded_v = F.pad(v, (0, folded_q.shape[-1] - width))
    turned_q, turned_k, turned_v = (x.transpose(1, 2) for x in (folded_q, folded_k, padded_v))
    rows = slice(n_tokens - 64, n_tokens)
    out = F.scaled_dot_product_attention(turned_q, turned_k, turned_v, is_causal=True, scale=width**-0.5)
    out = out[:, :, rows, :width].double()
    scores = torch.einsum("bthd,bshd->bhts", q[:, rows].double(), k.double()) * width**-0.5
    distance = (pos_BT[0, rows, None] - pos_BT[0, None]).double()
    bias = slopes(heads, torch.device(device)).double()[:, None, None] * distance
    wanted = (scores - bias).masked_fill(distance < 0, -torch.inf).softmax(-1)
    wanted = torch.einsum("bhts,bshd->bhtd", wanted, v.double())
    return float((out - wanted).norm() / wanted.norm())
