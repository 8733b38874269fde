"""Segment recurrence in training: the memory between two steps, and the engine that carries it.

Transformer-XL, arXiv 1901.02860, section 3.2: the hidden states of the segment before are kept, without gradient,
and each layer attends to them as well. The data's order must be `stream`, so that row g of a batch is the text after
row g of the batch before. The memory is state: it is in the checkpoint, for all rows of the global batch, and so does
not depend on the number of ranks.

Shape legend: R rows of this rank, B rows of a micro batch, L layers, M memory_len, C d_model.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from coca_train.engine.base import DTYPES, Engine, MicroBatch, ReadRange, Slice, StepResult
from coca_train.models.memory import Memory
from coca_train.runtime import dist
from coca_train.runtime.untrusted_io import JsonObject

AnyBatch = TypeVar("AnyBatch", bound=MicroBatch)
LENGTHS = "memory/lengths"


@dataclass(frozen=True)
class Remembering:
    """A micro batch with its memory."""

    tokens_BT: Tensor
    targets_BT: Tensor
    pos_BT: Tensor
    doc_BT: Tensor | None
    continues_B: Tensor | None
    memory: Memory
    length: None = None  # rows stand where the text says


class SegmentMemorySize(NamedTuple):
    """What each row remembers: the inputs of n_layers blocks, d_model wide, at memory_len positions [tokens]."""

    n_layers: int
    memory_len: int
    d_model: int


class SegmentMemory:
    """What this rank's rows of the global batch remember, in the compute dtype on the engine's device.

    length_R: how many of the M positions a row has, the last ones (fewer than M after the start of its text).
    """

    def __init__(self, n_rows: int, size: SegmentMemorySize, device: torch.device, dtype: torch.dtype) -> None:
        self.hidden_RLMC = torch.zeros(n_rows, *size, dtype=dtype, device=device)
        self.length_R = torch.zeros(n_rows, dtype=torch.int64, device=device)

    def attach(self, micro_batches: Sequence[MicroBatch]) -> list[Remembering]:
        """Return the micro batches of a step, which are this rank's rows in order, each with its rows' memory."""
        out = []
        for rows, batch in self._rows_of(micro_batches):
            assert batch.continues_B is not None, "a memory needs data.order=stream"
            length_B = self.length_R[rows] * batch.continues_B.to(self.length_R.device)
            memory = Memory(list(self.hidden_RLMC[rows].unbind(1)), length_B)
            tensors = (batch.tokens_BT, batch.targets_BT, batch.pos_BT, batch.doc_BT, batch.continues_B)
            out.append(Remembering(*tensors, memory))
        return out

    def _rows_of(self, micro_batches: Sequence[AnyBatch]) -> Iterator[tuple[slice, AnyBatch]]:
        """Yield the micro batches of a step, each with its rows among this rank's."""
        sizes = [len(batch.tokens_BT) for batch in micro_batches]
        assert sum(sizes) == len(self.length_R), "a step has all rows of this rank"
        for end, size, batch in zip(accumulate(sizes), sizes, micro_batches, strict=True):
            yield slice(end - size, end), batch

    @torch.no_grad()
    def take(self, micro_batches: Sequence[Remembering]) -> None:
        """Take over, after the step, what the model has appended to the memories of `attach`."""
        memory_len = self.hidden_RLMC.shape[2]
        for rows, batch in self._rows_of(micro_batches):
            self.length_R[rows] = (batch.memory.length_B + batch.tokens_BT.shape[1]).clamp(max=memory_len)
            for layer, x_BMC in enumerate(batch.memory.new):
                self.hidden_RLMC[rows, layer] = x_BMC

    def forget(self) -> None:
        """Reset the memory of every row."""
        self.hidden_RLMC.zero_()
        self.length_R.zero_()


class RecurrentEngine:
    """An engine whose model remembers the previous segment of every row; see `engine.base.Engine` for the methods.

    n_rows: this rank's rows of the global batch. A skipped step leaves no memory: what it computed is not finite.
    Validation reads windows without it; the evaluation suite `recurrence` reads with a memory.
    """

    def __init__(self, engine: Engine, n_rows: int, size: SegmentMemorySize) -> None:
        self._engine = engine
        self.model, self.device, self.dtype = engine.model, engine.device, engine.dtype
        self.zero_stage, self.trainable, self.skipped_steps = engine.zero_stage, engine.trainable, engine.skipped_steps
        self.memory = SegmentMemory(n_rows, size, engine.device, DTYPES[engine.dtype])

    def train_step(self, micro_batches: Sequence[MicroBatch], lr: float) -> StepResult:
        remembering = self.memory.attach(micro_batches)
        result = self._engine.train_step(remembering, lr)
        # The weights have not changed, but the inputs of the blocks may be NaN, and would be attended to from then
        # on.
        if result.skipped:
            self.memory.forget()
        else:
            self.memory.take(remembering)
        self.skipped_steps = self._engine.skipped_steps
        return result

    def compute_gradients(self, micro_batches: Sequence[MicroBatch]) -> float:
        return self._engine.compute_gradients(self.memory.attach(micro_batches))

    def drop_gradients(self, micro_batches: Sequence[MicroBatch]) -> None:
        self._engine.drop_gradients(self.memory.attach(micro_batches))

    def computing(self) -> list[Tensor]:
        return self._engine.computing()

    def eval_module(self) -> AbstractContextManager[nn.Module]:
        return self._engine.eval_module()

    def _rows(self) -> range:
        """Return this rank's rows of the global batch."""
        n_rows = len(self.memory.length_R)
        return range(dist.rank() * n_rows, (dist.rank() + 1) * n_rows)

    def _names(self) -> list[str]:
        """Return the name of one tensor for each row of the global batch, in their order."""
        return [f"memory/row.{row}" for row in range(len(self._rows()) * dist.world_size())]

    def state_spec(self) -> dict[str, tuple[int, ...]]:
        """Return the engine's, then the memory of each row of the global batch, (L, M, C), and the rows' lengths."""
        names, shape = self._names(), tuple(self.memory.hidden_RLMC.shape[1:])
        return self._engine.state_spec() | dict.fromkeys(names, shape) | {LENGTHS: (len(names),)}

    def slices(self) -> list[Slice]:
        mine, names = self._rows(), self._names()
        # Row by row, each from the rank that has it: the memory of a global batch need not fit into one rank.
        rows = [Slice(names[row], 0, self.memory.hidden_RLMC[row - mine.start].flatten()) for row in mine]
        return [*self._engine.slices(), *rows, Slice(LENGTHS, mine.start, self.memory.length_R.float())]

    def counters(self) -> JsonObject:
        return self._engine.counters()

    @torch.no_grad()
    def load_state(self, read: ReadRange, counters: JsonObject) -> None:
        self._engine.load_state(read, counters)
        self.skipped_steps = self._engine.skipped_steps
        mine, names = self._rows(), self._names()
        for row_LMC, row in zip(self.memory.hidden_RLMC, mine, strict=True):
            row_LMC.copy_(read(names[row], 0, row_LMC.numel()).view(row_LMC.shape))
        self.memory.length_R.copy_(read(LENGTHS, mine.start, mine.stop))

    def release(self) -> None:
        self._engine.release()
        self.model = nn.Identity()

    def close(self) -> None:
        self._engine.close()
