"""Silent corruption: a step's gradients computed twice, and a state that must not change between two steps.

A digest is a sum of the bits of elements, each times an odd number of its own, modulo 2**64: a change of one bit
changes it for certain, and several by all likelihood. It is computed where the tensors are.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.engine.base import Engine, MicroBatch, StepResult
from coca_train.models.lora import named_parameters
from coca_train.runtime import dist
from coca_train.runtime.errors import FaultyRank

CHUNK = 1 << 22  # [elements]
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


def digest(tensor: Tensor) -> Tensor:
    """Return the digest of a tensor, int64 (), on its device."""
    bits = tensor.detach().contiguous().view(-1).view(BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, len(bits), CHUNK):
        part = bits[start : start + CHUNK].long()
        total += (part * (2 * torch.arange(start, start + len(part), device=part.device) + 1)).sum()
    return total


def digest_of_all(tensors: Sequence[Tensor]) -> int:
    """Return the digest of tensors in their order."""
    return sum(int(digest(tensor)) * (2 * i + 1) for i, tensor in enumerate(tensors)) % 2**64


class _Gradients:
    """The digest of the gradients that this rank computes, as autograd has them, since it was last taken."""

    def __init__(self, engine: Engine) -> None:
        trained = [each for name, each in named_parameters(engine.model) if name in set(engine.trainable)]
        self._total = torch.zeros((), dtype=torch.int64, device=engine.device)
        for number, parameter in enumerate(trained):
            parameter.register_hook(self._adding(2 * number + 1))

    def _adding(self, weight: int) -> Callable[[Tensor], None]:
        def add(gradient: Tensor) -> None:
            self._total += digest(gradient) * weight  # in any order

        return add

    def take(self) -> int:
        total = int(self._total)
        self._total.zero_()
        return total


class _Kept(NamedTuple):
    """Digests after a step. state: masters, moments, memories. computing: the weights that compute."""

    state: int
    computing: int


class Recheck:
    """Watches every step: `before` it and `after` it.

    every: steps between those that are computed twice. All raise FaultyRank E-RUN-34, on all ranks, with the rank that
    differs.
    """

    def __init__(self, engine: Engine, every: int) -> None:
        self._engine, self._every, self._gradients = engine, every, _Gradients(engine)
        self._kept: _Kept | None = None
        self._expected: tuple[str, int] | None = None  # loss and digest of the gradients

    def before(self, step: int, micro_batches: Sequence[MicroBatch], seed: Callable[[], object]) -> None:
        """COLLECTIVE. Compare the state with what the step before left, and compute this step's gradients once where it
        is due. seed: seeds the random numbers of the step, as they are to be drawn again."""
        self.unchanged(step)
        self._kept = None
        if step % self._every == 0:
            loss = self._engine.compute_gradients(micro_batches)
            self._expected = (str(loss), self._gradients.take())  # NaN is not equal to itself
            self._engine.drop_gradients(micro_batches)
            self._gradients.take()
            seed()

    def after(self, step: int, result: StepResult) -> None:
        """COLLECTIVE. Compare the step that was done with what was computed before it."""
        gradients = self._gradients.take()
        if self._expected is not None:
            same = self._expected == (str(result.loss), gradients)
            self._expected = None
            self._compare(step, same, "it computed another loss or other gradients the second time")
            self._kept = self._look()

    def unchanged(self, step: int) -> None:
        """COLLECTIVE, between two steps, and so before a save. Compare the state with what a rechecked step left."""
        if self._kept is not None:
            now = self._look()
            self._compare(step, now == self._kept, "its weights or its optimizer's state changed between two steps")
            self._compare_copies(step, now.computing)

    def _look(self) -> _Kept:
        state = digest_of_all([values for _, _, values in self._engine.slices()])
        return _Kept(state, digest_of_all(self._engine.computing()))

    def _compare(self, step: int, same: bool, what: str) -> None:
        faulty = [rank for rank, its in enumerate(dist.all_gather_object(same)) if not its]
        if faulty:
            raise _faulty(step, faulty, what)

    def _compare_copies(self, step: int, computing: int) -> None:
        """Compare the weights of all ranks, where each has all of them."""
        if self._engine.zero_stage == 3:
            return
        of_ranks = dist.all_gather_object(computing)
        (usual, _), *others = Counter(of_ranks).most_common()
        if others:
            faulty = [rank for rank, its in enumerate(of_ranks) if its != usual]
            raise _faulty(step, faulty, "its weights are not those of most ranks")


def _faulty(step: int, ranks: Sequence[int], what: str) -> FaultyRank:
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return FaultyRank(
        f"E-RUN-34 step {step}: {who}: {what}; the memory or the device is at fault. Fix: run the same command without "
        "this machine; it goes on from the last checkpoint"
    )
