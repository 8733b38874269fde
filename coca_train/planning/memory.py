"""Memory of one GPU in a stage, by component."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from coca_train.config.schema import Config
from coca_train.models.lora import named_parameters
from coca_train.planning.outline import Outline
from coca_train.planning.states import Counts, States, states
from coca_train.planning.step import Activations, activations

GIB = 2**30
CUDA = 1.5 * GIB  # CUDA's context, cuBLAS and NCCL: assumed, not measured here; nothing on CPUs


@dataclass(frozen=True)
class Memory:
    """What one GPU needs [bytes]."""

    states: States
    activations: Activations
    recurrent: int  # a memory of the text before, where the scheme has one
    of_device: float  # what the device's own libraries take

    @property
    def gradients(self) -> int:
        """Where autograd leaves them, and where they are added up."""
        return self.states.own_gradients + self.states.summed_gradients

    @property
    def rows(self) -> dict[str, float]:
        """Component -> bytes; together they are `training`: the last one takes off what is not there with the rest."""
        s, a = self.states, self.activations
        rows = {
            "weights": s.weights,
            "master weights": s.masters,
            "Adam's moments": s.moments,
            "gradients": self.gradients,
            "ZeRO buckets": s.buckets,
            "ZeRO gathered weights": s.gathered,
            "tables, tokens": a.tables + self.recurrent,
            "activations kept": a.kept,
            "logits and working": max(0, a.working - s.own_gradients),
            "for a moment after backward": s.afterwards,
            "CUDA, NCCL (assumed)": self.of_device,
        }
        return rows | {"not at the same time": self.training - sum(rows.values())}

    @cached_property
    def phases(self) -> dict[str, float]:
        """The most in each phase of a run [bytes]."""
        s, lasting = self.states, self.states.lasting + self.recurrent + self.of_device
        training = lasting + s.summed_gradients + s.buckets + s.gathered
        return {
            "start": self.of_device + s.starting,
            "forward and backward": training + self.activations.peak,
            "optimizer step": training + s.own_gradients + s.afterwards,
            "validation": lasting + s.summed_gradients + s.buckets + s.validating,
        }

    @property
    def training(self) -> float:
        """The most there is at once in a step."""
        return max(self.phases["forward and backward"], self.phases["optimizer step"])

    @property
    def total(self) -> float:
        """The most there is at once in a run."""
        return max(self.phases.values())


def memory(outline: Outline, n_gpus: int, device: str, watch: Callable[..., Activations] = activations) -> Memory:
    """Memory of a stage on each of n_gpus. device: cpu or cuda. watch: `activations`, or one that remembers."""
    config = outline.config
    parameters = dict(named_parameters(outline.model))
    vectors = sum(parameters[name].numel() for name in outline.trained if parameters[name].ndim < 2)
    counts = Counts(outline.n_parameters, outline.n_trained, vectors)
    rows = config.train.global_batch_size // n_gpus  # sequences of this GPU
    accumulates = rows > config.train.micro_batch_size
    held = states(config.engine, counts, n_gpus, accumulates)
    seen = watch(
        outline,
        config.train.micro_batch_size,
        device,
        checkpointing=config.engine.activation_checkpointing,
        keeps_gradients=bool(held.own_gradients) and not accumulates,
    )
    if held.own_gradients and accumulates:  # from the second micro batch on they are there all the time
        seen = replace(seen, peak=seen.peak + held.own_gradients)
    return Memory(held, seen, _recurrent(config, outline, rows), CUDA if device == "cuda" else 0)


def _recurrent(config: Config, outline: Outline, rows: int) -> int:
    n_numbers = rows * config.model.n_layers * outline.model.position.memory_len * config.model.d_model
    return n_numbers * torch.empty((), dtype=outline.dtype).element_size()
