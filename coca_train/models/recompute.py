"""Activation checkpointing: which activations of a block are kept for the backward pass, and which are computed again.

none       everything is kept;
full       a block's input alone; its forward runs twice (Chen et al., arXiv 1604.06174);
selective  the results of matrix products with weights and the output of fused attention with its log-sum-exp: what is
           computed again is elementwise, a few per cent of the FLOPs (Korthikanti et al., arXiv 2205.05198, section 5,
           and torch's selective checkpointing).
"""

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
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

Kwargs = dict[str, object] | None
Run = Callable[..., Tensor]  # (block, x_BTC, context, past_BMC) -> x_BTC


class _Mode(TorchDispatchMode):
    """Base of both passes. saved: the results of each operation of KEPT, in the order of its calls."""

    supports_higher_order_operators = True

    def __init__(self, saved: dict[object, deque[object]]) -> None:
        super().__init__()
        self.saved = saved

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # a kernel that torch.compile builds inside the region is built in the usual way


class _Save(_Mode):
    """The forward pass."""

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Kwargs = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        if func in KEPT:
            self.saved[func].append(tree_map(_detached, out))
        return out


class _Reuse(_Mode):
    """The backward pass: each operation of KEPT returns its result of the forward pass."""

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: Kwargs = None
    ) -> object:
        return self.saved[func].popleft() if func in KEPT else func(*args, **(kwargs or {}))


def _detached(x: object) -> object:
    return x.detach() if isinstance(x, Tensor) else x  # autograd marks the tensor itself, and would keep its own graph


def _eager_contexts() -> tuple[_Mode, _Mode]:
    """Save the results of the operations of KEPT. torch's own pair requires every operation of the region as often in
    the backward pass as in the forward pass, and ZeRO 3 gathers the weights in there, when and as often as it likes."""
    saved: dict[object, deque[object]] = defaultdict(deque)
    return _Save(saved), _Reuse(saved)


def _policy(context: object, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


# A compiled block's graph is marked by torch's own pair, and has no gathers in it.
_graph_contexts = partial(create_selective_checkpoint_contexts, _policy)


def full(run: Run, *args: object) -> Tensor:
    """Call the block and checkpoint it."""
    return checkpoint(run, *args, use_reentrant=False)


def selective(run: Run, *args: object) -> Tensor:
    """Call the block and keep its expensive results."""
    contexts = _graph_contexts if torch.compiler.is_compiling() else _eager_contexts
    return checkpoint(run, *args, use_reentrant=False, context_fn=contexts)


def none(run: Run, *args: object) -> Tensor:
    """Call the block."""
    return run(*args)


# engine.activation_checkpointing -> how a block is called.
CHECKPOINTING: dict[str, Callable[..., Tensor]] = {"none": none, "selective": selective, "full": full}
