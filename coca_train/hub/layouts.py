"""Where the rows of a weight are in the tensors of a family of transformers, both ways: in another order, or several
weights in one tensor."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from coca_train.hub.architecture import Architecture
from coca_train.positions.hugging_face import rotation
from coca_train.positions.rotary import width


class Layout(ABC):
    """Modules of ours in one tensor of theirs, by rows. parts: the modules, as they follow each other."""

    parts: tuple[str, ...]

    @abstractmethod
    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        """Return our parameter out of their tensor."""

    @abstractmethod
    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        """Return their tensor out of ours, one for each part."""

    def shape(self, *parts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of their tensor for those of ours."""
        return sum(part[0] for part in parts), *parts[0][1:]


class Rows(Layout):
    """The rows of one module after those of another (Phi-3)."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        rows = {"attention.q": architecture.model.n_heads, "attention.k": architecture.n_kv_heads}
        rows["attention.v"] = rows["attention.k"]
        sizes = [rows[name] * architecture.head_dim if name in rows else architecture.model.d_ff for name in self.parts]
        return tensor.split(sizes)[part]

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        return torch.cat(tensors)


class Columns(Rows):
    """The same, transposed: matrices have shape (in, out) (GPT-2)."""

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        rows = tensor.T if tensor.ndim == 2 else tensor
        return rows if len(self.parts) == 1 else super().split(rows, part, architecture)

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        rows = super().join(tensors, architecture)
        return rows.T.contiguous() if rows.ndim == 2 else rows

    def shape(self, *parts: tuple[int, ...]) -> tuple[int, ...]:
        return super().shape(*parts)[::-1]


class SkippedRows(Layout):
    """A module after some rows that are not used, zero on export (OPT)."""

    def __init__(self, part: str, skipped: int) -> None:
        self.parts, self.skipped = (part,), skipped

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        return tensor[self.skipped :]

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        (tensor,) = tensors
        return torch.cat((tensor.new_zeros(self.skipped, *tensor.shape[1:]), tensor))

    def shape(self, *parts: tuple[int, ...]) -> tuple[int, ...]:
        rows, *others = super().shape(*parts)
        return rows + self.skipped, *others


class PerGroup(Layout):
    """For each key head the rows of its queries, of its key and of its value (Falcon); where there are as many key
    heads as query heads, of one query (GPT-NeoX, BLOOM), and where there is one, of all (Falcon 7B)."""

    parts = ("attention.q", "attention.k", "attention.v")

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        by_group = tensor.unflatten(0, (architecture.n_kv_heads, -1, architecture.head_dim))
        n_rows = by_group.shape[1]
        return by_group.split((n_rows - 2, 1, 1), 1)[part].flatten(0, 2)

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        shape = (architecture.n_kv_heads, -1, architecture.head_dim)
        return torch.cat([tensor.unflatten(0, shape) for tensor in tensors], 1).flatten(0, 2)


class Interleaved(Layout):
    """Features that are rotated together are neighbours, 2j and 2j + 1, where ours are j and j + half the rotated width
    (GLM, Cohere)."""

    def __init__(self, part: str) -> None:
        self.parts = (part,)

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        by_head, width = tensor.unflatten(0, (-1, architecture.head_dim)), self._width(architecture)
        pairs = by_head[:, :width].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
        return torch.cat((pairs, by_head[:, width:]), 1).flatten(0, 1)

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        (tensor,) = tensors
        by_head, width = tensor.unflatten(0, (-1, architecture.head_dim)), self._width(architecture)
        pairs = by_head[:, :width].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return torch.cat((pairs, by_head[:, width:]), 1).flatten(0, 1)

    def _width(self, architecture: Architecture) -> int:
        """Return the rotated features of a head."""
        rotated = rotation(architecture.position, architecture.head_dim)
        assert rotated is not None, "families with this layout have RoPE"
        return width(architecture.head_dim, rotated.rotary_pct)


PAIRS = (Interleaved("attention.q"), Interleaved("attention.k"))
