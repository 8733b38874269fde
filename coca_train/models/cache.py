"""The key/value cache of a generation: un-rotated keys, so frequencies may change (arXiv 2309.00071, 3.3).

Shape legend: B batch, T new positions, S all positions so far, G key/value heads, K cached key width, D value width.
"""

import torch
from torch import Tensor


class KVCache:
    """Keys and values of every layer, in buffers of a fixed capacity [positions]."""

    def __init__(self, n_layers: int, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0  # positions held
        self.pos_BS: Tensor | None = None
        self._keys: list[Tensor | None] = [None] * n_layers
        self._values: list[Tensor | None] = [None] * n_layers

    def advance(self, pos_BT: Tensor) -> Tensor:
        """Announce new positions, before the layers extend. Returns the positions of all keys, pos_BS."""
        if self.length + pos_BT.shape[1] > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions; {self.length + pos_BT.shape[1]} are needed")
        self.pos_BS = pos_BT if self.pos_BS is None else torch.cat([self.pos_BS, pos_BT], dim=1)
        self.length += pos_BT.shape[1]
        return self.pos_BS

    def extend(self, layer: int, k_BTGK: Tensor, v_BTGD: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's keys and values; returns all of them, k_BSGK and v_BSGD."""
        return self._append(self._keys, layer, k_BTGK), self._append(self._values, layer, v_BTGD)

    def _append(self, store: list[Tensor | None], layer: int, new: Tensor) -> Tensor:
        buffer = store[layer]
        if buffer is None:
            buffer = store[layer] = new.new_empty(new.shape[0], self.capacity, *new.shape[2:])
        buffer[:, self.length - new.shape[1] : self.length] = new
        return buffer[:, : self.length]

    @property
    def n_bytes(self) -> int:
        """Memory of the buffers [bytes]."""
        return sum(t.numel() * t.element_size() for t in self._keys + self._values if t is not None)
