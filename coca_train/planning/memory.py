"""Memory of one GPU in a stage, by component."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

from coca_train.config.schema import Config
from coca_train.engine.optim import MUON
from coca_train.models.lora import named_parameters
from coca_train.planning.activations import Activations, watch_activations
from coca_train.planning.engines import ParameterCounts, States, engine_states
from coca_train.planning.hardware import GIB
from coca_train.planning.outline import Outline

CUDA = 1.5 * GIB  # CUDA's context, cuBLAS and NCCL: assumed, not measured here; nothing on CPUs


@dataclass(frozen=True)
class GpuMemory:
    """Memory that one GPU needs [bytes]."""

    states: States
    activations: Activations
    recurrent: int  # the segment memory of a scheme
    report_batches: float  # tokens that the report reads at once, in micro batches; 0: no report
    of_device: float  # of the device's own libraries

    @property
    def rows(self) -> dict[str, float]:
        """Component -> bytes at the peak of a step; their sum is `training`."""
        s, a = self.states, self.activations
        in_backward = self.training == self.phases["forward and backward"]
        own = min(s.own_gradients, a.working) if in_backward else s.own_gradients  # some exist at the peak
        return {
            "weights": s.weights,
            "master weights": s.masters,
            "optimizer moments": s.moments,
            "gradients": own + s.summed_gradients,
            "ZeRO buckets": s.buckets,
            "ZeRO gathered weights": s.gathered,
            "tables, tokens": self.recurrent + in_backward * a.tables,
            "activations kept": in_backward * a.kept,
            "logits and working": in_backward * (a.working - own),
            "copies after backward": 0 if in_backward else s.afterwards,
            "CUDA, NCCL (assumed)": self.of_device,
        }

    @cached_property
    def phases(self) -> dict[str, float]:
        """The peak of each phase of a run [bytes]."""
        s, lasting = self.states, self.states.lasting + self.recurrent + self.of_device
        training = lasting + s.summed_gradients + s.buckets + s.gathered
        return {
            "start": max(self.of_device + s.starting, lasting + s.between),
            "forward and backward": training + self.activations.peak,
            "optimizer step": training + s.own_gradients + s.afterwards,
            "validation": self._reading(1),
        }

    @property
    def report(self) -> float:
        """The peak of the report; 0: no report [bytes]."""
        return self._reading(self.report_batches) if self.report_batches else 0

    def _reading(self, batches: float) -> float:
        s = self.states
        held = s.lasting + s.between + s.gathered + s.arriving + self.recurrent + self.of_device
        return held + self.activations.reading * batches

    @property
    def training(self) -> float:
        """The peak of a step [bytes]."""
        return max(self.phases["forward and backward"], self.phases["optimizer step"])

    @property
    def total(self) -> float:
        """The peak of a run, without its report [bytes]."""
        return max(self.phases.values())


def gpu_memory(
    outline: Outline, n_gpus: int, device: str, watch: Callable[..., Activations] | None = None
) -> GpuMemory:
    """Return the memory of a stage on each of n_gpus. device: cpu or cuda. watch: a cache of `watch_activations` of
    this outline."""
    config, watch = outline.config, watch or partial(watch_activations, outline)
    parameters = dict(named_parameters(outline.model))
    vectors = sum(parameters[name].numel() for name in outline.trained if parameters[name].ndim < 2)
    kept = outline.moments
    of_muon = sum(parameters[name].numel() for name, moments in kept.items() if moments == MUON)
    with_one_moment = sum(parameters[name].numel() for name, moments in kept.items() if len(moments) == 1)
    counts = ParameterCounts(outline.n_parameters, outline.n_trained, vectors, of_muon, with_one_moment)
    # Sequences of this GPU, whole or in slices.
    rows = config.train.global_batch_size * config.engine.sequence_parallel // n_gpus
    accumulates = rows > config.train.micro_batch_size
    held = engine_states(config.engine, counts, n_gpus, accumulates)
    # Where micro batches are accumulated in place, gradients exist all the time from the second one on.
    stays = bool(held.own_gradients) and accumulates and not (config.engine.kind == "local" and held.summed_gradients)
    seen = watch(
        config.train.micro_batch_size,
        device,
        checkpointing=config.engine.activation_checkpointing,
        keeps_gradients=bool(held.own_gradients) and not stays,
        sequence_parallel=config.engine.sequence_parallel,
    )
    if stays:
        seen = replace(seen, peak=seen.peak + held.own_gradients)
    of_device = CUDA if device == "cuda" else 0
    recurrent = rows * config.model.n_layers * outline.model.position.memory_len * config.model.d_model
    return GpuMemory(held, seen, recurrent * outline.dtype.itemsize, _report_batches(config), of_device)


def _report_batches(config: Config) -> float:
    """Return the tokens that the report reads at once, in micro batches; 0: there is none."""
    wanted, train = config.eval.extrapolation, config.train
    longest = max(wanted.multiples) * train.seq_len
    tokens = max(longest, wanted.micro_batch_tokens) if wanted.enabled else 0
    return tokens / (train.micro_batch_size * train.seq_len)
