"""torch.autograd.Function, typed: what its methods receive, and what it returns."""

from typing import Any, Protocol

from torch import Tensor
from torch.autograd import Function


class Context(Protocol):
    """What `forward` leaves to `backward`; functions that leave more than tensors extend it."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]  # of each input

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


def apply(function: type[Function], *inputs: object) -> Tensor:
    """Call a function whose result is one tensor."""
    result: Any = function.apply(*inputs)
    return result
