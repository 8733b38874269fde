"""Positions of tokens, and constants of the host: values that are known without reading from a device.

Reading a value of a device's tensor (`.item()`, `bool(…)`) makes the host wait until everything launched has run, and
so does a copy from the host's pageable memory.

Shape legend: B batch (1 where all rows share their positions), T tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Positions(NamedTuple):
    """Integer positions of tokens, with bounds that the host knows. All positions lie within them; measured ones are
    tight."""

    pos_BT: Tensor
    first: int
    last: int
    contiguous: bool  # they rise by one from token to token of a document, and no document comes back later

    @classmethod
    def counted(cls, first: int, end: int, device: torch.device | None = None) -> "Positions":
        """Return positions first … end - 1 for all rows."""
        return cls(torch.arange(first, end, device=device)[None], first, end - 1, True)

    @classmethod
    def of(cls, pos_BT: "Tensor | Positions", doc_BT: Tensor | None = None) -> "Positions":
        """Measure positions of these documents (None: one document); what is measured already comes back as it is.

        Waits for the device of the tensor.
        """
        if isinstance(pos_BT, Positions):
            return pos_BT
        rises = pos_BT[:, 1:] - pos_BT[:, :-1] == 1
        if doc_BT is not None:
            step_BT = doc_BT[:, 1:] - doc_BT[:, :-1]
            rises = (rises & (step_BT == 0)) | (step_BT > 0)
        return cls(pos_BT, int(pos_BT.min()), int(pos_BT.max()), bool(rises.all()))

    def part(self, begin: int, end: int, doc_BT: Tensor | None = None) -> "Positions":
        """Return the positions of the tokens [begin, end). doc_BT: documents of all tokens; None: one document."""
        pos_Bt = self.pos_BT[:, begin:end]
        if not self.contiguous or doc_BT is not None:
            return Positions.of(pos_Bt, None if doc_BT is None else doc_BT[:, begin:end])
        return Positions(pos_Bt, self.first + begin, self.last - (self.pos_BT.shape[1] - end), True)

    def followed_by(self, new: "Positions") -> "Positions":
        """Return these positions and those of the tokens that follow, in one document."""
        contiguous = self.contiguous and new.contiguous and self.last + 1 == new.first
        return Positions(torch.cat((self.pos_BT, new.pos_BT), 1), self.first, new.last, contiguous)


def n_distances(queries: Positions, keys: Positions) -> int:
    """Return how many rows a table over all distances of these queries and keys has: at least the largest distance + 1.

    Where positions are contiguous, one for each key: every batch has as many, however long its documents are.
    """
    return max(keys.pos_BT.shape[1] if keys.contiguous else 1, queries.last - keys.first + 1)


def distances(queries: Positions, keys: Positions, bidirectional: bool, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return the distance that each row of such a table is of, (R,): 0, 1, …; bidirectional: …, -1, 0, 1, …"""
    n = n_distances(queries, keys)
    if not bidirectional:
        return torch.arange(n, dtype=dtype, device=queries.pos_BT.device)
    n = max(n, keys.last - queries.first + 1)
    return torch.arange(1 - n, n, dtype=dtype, device=queries.pos_BT.device)


class DeviceCopies:
    """Copies of a host constant on devices: each is made on first use and kept until the constant changes."""

    def __init__(self) -> None:
        self._constant: Tensor | None = None
        self._copies: dict[torch.device, Tensor] = {}

    def on(self, constant: Tensor, device: torch.device) -> Tensor:
        """Return the constant on a device."""
        if constant.device == device or constant.is_meta:  # a model without memory: operations take it as it is
            return constant
        if constant is not self._constant:
            self._constant, self._copies = constant, {}
        if device not in self._copies:
            self._copies[device] = constant.to(device)
        return self._copies[device]
