"""A whole optimizer step of one GPU, counted operation by operation, and how long it takes at known rates.

Forward and backward are those of the model itself (meta_step.py), a kernel for each operation: what compiled blocks
save is not counted. Update and communication are the engine's (engines.py). Times are sums of the longer of moving a
kernel's bytes and computing its FLOPs. What the host has to do for it (hardware.py) is the step where it takes longer.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch

from coca_train.checkpoint.format import file_size
from coca_train.config.schema import Config
from coca_train.engine.base import spec_of
from coca_train.engine.optim import MUON
from coca_train.models.lora import named_parameters
from coca_train.planning.count import (
    AGAIN,
    ATTENTION,
    COMMUNICATION,
    ELEMENTWISE,
    FORWARD,
    LINEAR,
    LOSS,
    OPTIMIZER,
    Operation,
)
from coca_train.planning.engines import GRADIENTS, Collective, ParameterCounts, collectives, engine_update, exchanges
from coca_train.planning.hardware import GPUS, Launches, Rates, host_seconds, peak_of
from coca_train.planning.meta_step import Exchange, Flops, count_micro_batch
from coca_train.planning.outline import Outline

PARTS = (LOSS, ATTENTION, LINEAR, ELEMENTWISE, AGAIN)


@dataclass(frozen=True)
class Row:
    """A part of a step on one GPU, over all micro batches."""

    kernels: float = 0  # of communication: collectives
    nbytes: float = 0
    flops: float = 0
    seconds: tuple[float, ...] = ()  # at each of the rates

    def __add__(self, other: "Row") -> "Row":
        seconds = tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True))
        return Row(self.kernels + other.kernels, self.nbytes + other.nbytes, self.flops + other.flops, seconds)


@dataclass(frozen=True)
class Step:
    """A step on each of n_gpus."""

    outline: Outline
    n_gpus: int
    kernels: tuple[Operation, ...]  # of one micro batch
    collectives: tuple[Collective, ...]
    syncs: Counter[str]
    per_token: Flops
    saved: int  # of a checkpoint [bytes]

    @property
    def n_micro_batches(self) -> int:
        """Micro batches of a step on one GPU, which has a slice of each where GPUs share sequences."""
        return _n_micro_batches(self.outline.config, self.n_gpus)

    @property
    def n_tokens(self) -> int:
        """Tokens of a step on one GPU."""
        train = self.outline.config.train
        return train.global_batch_size * train.seq_len // self.n_gpus

    def rows(self, rates: Iterable[Rates]) -> dict[str, Row]:
        """Return a row for each part of the step."""
        rates = tuple(rates)
        rows = {part: self._row([kernel for kernel in self.kernels if kernel.part == part], rates) for part in PARTS}
        rows[OPTIMIZER] = self._optimizer(rates)
        rows[COMMUNICATION] = self._communication(rates)
        return {name: row for name, row in rows.items() if row.kernels}

    def device_seconds(self, rates: Rates) -> float:
        """Return the time that the GPU computes and waits in a step."""
        return sum(row.seconds[0] for row in self.rows([rates]).values())

    @cached_property
    def host_seconds(self) -> float:
        """The time of the host's thread for a step."""
        n_again = sum(kernel.part == AGAIN for kernel in self.kernels)
        trained, tensors = len(self.outline.trained), len(dict(named_parameters(self.outline.model)))
        launches = Launches(len(self.kernels) - n_again, n_again, trained, tensors, self.n_micro_batches)
        return host_seconds(self.outline.config.engine, launches)

    def seconds(self, rates: Rates) -> float:
        """Return the longer of the device's and the host's time."""
        return max(self.device_seconds(rates), self.host_seconds)

    def mfu(self, rates: Rates, seconds: float) -> float:
        """Return the FLOPs of the model (without recomputation) as a share of the peak."""
        peak = peak_of(GPUS[rates.gpu], self.outline.config.engine.dtype).flops
        return self.per_token.total * self.n_tokens / (seconds * peak)

    def _row(self, kernels: list[Operation], rates: tuple[Rates, ...]) -> Row:
        n = self.n_micro_batches
        return Row(
            n * len(kernels),
            n * sum(kernel.nbytes for kernel in kernels),
            n * sum(kernel.flops for kernel in kernels),
            tuple(n * sum(each.seconds(kernel) for kernel in kernels) for each in rates),
        )

    def _optimizer(self, rates: tuple[Rates, ...]) -> Row:
        engine = self.outline.config.engine
        moved = engine_update(engine)
        nbytes = moved.nbytes(self.outline.n_trained, self.n_gpus, self.n_micro_batches)
        n_kernels = moved.n_kernels(len(self.outline.trained), self.n_micro_batches)
        # Where ZeRO cuts matrices, each of them is one GPU's to orthogonalise.
        flops = muon_flops(self.outline) / (self.n_gpus if engine.kind == "deepspeed" and engine.zero_stage else 1)
        shape = (torch.Size(), torch.bfloat16)
        computing = Operation(OPTIMIZER, None, FORWARD, "muon", (shape,), (shape,), (), (), flops)
        seconds = (each.moving(nbytes, n_kernels) + each.seconds(computing) * bool(flops) for each in rates)
        return Row(n_kernels, nbytes, flops, tuple(seconds))

    def _communication(self, rates: tuple[Rates, ...]) -> Row:
        """Return the collectives' row. Overlapped ones cost only what exceeds the computation, those of gradients what
        exceeds the backward pass."""

        def sent(collectives: Iterable[Collective]) -> float:
            return sum(each.sent(self.n_gpus) for each in collectives)

        waited_for = [each for each in self.collectives if not each.overlapped]
        overlapped = [each for each in self.collectives if each.overlapped]
        of_gradients = sent(each for each in overlapped if each.what == GRADIENTS)
        seconds = []
        for each in rates:
            computing = self.n_micro_batches * sum(each.seconds(kernel) for kernel in self.kernels)
            forward = self.n_micro_batches * sum(each.seconds(k) for k in self.kernels if k.phase == FORWARD)
            link = each.link(self.n_gpus)
            longer = max(0.0, sent(overlapped) / link - computing, of_gradients / link - (computing - forward))
            waiting = sum(one.sent(self.n_gpus) / each.link(one.among or self.n_gpus) for one in waited_for)
            seconds.append(waiting + longer)
        return Row(len(self.collectives), sent(self.collectives), 0, tuple(seconds))


def _n_micro_batches(config: Config, n_gpus: int) -> int:
    train = config.train
    return train.global_batch_size * config.engine.sequence_parallel // (train.micro_batch_size * n_gpus)


def muon_flops(outline: Outline) -> float:
    """Return the FLOPs of Muon's products in a step.

    In each of five iterations, of a matrix of m rows and n columns, m the fewer: X X', its square, their sum times X.
    """
    parameters = dict(named_parameters(outline.model))
    shapes = [sorted(parameters[name].shape) for name, kept in outline.moments.items() if kept == MUON]
    return 5.0 * sum(4 * m * m * n + 2 * m**3 for m, n in shapes)


def split_kernels(operations: Iterable[Operation]) -> list[Operation]:
    """Return the kernel of each operation; two for the backward of a norm, whose sums over tokens run the other way."""
    kernels = []
    for each in operations:
        if each.name != "native_layer_norm_backward":
            kernels.append(each)
            continue
        by_rows = tuple(access for access in each.writes if access.nbytes == each.reads[0].nbytes)
        by_columns = tuple(access for access in each.writes if access not in by_rows)
        kernels += [each._replace(writes=writes) for writes in (by_rows, by_columns) if writes]
    return kernels


def count_step(outline: Outline, per_token: Flops, n_gpus: int, device: str) -> Step:
    """Count a stage's step on each of n_gpus. device: cpu or cuda, whose kernels are chosen."""
    exchange = Exchange()
    config, count = outline.config, count_micro_batch(outline, device, exchange=exchange)
    counts = ParameterCounts(outline.n_parameters, outline.n_trained, 0)
    n_micro_batches = _n_micro_batches(config, n_gpus)
    of_sequences = exchanges(exchange.nbytes, config.engine.sequence_parallel, n_micro_batches)
    return Step(
        outline,
        n_gpus,
        tuple(split_kernels(count.operations)),
        (*collectives(config.engine, counts, n_gpus, n_micro_batches), *of_sequences),
        count.syncs,
        per_token,
        file_size(spec_of(outline.model, outline.moments)),
    )
