"""The key/value cache of a generation. Where frequencies may change with the length its keys are not yet rotated (arXiv
2309.00071, 3.3), so that all are rotated again at each step. A cache for one length holds them rotated, where a scheme
maps a key by its position and the length alone and an attention pattern does not move it.

With each key and value it holds what the position scheme has computed of the token (`LayerPosition.tokens`).

Shape legend: B batch, T new positions, S all positions attended to, n_held positions held.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from coca_train.attention.pattern import Keep
from coca_train.models.qkv_projection import JoinedByLayers
from coca_train.positions.base import Position
from coca_train.positions.token_positions import Positions

AHEAD = 64  # positions whose tables are computed at a time [tokens]


class DecodeTables:
    """Values that follow from the weights alone, kept with a cache: joined weights (models/qkv_projection.py), and a
    scheme's tables of future positions. For one model, whose weights do not change, at one length.

    The tables of one token are a dozen operations on a few numbers each, and take as long to call as those of many
    tokens. So they are computed for several tokens at a time, where a table is a row for each position and nothing else
    (`Position.caches_rotated_keys`).
    """

    def __init__(self) -> None:
        self.joined_weights: JoinedByLayers = {}
        self._tables: dict[Position, tuple[int, Sequence[object]]] = {}  # from this position on

    def tables(self, position: Position, token: Positions, length: int) -> object:
        """Return position(token, token, length) for one new token of a scheme that caches rotated keys."""
        if token.first != token.last:  # the host knows bounds only, and reads no more from a device
            return position(token, token, length)
        first, tables = self._tables.get(position, (0, ()))
        if not 0 <= token.first - first < len(tables):
            first = token.first
            end = max(first + 1, min(first + AHEAD, length))  # frequencies may know of no position beyond the length
            ahead = Positions.counted(first, end, token.pos_BT.device)
            tables = split_by_position(position(ahead, ahead, length), end - first)
            self._tables[position] = first, tables
        return tables[token.first - first]


def split_by_position(tables: object, n: int) -> Sequence[object]:
    """Return the tables of each of n positions: tensors (B, n, …) in tuples are split; the rest is the same for all. An
    object that occurs twice in them is one object in each."""
    if isinstance(tables, Tensor):
        return tables.split(1, 1)
    if not isinstance(tables, tuple):
        return [tables] * n
    rows = {id(each): split_by_position(each, n) for each in tables}
    make = getattr(type(tables), "_make", tuple)
    return [make(each) for each in zip(*(rows[id(each)] for each in tables), strict=True)]


class AttendedKeys(NamedTuple):
    """What a layer attends to: the positions and documents of its keys."""

    positions: Positions
    doc_BS: Tensor | None  # None: one document


class Cache(Protocol):
    """The interface between a model and its cache."""

    at_length: int | None  # what dynamic frequencies adapt to, as long as it is used [tokens]; None: that may change
    decode_tables: DecodeTables | None  # what follows from the weights, as long as it is used; None: they may change

    @property
    def length(self) -> int:
        """Positions of the text so far."""
        ...

    def advance(self, positions: Positions, doc_BT: Tensor | None = None) -> Mapping[Keep | None, AttendedKeys]:
        """Announce new positions, before the layers extend. Returns all keys attended to, by what a layer keeps."""
        ...

    def extend(self, layer: int, *new: Tensor) -> list[Tensor]:
        """Append to each of one layer's tensors, (B, T, …); return them with all positions attended to, (B, S, …)."""
        ...


class _Held(NamedTuple):
    """The keys that layers with the same `keep` hold."""

    positions: Positions  # of the keys held
    retained_S: Tensor | None  # which of the attended keys are held from now on; None: all


class KVCache:
    """Keys, values and the scheme's tensors of every layer, (B, S, …) each.

    keeps: for each layer what a later query may still see (attention/pattern.py), so that its memory does not grow
    with the text; None: everything, in buffers of a fixed capacity [positions]. at_length: as in `Cache`.
    """

    def __init__(self, keeps: Sequence[Keep | None], capacity: int, at_length: int | None = None) -> None:
        self.keeps, self.capacity, self.at_length = tuple(keeps), capacity, at_length
        self.decode_tables: DecodeTables | None = DecodeTables()
        self.length = 0  # positions of the text so far
        self._held: dict[Keep | None, _Held] = {}
        self._layers: list[list[Tensor]] = [[] for _ in keeps]

    def advance(self, positions: Positions, doc_BT: Tensor | None = None) -> dict[Keep | None, AttendedKeys]:
        assert doc_BT is None, "a cache holds one document"
        needed = self.length + positions.pos_BT.shape[1]
        if needed > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions; {needed} are needed")
        self.length, attended = needed, {}
        for keep in dict.fromkeys(self.keeps):
            held = self._held.get(keep)
            now = positions if held is None else held.positions.followed_by(positions)
            attended[keep], self._held[keep] = AttendedKeys(now, None), _Held(now, None)
            if keep is not None:
                n_keys = now.pos_BT.shape[1]
                # Chosen once for all layers that keep the same, and before they extend: each cuts its tensors by the
                # same index.
                last_S = torch.arange(n_keys, device=now.pos_BT.device) >= n_keys - keep.last
                retained_S = (last_S | (now.pos_BT[0] < keep.first)).nonzero()[:, 0]
                self._held[keep] = _Held(Positions.of(now.pos_BT[:, retained_S]), retained_S)
        return attended

    def extend(self, layer: int, *new: Tensor) -> list[Tensor]:
        held, retained_S = self._layers[layer], self._held[self.keeps[layer]].retained_S
        if retained_S is not None:
            attended = [torch.cat(pair, dim=1) for pair in zip(held, new, strict=True)] if held else list(new)
            self._layers[layer] = [x[:, retained_S] for x in attended]
            return attended
        if not held:
            held += [_buffer(x, x.shape[0], self.capacity) for x in new]
        for buffer, x in zip(held, new, strict=True):
            buffer[:, self.length - x.shape[1] : self.length] = x
        return [buffer[:, : self.length] for buffer in held]

    def fork(self, n_rows: int, capacity: int) -> "KVCache":
        """Copy the cache to n_rows rows, each of which continues this one's text."""
        forked = KVCache(self.keeps, capacity, self.at_length)
        forked.decode_tables, forked.length, forked._held = self.decode_tables, self.length, dict(self._held)
        for keep, mine, theirs in zip(self.keeps, self._layers, forked._layers, strict=True):
            for buffer in mine:
                n_held = self.length if keep is None else buffer.shape[1]
                room = capacity if keep is None else n_held
                copy = _buffer(buffer, n_rows, room)
                copy[:, :n_held] = buffer[:, :n_held]
                theirs.append(copy)
        return forked

    @classmethod
    def join(cls, parts: Sequence["KVCache"]) -> "KVCache":
        """Join the rows of all parts, in order. The parts hold the same positions; they are emptied, layer by layer."""
        first = parts[0]
        if len(parts) == 1:
            return first
        together = cls(first.keeps, first.capacity, first.at_length)
        together.decode_tables, together.length, together._held = first.decode_tables, first.length, dict(first._held)
        for layer, joined in enumerate(together._layers):
            for rows in zip(*(part._layers[layer] for part in parts), strict=True):
                together_BS = _buffer(rows[0], sum(map(len, rows)), rows[0].shape[1])
                joined.append(torch.cat(rows, out=together_BS))
            for part in parts:
                part._layers[layer] = []
        return together

    @property
    def n_bytes(self) -> int:
        """Memory of the tensors held [bytes]."""
        return sum(x.numel() * x.element_size() for held in self._layers for x in held)


def _buffer(like_BS: Tensor, n_rows: int, n_positions: int) -> Tensor:
    """Allocate a tensor like the given (B, S, …) for so many rows and positions. In memory a head's keys are
    contiguous, as a single query reads them one head after the other."""
    heads, width = like_BS.shape[2:-1], like_BS.shape[2:][-1:]
    return like_BS.new_empty(n_rows, *heads, n_positions, *width).movedim(len(heads) + 1, 1)
