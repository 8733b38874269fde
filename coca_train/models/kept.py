"""What follows from the weights alone, kept with a cache as long as that is used: weights joined (models/products.py),
and a scheme's tables of positions to come.

The tables of one token are a dozen operations on a few numbers each, and take as long to call as those of many tokens.
So they are made of some tokens at a time, where a table is a row for each position and nothing else
(`Position.settles_keys`).

Shape legend: B batch, T positions.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coca_train.models.products import Joints
from coca_train.positions.base import Position
from coca_train.positions.known import Extent, extent, note

AHEAD = 64  # positions whose tables are made at a time [tokens]


class Rows(NamedTuple):
    """The tables of each position from `first` on."""

    first: int
    tables: Sequence[Any]


class Kept:
    """Of one model, whose weights do not change, at one length."""

    def __init__(self) -> None:
        self.joints: Joints = {}
        self._rows: dict[Position, Rows] = {}

    def tables(self, position: Position, pos_11: Tensor, length: int) -> Any:
        """position(pos_11, pos_11, length): what a scheme that settles keys makes of one new token."""
        at, last = extent(pos_11)
        if at != last:  # the host knows bounds only, and asks no device for more
            return position(pos_11, pos_11, length)
        rows = self._rows.get(position)
        if rows is None or not 0 <= at - rows.first < len(rows.tables):
            end = max(at + 1, min(at + AHEAD, length))  # frequencies may know of no position beyond the length
            pos_1T = torch.arange(at, end, device=pos_11.device)[None]
            note(pos_1T, Extent(at, end - 1), rising=True)
            rows = self._rows[position] = Rows(at, by_position(position(pos_1T, pos_1T, length), end - at))
        return rows.tables[at - rows.first]


def by_position(tables: Any, n: int) -> Sequence[Any]:
    """Tables of n positions as the tables of each: tensors (B, n, …) in tuples; anything else is the same for all. What
    stands in them twice is one object in each."""
    if isinstance(tables, Tensor):
        return tables.split(1, 1)
    if not isinstance(tables, tuple):
        return [tables] * n
    rows = {id(each): by_position(each, n) for each in tables}
    make = getattr(type(tables), "_make", tuple)
    return [make(each) for each in zip(*(rows[id(each)] for each in tables), strict=True)]
