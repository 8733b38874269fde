"""The key/value cache of a generation: un-rotated keys, so frequencies may change (arXiv 2309.00071, 3.3).

Shape legend: B batch, T new positions, S all positions in hand, G key/value heads, K cached key width, D value width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coca_train.positions.visibility import Keep


class KVCache:
    """Keys and values of every layer.

    keep None: everything, in buffers of a fixed capacity [positions]. Otherwise what a later query may still see
    (positions/visibility.py), so that memory does not grow with the text.
    """

    def __init__(self, n_layers: int, capacity: int, keep: Keep | None = None) -> None:
        self.capacity, self.keep = capacity, keep
        self.length = 0  # positions of the text so far
        self._pos_BS: Tensor | None = None  # of the keys held
        self._kept_S: Tensor | None = None  # which of the keys in hand are held from now on; None: all
        self._keys: list[Tensor | None] = [None] * n_layers
        self._values: list[Tensor | None] = [None] * n_layers

    def advance(self, pos_BT: Tensor) -> Tensor:
        """Announce new positions, before the layers extend. Returns the positions of all keys in hand, pos_BS."""
        if self.length + pos_BT.shape[1] > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions; {self.length + pos_BT.shape[1]} are needed")
        self.length += pos_BT.shape[1]
        now_BS = pos_BT if self._pos_BS is None else torch.cat([self._pos_BS, pos_BT], dim=1)
        self._pos_BS = now_BS
        if self.keep is not None:
            n_keys = now_BS.shape[1]
            last_S = torch.arange(n_keys, device=now_BS.device) >= n_keys - self.keep.last
            self._kept_S = (last_S | (now_BS[0] < self.keep.first)).nonzero()[:, 0]
            self._pos_BS = now_BS[:, self._kept_S]
        return now_BS

    def extend(self, layer: int, k_BTGK: Tensor, v_BTGD: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's keys and values; returns all in hand, k_BSGK and v_BSGD."""
        return self._append(self._keys, layer, k_BTGK), self._append(self._values, layer, v_BTGD)

    def _append(self, store: list[Tensor | None], layer: int, new: Tensor) -> Tensor:
        buffer = store[layer]
        if self._kept_S is not None:
            in_hand = new if buffer is None else torch.cat([buffer, new], dim=1)
            store[layer] = in_hand[:, self._kept_S]
            return in_hand
        if buffer is None:
            buffer = store[layer] = new.new_empty(new.shape[0], self.capacity, *new.shape[2:])
        buffer[:, self.length - new.shape[1] : self.length] = new
        return buffer[:, : self.length]

    def fork(self, n_rows: int, capacity: int) -> "KVCache":
        """A cache of its own with n_rows rows, each of which goes on from this one's text."""
        made = KVCache(len(self._keys), capacity, self.keep)
        made.length, made._pos_BS = self.length, self._pos_BS
        for mine, theirs in ((self._keys, made._keys), (self._values, made._values)):
            for layer, buffer in enumerate(mine):
                if buffer is None:
                    continue
                held = self.length if self.keep is None else buffer.shape[1]
                room = capacity if self.keep is None else held
                copy = theirs[layer] = buffer.new_empty(n_rows, room, *buffer.shape[2:])
                copy[:, :held] = buffer[:, :held]
        return made

    @classmethod
    def joined(cls, parts: Sequence["KVCache"]) -> "KVCache":
        """The rows of all parts, in order. The parts hold the same positions; they are emptied, layer by layer."""
        first = parts[0]
        if len(parts) == 1:
            return first
        made = cls(len(first._keys), first.capacity, first.keep)
        made.length, made._pos_BS = first.length, first._pos_BS
        for layer in range(len(first._keys)):
            made._keys[layer] = _rows([part._keys for part in parts], layer)
            made._values[layer] = _rows([part._values for part in parts], layer)
        return made

    @property
    def n_bytes(self) -> int:
        """Memory of what is held [bytes]."""
        return sum(t.numel() * t.element_size() for t in self._keys + self._values if t is not None)


def _rows(stores: Sequence[list[Tensor | None]], layer: int) -> Tensor:
    """One layer of all the stores, row below row; it is taken out of them."""
    found = [buffer for store in stores if (buffer := store[layer]) is not None]
    for store in stores:
        store[layer] = None
    return torch.cat(found)
