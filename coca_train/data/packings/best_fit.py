"""Pieces into rows of a fixed capacity: best-fit decreasing, on the histogram of their lengths.

Longest first, each piece goes to the row with the least room that still takes it; a new row when there is none
(Johnson, "Fast algorithms for bin packing", 1974; on histograms: Krell et al., arXiv 2107.02027, LPFHP). Pieces of one
length are placed together and rows that were filled alike stay one group, so the time depends on the number of
lengths and groups, hardly on the number of pieces.
"""

from array import array
from bisect import bisect_left, bisect_right, insort

import numpy as np

FRESH = -1


class Rows:
    """Which pieces lie in which row. Pieces are numbered from the longest on: 0 .. counts.sum() - 1.

    counts: int (capacity + 1,), pieces of each length [tokens]; counts[0] = 0. n_rows: how many rows they fill.
    Memory: some 50 bytes a group.

    A node is a stretch of rows that all got `copies` pieces of one length; their other pieces are those of `parent`,
    whose rows shift, shift + 1, ... they are. A group is the rows of one node from its `shift`-th on.
    """

    def __init__(self, counts: np.ndarray, capacity: int) -> None:
        self._parents, self._shifts, self._firsts, self._copies = array("q"), array("q"), array("q"), array("q")
        self._groups: dict[int, list[tuple[int, int, int]]] = {}  # room -> (node, shift, rows)
        self._rooms: list[int] = []  # those in _groups, rising
        number = 0
        for length in np.flatnonzero(counts)[::-1].tolist():
            left = int(counts[length])
            while left:
                placed = self._place(length, left, number, capacity)
                number, left = number + placed, left - placed
        final = [group for room in sorted(self._groups) for group in self._groups[room]]
        del self._groups, self._rooms
        self._nodes = array("q", (node for node, _, _ in final))
        self._node_shifts = array("q", (shift for _, shift, _ in final))
        self._ends = array("q", np.cumsum([n for _, _, n in final], dtype=np.int64).tolist())
        self.n_rows = self._ends[-1] if self._ends else 0

    def _place(self, length: int, left: int, number: int, capacity: int) -> int:
        """Put some of `left` pieces, the first of them `number`, into the group that fits best. Returns how many."""
        found = bisect_left(self._rooms, length)
        if found < len(self._rooms):
            room = self._rooms[found]
            node, shift, n_rows = self._groups[room].pop()
            if not self._groups[room]:
                del self._groups[room], self._rooms[found]
        else:
            room, node, shift, n_rows = capacity, FRESH, 0, left
        fits = room // length
        rows, copies = (min(n_rows, left // fits), fits) if left >= fits else (1, left)
        if node != FRESH and rows < n_rows:
            self._add(room, node, shift + rows, n_rows - rows)
        for values, value in zip(
            (self._parents, self._shifts, self._firsts, self._copies), (node, shift, number, copies), strict=True
        ):
            values.append(value)
        self._add(room - copies * length, len(self._parents) - 1, 0, rows)
        return rows * copies

    def _add(self, room: int, node: int, shift: int, n_rows: int) -> None:
        if room not in self._groups:
            self._groups[room] = []
            insort(self._rooms, room)
        self._groups[room].append((node, shift, n_rows))

    def pieces(self, row: int) -> list[int]:
        """The pieces of a row, the longest first."""
        group = bisect_right(self._ends, row)
        row -= self._ends[group - 1] if group else 0
        node, row = self._nodes[group], row + self._node_shifts[group]
        found: list[int] = []
        while node != FRESH:
            first = self._firsts[node] + row * self._copies[node]
            found += reversed(range(first, first + self._copies[node]))
            node, row = self._parents[node], row + self._shifts[node]
        return found[::-1]
