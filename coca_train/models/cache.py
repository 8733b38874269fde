"""The key/value cache of a generation: un-rotated keys, so frequencies may change (arXiv 2309.00071, 3.3).

Beside each key and value stands what the position scheme has made of the token (`LayerPosition.tokens`).

Shape legend: B batch, T new positions, S all positions in hand, n_held positions held.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from coca_train.positions.visibility import Keep


class KVCache:
    """Keys, values and the scheme's tensors of every layer, (B, S, …) each.

    keep None: everything, in buffers of a fixed capacity [positions]. Otherwise what a later query may still see
    (positions/visibility.py), so that memory does not grow with the text.
    """

    def __init__(self, n_layers: int, capacity: int, keep: Keep | None = None) -> None:
        self.capacity, self.keep = capacity, keep
        self.length = 0  # positions of the text so far
        self._pos_BS: Tensor | None = None  # of the keys held
        self._kept_S: Tensor | None = None  # which of the keys in hand are held from now on; None: all
        self._layers: list[list[Tensor]] = [[] for _ in range(n_layers)]

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

    def extend(self, layer: int, *new: Tensor) -> list[Tensor]:
        """Append to each of one layer's tensors, (B, T, …); returns them with all positions in hand, (B, S, …)."""
        held = self._layers[layer]
        if self._kept_S is not None:
            in_hand = [torch.cat(pair, dim=1) for pair in zip(held, new, strict=True)] if held else list(new)
            self._layers[layer] = [x[:, self._kept_S] for x in in_hand]
            return in_hand
        if not held:
            held += [x.new_empty(x.shape[0], self.capacity, *x.shape[2:]) for x in new]
        for buffer, x in zip(held, new, strict=True):
            buffer[:, self.length - x.shape[1] : self.length] = x
        return [buffer[:, : self.length] for buffer in held]

    def fork(self, n_rows: int, capacity: int) -> "KVCache":
        """A cache of its own with n_rows rows, each of which goes on from this one's text."""
        made = KVCache(len(self._layers), capacity, self.keep)
        made.length, made._pos_BS = self.length, self._pos_BS
        for mine, theirs in zip(self._layers, made._layers, strict=True):
            for buffer in mine:
                n_held = self.length if self.keep is None else buffer.shape[1]
                room = capacity if self.keep is None else n_held
                copy = buffer.new_empty(n_rows, room, *buffer.shape[2:])
                copy[:, :n_held] = buffer[:, :n_held]
                theirs.append(copy)
        return made

    @classmethod
    def joined(cls, parts: Sequence["KVCache"]) -> "KVCache":
        """The rows of all parts, in order. The parts hold the same positions; they are emptied, layer by layer."""
        first = parts[0]
        if len(parts) == 1:
            return first
        made = cls(len(first._layers), first.capacity, first.keep)
        made.length, made._pos_BS = first.length, first._pos_BS
        for layer, joined in enumerate(made._layers):
            joined += [torch.cat(rows) for rows in zip(*(part._layers[layer] for part in parts), strict=True)]
            for part in parts:
                part._layers[layer] = []
        return made

    @property
    def n_bytes(self) -> int:
        """Memory of what is held [bytes]."""
        return sum(x.numel() * x.element_size() for held in self._layers for x in held)
