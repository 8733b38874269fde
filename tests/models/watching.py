"""How large the tensors are that a computation makes, and how often it goes over them."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """numel: elements of the largest tensor so far, forward or backward."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple) else (out,):
            if isinstance(each, torch.Tensor):
                self.numel = max(self.numel, each.numel())
        return out


class Passes(TorchDispatchMode):
    """By name, matrix products and what else makes or changes a tensor of at least `numel` elements; views aside."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self._numel = numel
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        large = isinstance(out, torch.Tensor) and out.numel() >= self._numel
        if name in ("bmm", "mm", "baddbmm") or (large and not func.is_view and name != "_unsafe_view"):
            self.seen[name] += 1
        return out
