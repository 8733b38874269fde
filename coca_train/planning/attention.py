"""Attention on the meta device: what its kernels keep and need, without the work.

`eager` and short `blocked` attention run as they are. Fused kernels and `online` (attention tile by tile) all keep the
same: what they are given, their output, and the log-sum-exp of each query (FlashAttention, arXiv 2205.14135, section
3.1). What the hook of a scheme needs is seen by running it for one tile.

Shape legend: B batch, T queries, S keys, t queries and s keys of a tile, H query heads, G key/value heads, D value
width, E dot-product width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from coca_train.attention import flex, tiled_attention
from coca_train.attention.kernels import KERNELS, RECOMPUTE_ABOVE, Kernel, choose, is_plain
from coca_train.attention.scores import Part, leaves, tensors_of
from coca_train.config.schema import EngineConfig
from coca_train.positions.base import Pairs

FLASH = torch.ops.aten._scaled_dot_product_flash_attention


class Calls:
    """How many layers' attention ran forward, and backward; and the FLOPs of all hooks, forward, for one pair of
    tokens."""

    def __init__(self) -> None:
        self.forward = self.backward = 0
        self.of_hooks = 0.0


def kernel_for(configured: str, device: str, calls: Calls | None = None) -> Kernel:
    """What engine.attention does on `device` (cpu or cuda), for tensors of the meta device.

    calls: count them, and skip the work of every kernel (for FLOPs, which no kernel changes).
    """

    def kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        n_queries, n_keys = parts[0].q_BTHE.shape[1], v_BSGD.shape[1]
        name = resolved(configured, device, parts, v_BSGD)
        tiled = name == "blocked" and n_keys > RECOMPUTE_ABOVE and n_queries > 1
        if calls is None and not tiled and name != "flex":
            return KERNELS[name](parts, v_BSGD, scale)
        given = [tensor for part in parts for _, tensor in leaves(tensors_of(part)) if tensor is not None]
        work = _tile_work(parts[0]) if tiled and calls is None else None
        if calls is not None:
            calls.of_hooks += parts[0].q_BTHE.shape[2] * 2 * hook_products(parts[0])
        shape_BTH = parts[0].q_BTHE.shape[:3]
        out: Any = _Linear.apply(calls, work, shape_BTH, v_BSGD.transpose(1, 2), *given)
        return out

    return kernel


@contextmanager
def sums_ordered_as(engine: EngineConfig) -> Iterator[None]:
    """Ask torch for deterministic algorithms where this engine does: kernels are chosen by it (attention/flex.py)."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(engine.deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def resolved(configured: str, device: str, parts: Sequence[Part], v_BSGD: Tensor) -> str:
    """The kernel that runs in the end where engine.attention names one."""
    n_queries, n_keys = parts[0].q_BTHE.shape[1], v_BSGD.shape[1]
    name = choose(parts, n_keys, device) if configured == "auto" else configured
    if name == "sdpa" and not (is_plain(parts) and n_queries in (1, n_keys)):
        name = "blocked"
    return "blocked" if name == "flex" and not flex.serves(parts) else name


def _tile_work(part: Part) -> Callable[[], None]:
    """Allocates what one tile of attention needs while gradients are taken, and lets it go: float32 scores,
    probabilities and the gradients of both, and with them what a hook keeps, and what goes back along it."""
    batch, n_queries, heads, _ = part.q_BTHE.shape
    shape_BHts = (
        batch,
        heads,
        min(n_queries, tiled_attention.query_tile([part])),
        min(part.k_BSGE.shape[1], tiled_attention.KEY_TILE),
    )
    pairs = None if part.score_mod is None else _pairs(part, shape_BHts)

    def work() -> None:
        four = torch.empty(4, *shape_BHts, dtype=torch.float32, device="meta")
        if part.hook is not None and pairs is not None:
            with torch.enable_grad():
                inputs = [
                    x.requires_grad_() for x in (pairs.scores_BHts, *pairs.parameters, *pairs.queries, *pairs.keys)
                ]
                rewritten, _ = part.hook.scores(pairs, four.new_empty(*shape_BHts[:3], part.hook.carried))
                torch.autograd.grad(rewritten, inputs, torch.empty_like(rewritten), allow_unused=True)

    return work


def hook_products(part: Part) -> float:
    """Multiply-adds that the matrix products of a part's hook cost for one pair of tokens in one head."""
    if part.hook is None:
        return 0.0
    shape_BHts = 1, part.q_BTHE.shape[2], 4, 64
    pairs = _pairs(part, shape_BHts)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        part.hook.scores(pairs, pairs.scores_BHts.new_empty(*shape_BHts[:3], part.hook.carried))
    return counter.get_total_flops() / 2 / math.prod(shape_BHts)


def _pairs(part: Part, shape_BHts: tuple[int, int, int, int]) -> Pairs:
    """A tile of that shape as the part's hook sees it, on the meta device."""
    assert part.score_mod is not None
    batch, _, t, s = shape_BHts

    def tile(tensors: Sequence[Tensor], n_tokens: int) -> tuple[Tensor, ...]:
        shapes = [(min(batch, len(x)), n_tokens, *x.shape[2:]) for x in tensors]
        return tuple(torch.empty(shape, dtype=x.dtype, device="meta") for shape, x in zip(shapes, tensors, strict=True))

    pos_B = min(batch, len(part.layout.pos_BT))
    return Pairs(
        torch.empty(shape_BHts, dtype=torch.float32, device="meta"),
        None,
        torch.empty(pos_B, t, dtype=torch.int64, device="meta"),
        torch.empty(pos_B, s, dtype=torch.int64, device="meta"),
        tuple(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in part.score_mod.parameters),
        tile(part.score_mod.queries, t),
        tile(part.score_mod.keys, s),
    )


class FusedOperations(TorchFunctionMode):
    """Operations that are one kernel on `device`, and many on the meta device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            q_BHTE, k_BHSE, v_BHSE = args
            shape_BTH = q_BHTE.transpose(1, 2).shape[:3]
            out: Any = _Linear.apply(None, None, shape_BTH, v_BHSE, q_BHTE, k_BHSE)
            return out.transpose(1, 2)
        if func is F.rms_norm and self._device == "cuda":
            normed: Any = _FusedNorm.apply(args[0], kwargs["weight"])
            return normed
        return func(*args, **kwargs)


class _Linear(torch.autograd.Function):
    """Keeps what it is given, its output and a log-sum-exp; gives gradients to all that want one.

    work: what it takes where attention works tile by tile, while gradients are summed in float32; None: a fused
    kernel, which needs neither.
    """

    @staticmethod
    def forward(
        ctx: Any,
        calls: Calls | None,
        work: Callable[[], None] | None,
        shape_BTH: torch.Size,
        v_BGSD: Tensor,
        *given: Tensor,
    ) -> Tensor:
        ctx.calls, ctx.work = calls, work
        if calls is not None:
            calls.forward += 1
        batch, n_queries, heads = shape_BTH
        if calls is None and work is None:
            # By a name that selective checkpointing knows. Its inputs stand for those that are there already, so they
            # are made where nobody counts.
            with _disable_current_modes():
                like_BTHD = v_BGSD.new_empty(batch, n_queries, heads, v_BGSD.shape[-1])
            out_BHTD, lse_BTH = FLASH(*[like_BTHD.transpose(1, 2)] * 3)[:2]
            out_BTHD = out_BHTD.transpose(1, 2)
        else:
            out_BTHD = v_BGSD.new_empty(*shape_BTH, v_BGSD.shape[-1])
            lse_BTH = v_BGSD.new_empty(shape_BTH, dtype=torch.float32)
        ctx.save_for_backward(v_BGSD, *given, out_BTHD, lse_BTH)
        return out_BTHD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        if ctx.calls is not None:
            ctx.calls.backward += 1
        v_BGSD, *given, _, _ = ctx.saved_tensors
        wanted = [tensor for tensor, need in zip((v_BGSD, *given), ctx.needs_input_grad[3:], strict=True) if need]
        dtypes = [torch.float32 if ctx.work else tensor.dtype for tensor in wanted]
        sums = [tensor.new_empty(tensor.shape, dtype=dtype) for tensor, dtype in zip(wanted, dtypes, strict=True)]
        if ctx.work is not None:
            ctx.work()
        gradients = iter([total.to(tensor.dtype) for total, tensor in zip(sums, wanted, strict=True)])
        return None, None, None, *(next(gradients) if need else None for need in ctx.needs_input_grad[3:])


class _FusedNorm(torch.autograd.Function):
    """RMSNorm as CUDA's one kernel: keeps its input and a float32 scale for each token."""

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_C: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTC, weight_C, x_BTC.new_empty(x_BTC.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x_BTC)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_BTC, weight_C, _ = ctx.saved_tensors
        given = zip((x_BTC, weight_C), ctx.needs_input_grad, strict=True)
        grad_x_BTC, grad_weight_C = (torch.empty_like(tensor) if need else None for tensor, need in given)
        return grad_x_BTC, grad_weight_C
