"""Tensors of the host on their way to a GPU: copied while the GPU computes, before they are needed.

A copy from pageable memory makes the host wait; one from pinned memory, on the stream that computes, makes the kernels
after it wait. So the inputs of the next step are copied from pinned memory on a separate stream while this step runs,
and the step that needs them waits for an event, on the device. On a CPU nothing is copied and nothing changes.
"""

from collections.abc import MutableMapping
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Event = torch.cuda.Event | torch.Event  # that a copy has arrived


class Lane(Protocol):
    """A way to a device other than the stream that computes."""

    def copy(self, tensor: Tensor) -> tuple[Tensor, Event]:
        """Begin to copy; return the tensor on the device, and an event of its arrival."""
        ...

    def arrive(self, copied: Tensor, ready: Event) -> None:
        """Have everything computed from now on wait for the copy; the host does not wait."""
        ...


class CudaLane:
    """A stream for copies from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def copy(self, tensor: Tensor) -> tuple[Tensor, Event]:
        with torch.cuda.stream(self._stream):
            copied = tensor.pin_memory().to(self._device, non_blocking=True)
            return copied, self._stream.record_event()

    def arrive(self, copied: Tensor, ready: Event) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(ready)
        # Its memory is the other stream's: without this the allocator would give it away while a kernel still reads it.
        copied.record_stream(stream)


# (lane, copy, what tells that it has arrived) of each tensor that is copied ahead; an entry goes with its tensor.
_copies: MutableMapping[Tensor, tuple[Lane, Tensor, Event]] = WeakTensorKeyDictionary()


class Staging:
    """Begins copies to a device. lane: None, as on a CPU: nothing is copied ahead."""

    def __init__(self, lane: Lane | None) -> None:
        self._lane = lane

    @classmethod
    def to(cls, device: torch.device) -> "Staging":
        return cls(CudaLane(device) if device.type == "cuda" else None)

    def ahead(self, tensor: Tensor | None) -> None:
        if tensor is not None and self._lane is not None:
            _copies[tensor] = (self._lane, *self._lane.copy(tensor))


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device: the copy that was begun ahead, once, or else a new one."""
    if (copy := _copies.pop(tensor, None)) is None:
        return tensor.to(device, non_blocking=True)
    lane, copied, ready = copy
    lane.arrive(copied, ready)
    return copied
