"""What the ranks of a sequence exchange (models/ulysses.py), where there is one rank: as much comes as goes."""

from typing import Any

import torch
from torch import Tensor


class Sent:
    """An exchange that sends nothing, and knows what would have been sent."""

    def __init__(self) -> None:
        self.nbytes: list[int] = []  # of each time, forward and backward, with what a rank would keep

    def __call__(self, x_PBtW: Tensor) -> Tensor:
        sent: Any = _Sent.apply(x_PBtW, self)
        return sent

    def send(self, x_PBtW: Tensor) -> Tensor:
        """What would come in its place, in a tensor of its own."""
        self.nbytes.append(x_PBtW.numel() * x_PBtW.element_size())
        return torch.empty_like(x_PBtW.contiguous())


class _Sent(torch.autograd.Function):
    """Its own transpose."""

    @staticmethod
    def forward(ctx: Any, x_PBtW: Tensor, by: Sent) -> Tensor:
        ctx.by = by
        return by.send(x_PBtW)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.by.send(grads[0]), None
