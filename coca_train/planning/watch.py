"""Watching what tensor operations would allocate, on the meta device, where nothing is allocated."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Watch(TorchDispatchMode):
    """Counts the bytes of tensors made inside, until they are let go.

    before: tensors that are there already and do not count, nor do views of them. live: bytes at this moment. peak:
    the most there have been. A tensor of the host that meets one of the meta device (a table of angles, a mask) is
    taken along to it, where a real run would have made it.
    """

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._before = [tensor.untyped_storage() for tensor in before]  # held, so that no other takes their id
        self._known: dict[int, Any] = {id(storage): storage for storage in self._before}

    def __torch_dispatch__(self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        places = {leaf.is_meta for leaf in given if isinstance(leaf, Tensor) and leaf.ndim}
        if len(places) == 2:
            args, kwargs = tree_map_only(Tensor, _to_meta, (args, kwargs))
        out = func(*args, **kwargs)
        for leaf in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(leaf, Tensor) and leaf.is_meta:
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return

        def let_go(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, let_go)
        self.live += size
        self.peak = max(self.peak, self.live)


def _to_meta(tensor: Tensor) -> Tensor:
    """The shape of a tensor of the host; single numbers stay, as they may be looked at."""
    return tensor if tensor.is_meta or tensor.ndim == 0 else torch.empty_like(tensor, device="meta")
