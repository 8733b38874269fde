"""The device that a model chooses its kernels for: that of its tensors, or another one that a plan pretends."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_pretended: list[str] = []


def device_type(tensor: Tensor) -> str:
    """Return cpu, cuda or meta: the device that computes with this tensor, or the pretended one."""
    return _pretended[-1] if _pretended else tensor.device.type


@contextmanager
def pretend_device(device: str) -> Iterator[None]:
    """Choose kernels as on `device` (cpu or cuda), wherever the tensors are: a plan computes on the meta device."""
    _pretended.append(device)
    try:
        yield
    finally:
        _pretended.pop()
