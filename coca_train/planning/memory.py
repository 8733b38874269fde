"""Memory of one GPU in a stage, by component: states as the engine holds them, activations as they are watched on the
meta device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coca_train.config.schema import Config
from coca_train.config.sizes import prefetch_size
from coca_train.engine.optim import MUON
from coca_train.models.layers import AttentionContext
from coca_train.models.lora import named_parameters
from coca_train.planning.engines import ParameterCounts, States, engine_states
from coca_train.planning.hardware import GIB
from coca_train.planning.meta_attention import watched_kernel
from coca_train.planning.meta_step import Contexts, MemoryTracker, build_contexts, configured, new_memory, run_as_on
from coca_train.planning.outline import Outline

CUDA = 1.5 * GIB  # CUDA's context, cuBLAS and NCCL: assumed, not measured here; nothing on CPUs


@dataclass(frozen=True)
class Activations:
    """Memory of one micro batch, without weights and optimizer [bytes]."""

    tables: int  # tokens, angles, biases: they last for the whole step
    kept: int  # what forward saves for backward
    peak: int  # the most at once, tables and kept tensors included
    reading: int  # the same without a backward pass

    @property
    def working(self) -> int:
        """Logits, temporaries and gradients in flight at the peak."""
        return self.peak - self.tables - self.kept


def watch_activations(
    outline: Outline,
    micro_batch_size: int,
    device: str,
    *,
    checkpointing: str,
    keeps_gradients: bool,
    sequence_parallel: int = 1,
) -> Activations:
    """Measure a forward and backward over micro_batch_size sequences on `device` (cpu or cuda), or over one rank's
    slices of them where sequence_parallel ranks share each.

    keeps_gradients: whether the gradients of parameters stay until backward has ended (they count in `peak`), or are
    freed one by one.
    """
    model, seq_len = outline.model, outline.config.train.seq_len
    engine = replace(outline.config.engine, activation_checkpointing=checkpointing, sequence_parallel=sequence_parallel)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [] if keeps_gradients else [each.register_post_accumulate_grad_hook(_release) for each in trained]
    memories = [new_memory(model, micro_batch_size, outline.dtype) for _ in range(2)]  # one for each forward
    before = [*model.parameters(), *(hidden for memory in memories if memory is not None for hidden in memory.hidden)]
    kernel, contexts = watched_kernel(engine.attention), Contexts()
    on_device = run_as_on(device, model, lambda _: kernel, contexts=contexts)
    with configured(engine, model), on_device, MemoryTracker(before) as tracker:
        tokens_BT, targets_BT, _pos_BT = (
            torch.empty(micro_batch_size, seq_len, dtype=torch.int64, device="meta") for _ in range(3)
        )
        contexts |= build_contexts(model, micro_batch_size, seq_len)
        pos_BT = torch.arange(seq_len).expand(micro_batch_size, -1)
        tables = tracker.live  # tokens, and what the scheme makes of parameters
        # Before the step: `peak` only rises, and reading needs less than forward and backward do.
        with torch.no_grad():
            model(tokens_BT, targets_BT, pos_BT, memory=memories[0])
        memories[0] = None
        reading = tracker.peak
        loss = model(tokens_BT, targets_BT, pos_BT, memory=memories[1])
        kept = tracker.live - tables
        loss.backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad(set_to_none=True)
    of_host = _table_bytes(contexts)
    return Activations(tables + of_host, kept, tracker.peak + of_host, reading + of_host)


def _release(parameter: Tensor) -> None:
    parameter.grad = None


def _table_bytes(contexts: Mapping[str, AttentionContext]) -> int:
    """Tables of angles and biases, which all layers of a kind share [bytes]; what is there twice counts once."""
    tables = [tables for context in contexts.values() for tables, _ in context.views]
    tensors = [leaf for leaf in tree_leaves(tables) if isinstance(leaf, Tensor)]
    storages = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors if not tensor.is_meta}
    return sum(storage.nbytes() for storage in storages.values())


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
    largest = max(parameter.numel() for parameter in parameters.values())
    at_once = max(prefetch_size(config.engine, config.model.d_model), largest)
    counts = ParameterCounts(outline.n_parameters, outline.n_trained, vectors, of_muon, with_one_moment, at_once)
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
