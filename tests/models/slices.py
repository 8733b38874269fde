"""Ranks of a sequence as threads of one process, so that every scheme can be tried in a blink."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor

from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import SequenceShare

T = TypeVar("T")


class Meeting:
    """Where the threads exchange their parts. sent: numbers that each of them gave away, in all."""

    def __init__(self, size: int) -> None:
        self.parts: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=60)
        self.sent = [0] * size

    def swap(self, rank: int, x_PBtW: Tensor) -> Tensor:
        self.sent[rank] += x_PBtW.numel()
        self.parts[rank] = x_PBtW.detach()
        self.barrier.wait()
        mine = torch.stack([part[rank] for part in self.parts])
        self.barrier.wait()
        return mine


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_PBtW: Tensor, meeting: Meeting, rank: int) -> Tensor:
        ctx.meeting, ctx.rank = meeting, rank
        return meeting.swap(rank, x_PBtW)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.meeting.swap(ctx.rank, grads[0]), None, None


def on_ranks(model: Transformer, size: int, work: Callable[[Transformer], T]) -> tuple[list[T], Meeting]:
    """What `work` makes of copies of a model that share every sequence."""
    meeting = Meeting(size)

    def run(rank: int) -> T:
        copy = deepcopy(model)
        copy.sequence = SequenceShare(rank, size, lambda x: _Swap.apply(x, meeting, rank))  # type: ignore
        try:
            return work(copy)
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size))), meeting
