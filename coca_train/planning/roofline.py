"""A whole optimizer step of one GPU, counted operation by operation, and how long it takes at known rates.

Forward and backward are those of the model itself (dispatch.py), fused by rules that a compiled schedule shows
(fusion.py); update and communication are the engine's (collectives.py). Times are sums of the longer of moving a
kernel's bytes and computing its FLOPs: no more than what can be counted, and no less. What the host has to do for it
(host.py) is the step where it takes longer.
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
from coca_train.planning import host
from coca_train.planning.collectives import GRADIENTS, Collective, collectives, exchanged, update
from coca_train.planning.count import AGAIN, ATTENTION, COMMUNICATION, ELEMENTWISE, FORWARD, LINEAR, LOSS, OPTIMIZER
from coca_train.planning.dispatch import micro_batch
from coca_train.planning.exchange import Sent
from coca_train.planning.fusion import RULES, Kernel, fused, unfused
from coca_train.planning.gpus import GPUS, peak_of
from coca_train.planning.outline import Outline
from coca_train.planning.rates import Rates
from coca_train.planning.states import ParameterCounts
from coca_train.planning.step import Flops

PARTS = (LOSS, ATTENTION, LINEAR, ELEMENTWISE, AGAIN)


@dataclass(frozen=True)
class Row:
    """A part of a step on one GPU, of all its micro batches. kernels: of communication, collectives."""

    kernels: float = 0
    nbytes: float = 0
    flops: float = 0
    seconds: tuple[float, ...] = ()  # at each of the rates asked for

    def __add__(self, other: "Row") -> "Row":
        seconds = tuple(a + b for a, b in zip(self.seconds, other.seconds, strict=True))
        return Row(self.kernels + other.kernels, self.nbytes + other.nbytes, self.flops + other.flops, seconds)

    def __sub__(self, other: "Row") -> "Row":
        seconds = tuple(a - b for a, b in zip(self.seconds, other.seconds, strict=True))
        return Row(self.kernels - other.kernels, self.nbytes - other.nbytes, self.flops - other.flops, seconds)


@dataclass(frozen=True)
class Step:
    """On each of n_gpus. eager, compiled: kernels of one micro batch. saved: bytes of a checkpoint."""

    outline: Outline
    n_gpus: int
    eager: tuple[Kernel, ...]
    compiled: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    syncs: Counter[str]
    per_token: Flops
    saved: int

    @property
    def is_compiled(self) -> bool:
        """Whether the run compiles its blocks."""
        return self.outline.config.engine.compile == "blocks"

    @property
    def n_micro_batches(self) -> int:
        """Of a step on one GPU, which has a slice of each where GPUs share sequences."""
        return _n_micro_batches(self.outline.config, self.n_gpus)

    @property
    def n_tokens(self) -> int:
        """Of a step, on one GPU."""
        train = self.outline.config.train
        return train.global_batch_size * train.seq_len // self.n_gpus

    def rows(self, rates: Iterable[Rates]) -> dict[str, Row]:
        """By part; what is not there is left out."""
        rates = tuple(rates)
        rows = {part: self._row([kernel for kernel in self.eager if kernel.part == part], rates) for part in PARTS}
        rows[OPTIMIZER] = self._optimizer(rates)
        rows[COMMUNICATION] = self._communication(rates)
        return {name: row for name, row in rows.items() if row.kernels}

    def savings(self, rates: Iterable[Rates]) -> dict[str, Row]:
        """What compiled blocks would save, by rule."""
        rates, saved = tuple(rates), {}
        for rule in RULES:
            kernels = [kernel for kernel in self.compiled if kernel.rule == rule]
            replaced = [kernel._replace(nbytes=nbytes) for kernel in kernels for nbytes in kernel.replaces]
            saved[rule] = self._row(replaced, rates) - self._row(kernels, rates)
        return {name: row for name, row in saved.items() if row.kernels}

    def device_seconds(self, rates: Rates, compiled: bool = False) -> float:
        """What the GPU computes and waits for in a step, blocks compiled or not."""
        total = sum(row.seconds[0] for row in self.rows([rates]).values())
        return total - sum(row.seconds[0] for row in self.savings([rates]).values()) * compiled

    def host_seconds(self, compiled: bool = False) -> float:
        """What a thread of the host does for a step, blocks compiled or not."""
        kernels = self.compiled if compiled else self.eager
        n_again = sum(kernel.part == AGAIN for kernel in kernels)
        trained, tensors = len(self.outline.trained), len(dict(named_parameters(self.outline.model)))
        counted = host.Counted(len(kernels) - n_again, n_again, trained, tensors, self.n_micro_batches)
        return host.seconds(self.outline.config.engine, counted)

    def seconds(self, rates: Rates, compiled: bool = False) -> float:
        """One step: the longer of what the device and what the host has to do."""
        return max(self.device_seconds(rates, compiled), self.host_seconds(compiled))

    def mfu(self, rates: Rates, seconds: float) -> float:
        """FLOPs that the model needs (what is computed again is not), as a share of the peak."""
        peak = peak_of(GPUS[rates.gpu], self.outline.config.engine.dtype).flops
        return self.per_token.total * self.n_tokens / (seconds * peak)

    @cached_property
    def nbytes(self) -> tuple[int, int]:
        """Of a micro batch, before and after the rules."""
        before, after = (sum(kernel.nbytes for kernel in kernels) for kernels in (self.eager, self.compiled))
        return before, after

    def _row(self, kernels: list[Kernel], rates: tuple[Rates, ...]) -> Row:
        n = self.n_micro_batches
        return Row(
            n * len(kernels),
            n * sum(kernel.nbytes for kernel in kernels),
            n * sum(kernel.flops for kernel in kernels),
            tuple(n * sum(each.seconds(kernel) for kernel in kernels) for each in rates),
        )

    def _optimizer(self, rates: tuple[Rates, ...]) -> Row:
        engine = self.outline.config.engine
        moved = update(engine)
        nbytes = moved.nbytes(self.outline.n_trained, self.n_gpus, self.n_micro_batches)
        n_kernels = moved.n_kernels(len(self.outline.trained), self.n_micro_batches)
        # Where ZeRO cuts matrices, each of them is one GPU's to orthogonalise.
        flops = newton_schulz(self.outline) / (self.n_gpus if engine.kind == "deepspeed" and engine.zero_stage else 1)
        computing = Kernel(OPTIMIZER, FORWARD, 0, flops, torch.bfloat16)
        seconds = (each.moving(nbytes, n_kernels) + each.seconds(computing) * bool(flops) for each in rates)
        return Row(n_kernels, nbytes, flops, tuple(seconds))

    def _communication(self, rates: tuple[Rates, ...]) -> Row:
        """What is overlapped costs time only where it takes longer than what it is overlapped with: gradients, with the
        backward pass."""

        def sent(collectives: Iterable[Collective]) -> float:
            return sum(each.sent(self.n_gpus) for each in collectives)

        waited_for = [each for each in self.collectives if not each.overlapped]
        overlapped = [each for each in self.collectives if each.overlapped]
        of_gradients = sent(each for each in overlapped if each.what == GRADIENTS)
        seconds = []
        for each in rates:
            computing = self.n_micro_batches * sum(each.seconds(kernel) for kernel in self.eager)
            forward = self.n_micro_batches * sum(each.seconds(k) for k in self.eager if k.phase == FORWARD)
            link = each.link(self.n_gpus)
            longer = max(0.0, sent(overlapped) / link - computing, of_gradients / link - (computing - forward))
            waiting = sum(one.sent(self.n_gpus) / each.link(one.among or self.n_gpus) for one in waited_for)
            seconds.append(waiting + longer)
        return Row(len(self.collectives), sent(self.collectives), 0, tuple(seconds))


def _n_micro_batches(config: Config, n_gpus: int) -> int:
    train = config.train
    return train.global_batch_size * config.engine.sequence_parallel // (train.micro_batch_size * n_gpus)


def newton_schulz(outline: Outline) -> float:
    """FLOPs of Muon's products in a step: in each of five iterations, of a matrix of m rows and n columns, m the
    fewer, X X', its square, and their sum times X."""
    parameters = dict(named_parameters(outline.model))
    shapes = [sorted(parameters[name].shape) for name, kept in outline.moments.items() if kept == MUON]
    return 5.0 * sum(4 * m * m * n + 2 * m**3 for m, n in shapes)


def step(outline: Outline, per_token: Flops, n_gpus: int, device: str) -> Step:
    """Count a stage's step on each of n_gpus. device: cpu or cuda, whose choices are made."""
    sent = Sent()
    config, count = outline.config, micro_batch(outline, device, sent=sent)
    parameters = dict(named_parameters(outline.model))
    vectors = sum(parameters[name].numel() for name in outline.trained if parameters[name].ndim < 2)
    counts = ParameterCounts(outline.n_parameters, outline.n_trained, vectors)
    n_micro_batches = _n_micro_batches(config, n_gpus)
    of_sequences = exchanged(sent.nbytes, config.engine.sequence_parallel, n_micro_batches)
    return Step(
        outline,
        n_gpus,
        tuple(unfused(count.operations)),
        tuple(fused(count.operations)),
        (*collectives(config.engine, counts, n_gpus, n_micro_batches), *of_sequences),
        count.syncs,
        per_token,
        file_size(spec_of(outline.model, outline.moments)),
    )
