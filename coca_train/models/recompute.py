"""Activation checkpointing: what of a block is kept for the backward pass, and what is computed again there.

none       everything is kept;
full       a block's input alone; its forward runs twice (Chen et al., arXiv 1604.06174);
selective  the results of matrix products with weights and the output of fused attention with its log-sum-exp: what is
           computed again is elementwise, a few per cent of the FLOPs (Korthikanti et al., arXiv 2205.05198, section 5,
           and torch's selective checkpointing).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

aten = torch.ops.aten
# Batched products (bmm) are not among them: the tiled path makes its scores by them, T x S numbers a head.
KEPT = {
    aten.mm.default,
    aten.addmm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.higher_order.flex_attention,
}

Run = Callable[..., Tensor]  # (block, x_BTC, context, past_BMC) -> x_BTC


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


_selected = partial(create_selective_checkpoint_contexts, _policy)


def full(run: Run, *given: Any) -> Tensor:
    """The call, checkpointed."""
    return checkpoint(run, *given, use_reentrant=False)


def selective(run: Run, *given: Any) -> Tensor:
    """The call, with what is dear kept."""
    return checkpoint(run, *given, use_reentrant=False, context_fn=_selected)


def none(run: Run, *given: Any) -> Tensor:
    """The call."""
    return run(*given)


# engine.activation_checkpointing -> how a block is called.
WAYS: dict[str, Callable[..., Tensor]] = {"none": none, "selective": selective, "full": full}
