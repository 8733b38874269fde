"""Parameters held within bounds, and not lost at them.

The authors of KERPLE (arXiv 2205.09921, released code) cut the stored numbers to the bounds before each use, so a
number at its bound keeps its gradient and can leave it again. `clamp` alone would give it no gradient for ever: with
their initial values about one in a hundred starts below its bound. Writing to parameters in a forward pass is no
choice either, as optimizers keep their own float32 copy; so what is cut here is the value in use, and the gradient
that would push it further out.
"""

import math
from typing import Any

import torch
from torch import Tensor


class _Held(torch.autograd.Function):
    """clamp(x), with the gradient of x at the bound; a gradient whose descent leads outwards is dropped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,), (low, high), grad = ctx.saved_tensors, ctx.bounds, grads[0]
        outwards = ((x <= low) & (grad > 0)) | ((x >= high) & (grad < 0))
        return grad.masked_fill(outwards, 0), None, None


def held(parameter: Tensor, low: float, high: float = math.inf) -> Tensor:
    """The parameter within [low, high], float32 or wider: a new tensor, never the parameter itself."""
    result: Any = _Held.apply(parameter.to(torch.promote_types(parameter.dtype, torch.float32)), low, high)
    return result
