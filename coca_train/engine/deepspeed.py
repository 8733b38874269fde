"""The DeepSpeed engine, ZeRO 0 to 3. The only file that imports deepspeed (0.19.8).

What is worked around here, each with a test in tests/engine: no C++ op is built at start; DeepSpeed's groups
get our timeout; stage 0 has no gradient norm and no guard against NaN; stage 0 in low precision is wrong;
optimizer states of a second parameter group stay unlinked; setting a ZeRO-3 state fails on uneven sizes.

DeepSpeed's private names, which a new version may change (pyproject.toml pins it, tests/engine/test_resume.py tells):

* of a parameter: `_hp_mapping` (ZeRO 1, 2: where its part of the flat float32 master lies); `_z3_optimizer`,
  `ds_tensor`, `ds_numel`, `ds_shape`, `ds_status` and `ds_process_group` (the same in ZeRO 3);
* of an optimizer: `fp32_partitioned_groups_flat` (the masters in ZeRO 3), `single_partition_of_fp32_groups` (in 1 and
  2), `fp32_groups_flat_partition` (in 1 with bf16); `_hp_optimizer_states_linked` and
  `_lazy_init_hp_params_optimizer_state` (the way from a parameter to its moments).

What a step sends, counted in tests/engine/test_communication.py (docs/operations.md has the bytes):

| stage         | gradients                                               | weights                         |
|---------------|---------------------------------------------------------|---------------------------------|
| ZeRO 1, bf16  | one all-reduce of float32 sums, after the last backward | all-gather                      |
| ZeRO 1 others | all-reduce by buckets at the end, or to the owner       | all-gather                      |
| ZeRO 2        | the same for every micro batch, while it runs backward  | all-gather                      |
| ZeRO 3        | reduce-scatter of every micro batch, the same           | all-gathers, as they are needed |

What DeepSpeed calls reduce-scatter in ZeRO 1 and 2 is an all-reduce of each bucket, of which a rank keeps its part:
twice the bytes. With `use_multi_rank_bucket_allreduce` off it reduces each part to its owner.
"""

import contextlib
import gc
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from coca_train.config.schema import EngineConfig, OptimConfig
from coca_train.config.sizes import prefetch_size
from coca_train.engine import base, process
from coca_train.engine.base import InitParameter, MicroBatch, ReadRange, Slice, StepResult
from coca_train.engine.muon import Matrix, MuonAndAdamW
from coca_train.engine.optim import (
    MUON,
    adam_step,
    build_optimizer,
    global_norm,
    moments_of,
    set_lr,
    start_moments,
)
from coca_train.models.lora import named_parameters
from coca_train.models.trainable import select_trainable
from coca_train.runtime.untrusted_io import JsonObject

NEVER = 10**12  # steps
LOSS_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class DeepSpeedEngine:
    """Any number of processes, CPU (gloo) or GPU (NCCL). See `engine.base.Engine` for the methods."""

    def __init__(
        self,
        config: EngineConfig,
        optim: OptimConfig,
        model_fn: Callable[[], nn.Module],
        init: InitParameter | None,
        trainable: Sequence[str],
        micro_batch_size: int,
        accumulation: int,
    ) -> None:
        assert config.zero_stage or config.dtype == "fp32", "ZeRO 0 steps its optimizer before the first batch"
        self.device = process.start(config)
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", message=r"`torch\.distributed\.", category=FutureWarning)
        # No C++ build at the start: training does not need it, and a killed one blocks every later start for ever.
        deepspeed.ops.__compatible_ops__ = {}  # pyright: ignore[reportAttributeAccessIssue]
        deepspeed.init_distributed("nccl" if self.device.type == "cuda" else "gloo", auto_mpi_discovery=False)
        self.dtype = config.dtype
        self.zero_stage = config.zero_stage
        self.skipped_steps = 0
        self._max_grad_norm = optim.max_grad_norm
        self._accumulation = accumulation
        self._sequence_parallel = config.sequence_parallel
        with base.parameters_on_meta():
            module = model_fn()
        settings = settings_of(config, optim.max_grad_norm, micro_batch_size, accumulation, width_of(module))
        self.trainable = select_trainable(module, trainable)
        self._moments = moments_of(module, self.trainable, optim)
        # ZeRO 3 cuts the weights as they are created, in the compute dtype; below that DeepSpeed casts the module.
        dtype = base.DTYPES[config.dtype]
        init_dtype = dtype if config.zero_stage == 3 else torch.float32
        init = init and base.DistributedInit(module, init, self.device, init_dtype)
        with contextlib.redirect_stdout(io.StringIO()):  # memory reports that no setting turns off
            if config.zero_stage == 3:

                def shard(fresh: list[nn.Parameter]) -> None:
                    deepspeed.zero.Init(module=nn.ParameterList(fresh), config_dict_or_path=settings, dtype=dtype)

                base.materialise(module, init, self.device, init_dtype, shard)
            else:
                base.materialise(module, init, self.device, init_dtype)
            optimizer = build_optimizer(named_parameters(module), optim, self._moments, sliced=config.zero_stage > 0)
            self._engine: Any = deepspeed.initialize(
                model=module, optimizer=optimizer, config=settings, dist_init_required=False
            )[0]
        process.set_group_timeouts(config.timeout_s)  # after initialize, which makes groups of its own
        self.model: nn.Module = self._engine.module
        if config.zero_stage == 3:
            base.mark_gathered_modules(self.model)
        self._parameters: JsonObject = dict(named_parameters(self.model))
        self._start_moments(0.0)
        if isinstance(optimizer, MuonAndAdamW) and self.zero_stage:
            self._cut(optimizer)

    # ---- training

    def train_step(self, micro_batches: Sequence[MicroBatch], lr: float) -> StepResult:
        assert len(micro_batches) == self._accumulation
        set_lr(self._engine.basic_optimizer, lr)
        total, tokens = self._backward(micro_batches)
        applied, grad_norm = self._step() if self.zero_stage else self._guarded_step()
        self.skipped_steps += not applied
        summed, n_tokens = torch.stack((total, tokens)).tolist()  # one look: the host waits for it
        loss = summed / max(1.0, n_tokens)
        return StepResult(loss=loss, grad_norm=grad_norm, skipped=not applied, tokens=int(n_tokens))

    def _backward(self, micro_batches: Sequence[MicroBatch], complete: bool = True) -> tuple[Tensor, Tensor]:
        """Compute gradients; return the summed loss and the number of targets, of all ranks. complete: a step follows,
        of which these are the last micro batches."""
        world = torch_dist.get_world_size()
        tokens = torch.tensor(base.count_targets(micro_batches), dtype=torch.float64, device=self.device)
        torch_dist.all_reduce(tokens)
        tokens /= self._sequence_parallel  # its ranks have all counted a sequence; their losses are of their slices
        scale = (world / tokens.clamp(min=1)).float()  # DeepSpeed averages over the ranks
        # In float64, so that the loss of a step does not show in how many micro batches and on how many ranks it was
        # added up.
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.model.train()
        for number, batch in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            nll = base.summed_loss(self._engine, batch, self.device)
            total += nll.detach()
            if last:
                torch_dist.all_reduce(total)
                # A loss that is not finite anywhere makes every rank's gradients NaN, and so every rank skip.
                nll = nll * torch.where(total.isfinite(), 1.0, math.nan).to(nll.dtype)
            # Before backward: with the last micro batch ZeRO reduces gradients while they are computed.
            self._engine.set_gradient_accumulation_boundary(last and complete)
            self._engine.backward(nll * scale, scale_wrt_gas=False)
        return total, tokens

    def compute_gradients(self, micro_batches: Sequence[MicroBatch]) -> float:
        total, tokens = self._backward(micro_batches, complete=False)
        return float(total) / max(1.0, float(tokens))

    def drop_gradients(self, micro_batches: Sequence[MicroBatch]) -> None:
        # By one more micro batch whose loss is NaN: all that DeepSpeed has of the step goes with it, in every stage.
        counters = self.counters()
        self._engine.set_gradient_accumulation_boundary(True)
        nan = base.summed_loss(self._engine, micro_batches[-1], self.device) * math.nan
        self._engine.backward(nan, scale_wrt_gas=False)
        applied, _ = self._step() if self.zero_stage else self._guarded_step()
        assert not applied
        self._set_loss_scaler(counters)  # which takes the NaN for a loss that was scaled too much

    def computing(self) -> list[Tensor]:
        if self.zero_stage < 3:
            return [parameter.detach() for parameter in self.model.parameters()]
        parameters: list[Any] = list(self.model.parameters())
        whole = [each.data for each in parameters if each.ds_status.name == "AVAILABLE"]  # small ones stay so
        return [each.ds_tensor for each in parameters] + whole

    def _step(self) -> tuple[bool, float]:
        self._engine.step()
        return self._engine.was_step_applied(), float(self._engine.get_global_grad_norm())

    def _guarded_step(self) -> tuple[bool, float]:
        """Step ZeRO 0, whose gradients are all-reduced; norm, clipping and the NaN guard are ours."""
        parameters = [self._parameters[name] for name in self.trainable]
        norm = global_norm([p.grad for p in parameters if p.grad is not None])
        if not math.isfinite(float(norm)):
            self._engine.zero_grad()  # else the next step would add to them
            return False, float(norm)
        torch.nn.utils.clip_grads_with_norm_(parameters, self._max_grad_norm, norm)
        self._engine.step()
        return True, float(norm)

    @contextlib.contextmanager
    def eval_module(self) -> Iterator[nn.Module]:
        """Return the module itself. With ZeRO 3 it stays sharded: each part's weights are gathered while it runs, which
        takes all ranks, and no rank needs room for a second copy of them all."""
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()

    # ---- state, by name

    def state_spec(self) -> dict[str, tuple[int, ...]]:
        return base.spec_of(self.model, self._moments)

    def slices(self) -> list[Slice]:
        # Where ZeRO has cut the state, each rank gives the part it has; what all ranks have is cut for the save.
        own, shared, buffers = [], {}, base.persistent_buffers(self.model)
        for key in self.state_spec():
            part, name = key.split("/", 1)
            if (tensor := self._shared(name, part, buffers)) is not None:
                shared[key] = tensor
            elif (fragment := self._fragment(name, part)) is not None:
                own.append(Slice(key, *fragment))
        cut = base.even_share({key: tuple(tensor.shape) for key, tensor in shared.items()})
        return own + [Slice(key, start, shared[key].flatten()[start:stop]) for key, start, stop in cut]

    def _shared(self, name: str, part: str, buffers: Mapping[str, Tensor]) -> Tensor | None:
        """Return a tensor of the state that every rank has in full, the engine's own; None: ZeRO has cut it. buffers:
        of the state, listed once: to list them takes a walk over all modules."""
        if name in buffers:
            return buffers[name].detach()
        parameter = self._parameters[name]
        if self.zero_stage == 3 or (self.zero_stage and parameter.requires_grad):
            return None
        return parameter.detach() if part == "model" else self._engine.basic_optimizer.state[parameter][part]

    @torch.no_grad()
    def _fragment(self, name: str, part: str) -> tuple[int, Tensor] | None:
        """Return this rank's part of a master weight (part "model"), a moment, or a frozen weight of ZeRO 3: where it
        begins, and the values, the engine's own; None: it has none."""
        parameter, key = self._parameters[name], None if part == "model" else part
        if self.zero_stage == 3:
            size = parameter.ds_tensor.numel()
            start = size * torch_dist.get_rank(parameter.ds_process_group)
            own = min(size, parameter.ds_numel - start)  # what is beyond is padding
            local = parameter.ds_tensor
            if parameter.requires_grad:
                local = parameter._z3_optimizer.get_local_fp32_param(parameter, key)
            return (start, local.detach()[:own]) if own > 0 or start == parameter.ds_numel == 0 else None
        if (mapping := parameter._hp_mapping) is None:
            return None
        return mapping.lp_fragment_address.start, mapping.get_hp_fragment(key).detach()

    def counters(self) -> JsonObject:
        counters = {"adam_step": adam_step(self._engine.basic_optimizer), "skipped_steps": self.skipped_steps}
        if self.dtype == "fp16":
            scaler = self._engine.optimizer.loss_scaler
            counters |= {"loss_scaler": {name: getattr(scaler, name) for name in LOSS_SCALER}}
        return counters

    @torch.no_grad()
    def load_state(self, read: ReadRange, counters: JsonObject) -> None:
        # First: it creates Adam's state and links the parameters to it; what is read below goes through these links.
        self._start_moments(counters["adam_step"])
        buffers = base.persistent_buffers(self.model)
        for key, shape in self.state_spec().items():
            part, name = key.split("/", 1)
            shared = self._shared(name, part, buffers)
            if shared is None and part == "model":
                self._set_computing(self._parameters[name], read, key)
            if shared is not None:
                shared.copy_(base.read_together(read, key, shape, self.device))
            elif (fragment := self._fragment(name, part)) is not None:
                start, values = fragment
                values.copy_(read(key, start, start + len(values)))
        self.skipped_steps = counters["skipped_steps"]
        self._set_loss_scaler(counters)

    def _set_loss_scaler(self, counters: JsonObject) -> None:
        if self.dtype == "fp16" and "loss_scaler" in counters:
            for name in LOSS_SCALER:
                setattr(self._engine.optimizer.loss_scaler, name, counters["loss_scaler"][name])

    def _set_computing(self, parameter: Any, read: ReadRange, key: str) -> None:
        """Set the weight that computes, which has a float32 master or which ZeRO 3 has cut."""
        if (
            self.zero_stage < 3 or parameter.ds_status.name == "AVAILABLE"
        ):  # small ones stay whole in addition to the parts
            shape = getattr(parameter, "ds_shape", parameter.shape)
            parameter.data.copy_(base.read_together(read, key, shape, self.device))
        if self.zero_stage == 3:
            local = parameter.ds_tensor
            start = min(local.numel() * torch_dist.get_rank(parameter.ds_process_group), parameter.ds_numel)
            stop = min(start + local.numel(), parameter.ds_numel)
            local.zero_()
            local[: stop - start].copy_(read(key, start, stop))

    def _start_moments(self, step: float) -> None:
        """Make Adam's state now, and link each parameter to its part of it (private: DeepSpeed links it after the
        first step, and only for the first parameter group)."""
        optimizer, inner = self._engine.optimizer, self._engine.basic_optimizer
        inner.state.clear()
        if self.zero_stage == 0:
            kept = ((self._parameters[name], moments) for name, moments in self._moments.items())
        else:
            kept = ((flat, group["moments"]) for flat, group in self._flats())
        start_moments(inner, kept, step)
        if self.zero_stage in (1, 2):
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

    def _flats(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Return the flat masters of this rank, each with the parameter group it belongs to."""
        optimizer, groups = self._engine.optimizer, self._engine.basic_optimizer.param_groups
        if self.zero_stage == 3:
            of = optimizer.sub_group_to_group_id
            return [(flat, groups[of[number]]) for number, flat in enumerate(optimizer.fp32_partitioned_groups_flat)]
        if hasattr(optimizer, "single_partition_of_fp32_groups"):
            return list(zip(optimizer.single_partition_of_fp32_groups, groups, strict=True))
        return list(zip(optimizer.fp32_groups_flat_partition, groups, strict=True))

    def _cut(self, optimizer: MuonAndAdamW) -> None:
        """COLLECTIVE. Pass Muon the places of the parts of its matrices."""
        names = [name for name, kept in self._moments.items() if kept == MUON]
        flats = self._flats()
        group = self._engine.seq_data_parallel_group
        of_muon = next((flat for flat, settings in flats if settings["muon"]), torch.empty(0))
        matrices = {}
        for name in names:
            parameter = self._parameters[name]
            if self.zero_stage == 3:
                number, offset, size = self._engine.optimizer.grad_position[parameter.ds_id]
                start = size * torch_dist.get_rank(group)
                size = max(0, min(size, parameter.ds_numel - start))  # the last rank's part is padded
                matrices[name] = Matrix(parameter.ds_shape, flats[number][0], offset, start, size)
            elif (mapping := parameter._hp_mapping) is None:
                matrices[name] = Matrix(parameter.shape, of_muon, 0, 0, 0)
            else:
                own, flat = mapping.lp_fragment_address, mapping.hp_fragment_address
                matrices[name] = Matrix(parameter.shape, of_muon, flat.start, own.start, own.numel)
        optimizer.cut(matrices, group)

    def release(self) -> None:
        self._engine.destroy()
        self.model = nn.Identity()
        self._parameters, self._engine = {}, None
        gc.collect()  # engine, optimizer and hooks hold one another

    def close(self) -> None:
        process.stop()


def settings_of(
    config: EngineConfig, max_grad_norm: float, micro_batch_size: int, accumulation: int, width: int
) -> JsonObject:
    """Return DeepSpeed's settings. width: d_model, which the sizes that are left to us go by.

    Its schedulers, optimizers and checkpoints are not used.
    """
    settings: JsonObject = {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_grad_norm if config.zero_stage else 0.0,  # ZeRO 0: `_guarded_step` clips
        "steps_per_print": NEVER,
        "zero_allow_untested_optimizer": True,  # ours (engine/muon.py), which `_cut` informs of ZeRO's parts
        "zero_optimization": _zero(config, width),
    }
    if config.communication_dtype != "auto" or config.dtype != "fp16":
        # DeepSpeed's own choice would round float32 sums to bf16 on their way.
        auto = config.communication_dtype == "auto"
        settings["communication_data_type"] = "fp32" if auto else config.communication_dtype
    if config.dtype == "bf16":
        settings |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    if config.dtype == "fp16":
        settings |= {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}
    return settings


def _zero(config: EngineConfig, width: int) -> JsonObject:
    overlap = config.overlap_communication
    # transformers' rule for DeepSpeed's "auto": what is as small as ten vectors is not cut.
    whole = 10 * width if config.persistence_threshold is None else config.persistence_threshold
    return {
        "stage": config.zero_stage,
        "reduce_bucket_size": config.bucket_size,
        "allgather_bucket_size": config.bucket_size,
        # Not in ZeRO 1: with micro batches to add up it would send each of them.
        "overlap_comm": config.zero_stage >= 2 if overlap is None else overlap,
        "use_multi_rank_bucket_allreduce": config.gradient_reduction == "all_reduce",
        "stage3_prefetch_bucket_size": prefetch_size(config, width),
        "stage3_param_persistence_threshold": whole,
        # Else ZeRO 3 puts a function of its own in place of torch.nn.functional.linear, for the whole process: the
        # module that evaluation is lent would compute with it too.
        "memory_efficient_linear": False,
    }


def width_of(module: nn.Module) -> int:
    """Return d_model, from the input of the first linear layer of the blocks."""
    return next(each.in_features for each in module.get_submodule("blocks").modules() if isinstance(each, nn.Linear))
