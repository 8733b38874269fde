"""Attention on the meta device: what its kernels keep and need, without the work.

`eager` and short `blocked` attention run as they are. Fused kernels and `online` (attention tile by tile) all keep the
same: what they are given, their output, and the log-sum-exp of each query (FlashAttention, arXiv 2205.14135, section
3.1).

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D value width, E dot-product width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from coca_train.models import flex, online
from coca_train.models.kernels import KERNELS, RECOMPUTE_ABOVE, Kernel, choose, is_plain
from coca_train.models.scores import Part, tensors_of


class Calls:
    """How many layers' attention ran forward, and backward."""

    def __init__(self) -> None:
        self.forward = self.backward = 0


def kernel_for(configured: str, device: str, calls: Calls | None = None) -> Kernel:
    """What engine.attention does on `device` (cpu or cuda), for tensors of the meta device.

    calls: count them, and skip the work of every kernel (for FLOPs, which no kernel changes).
    """

    def kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        n_queries, n_keys = parts[0].q_BTHE.shape[1], v_BSGD.shape[1]
        name = choose(parts, n_keys, device) if configured == "auto" else configured
        if name == "sdpa" and not (is_plain(parts) and n_queries in (1, n_keys)):
            name = "blocked"
        if name == "flex" and not flex.serves(parts):
            name = "blocked"
        tiled = name == "blocked" and n_keys > RECOMPUTE_ABOVE and n_queries > 1
        if calls is None and not tiled and name != "flex":
            return KERNELS[name](parts, v_BSGD, scale)
        given = [tensor for part in parts for tensor in tensors_of(part) if tensor is not None]
        working = _tile(parts[0]) if tiled else 0
        shape_BTH = parts[0].q_BTHE.shape[:3]
        out: Any = _Linear.apply(calls or Calls(), working, shape_BTH, v_BSGD.transpose(1, 2), *given)
        return out

    return kernel


def _tile(part: Part) -> int:
    """Numbers in one tile of scores."""
    batch, n_queries, heads, _ = part.q_BTHE.shape
    n_keys = part.k_BSGE.shape[1]
    return batch * heads * min(n_queries, online.QUERY_TILE) * min(n_keys, online.KEY_TILE)


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
            out: Any = _Linear.apply(Calls(), 0, shape_BTH, v_BHSE, q_BHTE, k_BHSE)
            return out.transpose(1, 2)
        if func is F.rms_norm and self._device == "cuda":
            normed: Any = _FusedNorm.apply(args[0], kwargs["weight"])
            return normed
        return func(*args, **kwargs)


class _Linear(torch.autograd.Function):
    """Keeps what it is given, its output and a log-sum-exp; gives gradients to all that want one.

    tile: float32 scores alive at once where attention works tile by tile, four times over (scores, probabilities and
    the gradients of both) while gradients are summed in float32; 0: a fused kernel, which needs neither.
    """

    @staticmethod
    def forward(ctx: Any, calls: Calls, tile: int, shape_BTH: torch.Size, v_BGSD: Tensor, *given: Tensor) -> Tensor:
        ctx.calls, ctx.tile = calls, tile
        calls.forward += 1
        out_BTHD = v_BGSD.new_empty(*shape_BTH, v_BGSD.shape[-1])
        lse_BTH = v_BGSD.new_empty(shape_BTH, dtype=torch.float32)
        ctx.save_for_backward(v_BGSD, *given, out_BTHD, lse_BTH)
        return out_BTHD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        ctx.calls.backward += 1
        v_BGSD, *given, _, _ = ctx.saved_tensors
        wanted = [tensor for tensor, need in zip((v_BGSD, *given), ctx.needs_input_grad[3:], strict=True) if need]
        dtypes = [torch.float32 if ctx.tile else tensor.dtype for tensor in wanted]
        sums = [tensor.new_empty(tensor.shape, dtype=dtype) for tensor, dtype in zip(wanted, dtypes, strict=True)]
        v_BGSD.new_empty(4 * ctx.tile, dtype=torch.float32)  # counted, and let go
        found = iter([total.to(tensor.dtype) for total, tensor in zip(sums, wanted, strict=True)])
        return None, None, None, *(next(found) if need else None for need in ctx.needs_input_grad[3:])


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
