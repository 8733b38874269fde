"""The loss of a chunk and its gradient in one kernel on CUDA: logits are read twice and written once, in their dtype.

Passes of torch's own would go through float32 copies of them seven times. Liger's fused linear cross-entropy, which
works the same way, cuts its chunks by vocab_size / d_model: at 100,864 words and 1,024 features 128 tokens, each of
which reads W and adds to dW. Triton comes with torch's builds for CUDA; without it, or a C compiler, the passes do.

Shape legend: n tokens of a chunk, V vocab_size.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from coca_train.models.loss import score_in_passes
from coca_train.runtime import IGNORE
from coca_train.runtime.device import device_type
from coca_train.runtime.machine import can_compile

BLOCK = 4096  # logits that a program holds at once
N_WARPS = 16


def score(logits_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
    """Score logits as `models.loss.Score` by the kernel on CUDA, where Triton can compile it (on the meta device as if
    it could)."""
    device = device_type(logits_nV)
    if device != "cuda" or not (logits_nV.is_meta or can_compile(device)) or logits_nV.dtype == torch.float64:
        return score_in_passes(logits_nV, targets_n)
    return score_in_place(logits_nV, targets_n), logits_nV


@torch.library.custom_op("coca_train::score_in_place", mutates_args=("logits_nV",))
def score_in_place(logits_nV: Tensor, targets_n: Tensor) -> Tensor:
    """Return nll_n in float32 and overwrite the logits by their gradient."""
    assert logits_nV.is_contiguous() and targets_n.is_contiguous()
    nll_n = logits_nV.new_empty(logits_nV.shape[0], dtype=torch.float32)
    grid = (logits_nV.shape[0],)
    kernel()[grid](logits_nV, targets_n, nll_n, logits_nV.shape[1], IGNORE, BLOCK, num_warps=N_WARPS)
    return nll_n


@score_in_place.register_fake
def _(logits_nV: Tensor, targets_n: Tensor) -> Tensor:
    return logits_nV.new_empty(logits_nV.shape[0], dtype=torch.float32)


@cache
def kernel() -> Any:
    """Return the Triton kernel, a program for each row: nll and, over the logits, softmax - onehot(target)."""
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def cross_entropy(logits, targets, nll, n_words, IGNORE: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        logits += row * n_words
        target = tl.load(targets + row)
        scored = target != IGNORE
        top = -float("inf")
        total = 0.0
        at = tl.arange(0, BLOCK)
        # Online softmax (arXiv 1805.02867): the sum so far was taken against the maximum so far.
        for start in range(0, n_words, BLOCK):
            x = tl.load(logits + start + at, mask=start + at < n_words, other=-float("inf")).to(tl.float32)
            new_top = tl.maximum(top, tl.max(x))
            # Nothing but -inf so far: any finite number in its place makes all of them 0, where -inf - -inf is NaN.
            safe_top = tl.where(new_top == -float("inf"), 0.0, new_top)
            total = total * tl.exp(top - safe_top) + tl.sum(tl.exp(x - safe_top))
            top = new_top
        lse = top + tl.log(total)
        own = tl.load(logits + tl.where(scored, target, 0)).to(tl.float32)
        tl.store(nll + row, tl.where(scored, lse - own, 0.0))
        tl.debug_barrier()  # every thread must have read the target's logit before one of them writes over it
        for start in range(0, n_words, BLOCK):
            inside = start + at < n_words
            x = tl.load(logits + start + at, mask=inside).to(tl.float32)
            gradient = tl.exp(x - lse) - tl.where(start + at == target, 1.0, 0.0)
            gradient = tl.where(scored, gradient, 0.0)
            tl.store(logits + start + at, gradient.to(logits.dtype.element_ty), mask=inside)

    return cross_entropy
