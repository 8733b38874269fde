"""The DeepSpeed engine, ZeRO 0 to 3. The only file that imports deepspeed (0.19.8).

What is worked around here, each with a test in tests/engine: no C++ op is built at start; DeepSpeed's groups
get our timeout; stage 0 has no gradient norm and no guard against NaN; stage 0 in low precision is wrong;
optimizer states of a second parameter group stay unlinked; setting a ZeRO-3 state fails on uneven sizes.

DeepSpeed's private names, which a new version may change (pyproject.toml pins it, tests/engine/test_resume.py tells):

* of a parameter: `_hp_mapping` and `_dp_group` (ZeRO 1, 2: where its part of the flat float32 master lies);
  `_z3_optimizer`, `ds_tensor`, `ds_shape` and `ds_process_group` (the same in ZeRO 3);
* of an optimizer: `fp32_partitioned_groups_flat` (the masters in ZeRO 3), `single_partition_of_fp32_groups` (in 1 and
  2), `fp32_groups_flat_partition` (in 1 with bf16); `_hp_optimizer_states_linked` and
  `_lazy_init_hp_params_optimizer_state` (the way from a parameter to its moments).
"""

import contextlib
import gc
import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import deepspeed
import deepspeed.ops
import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from coca_train.config.schema import EngineConfig, OptimConfig
from coca_train.engine import base, process
from coca_train.engine.base import InitParameter, Keep, MicroBatch, ReadTensor, StepResult
from coca_train.engine.optim import adamw, start_moments
from coca_train.models.lora import named_parameters
from coca_train.models.trainable import select_trainable
from coca_train.runtime import dist

LOSS_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
NEVER = 10**12


def deepspeed_config(config: EngineConfig, max_grad_norm: float, micro_batch_size: int, accumulation: int) -> dict:
    """DeepSpeed's own settings. Its schedulers, optimizers and checkpoints are not used."""
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": max_grad_norm if config.zero_stage else 0.0,  # ZeRO 0: `_guarded_step` clips
        "steps_per_print": NEVER,
        "zero_optimization": {
            "stage": config.zero_stage,
            "reduce_bucket_size": config.bucket_size,
            "allgather_bucket_size": config.bucket_size,
            # Else ZeRO 3 puts a function of its own in place of torch.nn.functional.linear, for the whole process.
            "memory_efficient_linear": False,
        },
    }
    if config.dtype == "bf16":
        settings |= {
            "bf16": {"enabled": True},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",  # else the float32 sums are rounded to bf16 on their way
        }
    if config.dtype == "fp16":
        settings |= {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16}}
    return settings


class DeepSpeedEngine:
    """Any number of processes, CPU (gloo) or GPU (NCCL). See `engine.base.Engine` for the methods."""

    def __init__(
        self,
        config: EngineConfig,
        optim: OptimConfig,
        model_fn: Callable[[], nn.Module],
        init: InitParameter,
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
        settings = deepspeed_config(config, optim.max_grad_norm, micro_batch_size, accumulation)
        with base.parameters_on_meta():
            module = model_fn()
        self.trainable = select_trainable(module, trainable)
        # ZeRO 3 cuts the weights as they are made, in the dtype that computes; below that DeepSpeed casts the module.
        dtype = base.DTYPES[config.dtype]
        with contextlib.redirect_stdout(io.StringIO()):  # memory reports that no setting turns off
            if config.zero_stage == 3:

                def shard(fresh: list[nn.Parameter]) -> None:
                    deepspeed.zero.Init(module=nn.ParameterList(fresh), config_dict_or_path=settings, dtype=dtype)

                base.materialise(module, init, self.device, dtype, shard)
            else:
                base.materialise(module, init, self.device, torch.float32)
            optimizer = adamw(module.named_parameters(), optim)
            self._engine: Any = deepspeed.initialize(
                model=module, optimizer=optimizer, config=settings, dist_init_required=False
            )[0]
        process.bound_waits(config.timeout_s)  # after initialize, which makes groups of its own
        self.model: nn.Module = self._engine.module
        setattr(self.model, "in_step", config.zero_stage == 3)  # noqa: B010
        self._parameters: dict[str, Any] = dict(named_parameters(self.model))
        self._start_moments(0.0)

    # ---- training

    def train_step(self, micro_batches: Sequence[MicroBatch], lr: float) -> StepResult:
        assert len(micro_batches) == self._accumulation
        for group in self._engine.basic_optimizer.param_groups:
            group["lr"] = lr
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
            self._engine.set_gradient_accumulation_boundary(last)
            self._engine.backward(nll * scale, scale_wrt_gas=False)
        applied, grad_norm = self._step() if self.zero_stage else self._guarded_step()
        self.skipped_steps += not applied
        loss = float(total) / max(1.0, float(tokens))
        return StepResult(loss=loss, grad_norm=grad_norm, skipped=not applied, tokens=int(tokens))

    def _step(self) -> tuple[bool, float]:
        self._engine.step()
        return self._engine.was_step_applied(), float(self._engine.get_global_grad_norm())

    def _guarded_step(self) -> tuple[bool, float]:
        """ZeRO 0: the gradients are all-reduced; norm, clipping and the NaN guard are ours."""
        parameters = [self._parameters[name] for name in self.trainable]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if not math.isfinite(float(norm)):
            self._engine.zero_grad()  # else the next step would add to them
            return False, float(norm)
        torch.nn.utils.clip_grads_with_norm_(parameters, self._max_grad_norm, norm)
        self._engine.step()
        return True, float(norm)

    @contextlib.contextmanager
    def eval_module(self) -> Iterator[nn.Module]:
        """The module itself. With ZeRO 3 it stays sharded: each part's weights are gathered while it runs, which takes
        all ranks, and no rank needs room for a second copy of them all."""
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()

    # ---- state, by name

    def state_spec(self) -> dict[str, tuple[int, ...]]:
        return base.spec_of(self.model, self.trainable)

    def named_state(self, keep: Keep = lambda index: True) -> Iterator[tuple[str, Tensor | None]]:
        buffers = base.persistent_buffers(self.model)
        for index, key in enumerate(self.state_spec()):
            part, name = key.split("/", 1)
            tensor = buffers[name] if name in buffers else self._full(name, part)
            yield key, tensor.detach().float().cpu() if keep(index) else None

    @torch.no_grad()
    def _full(self, name: str, part: str) -> Tensor:
        """A master weight (part "model") or a moment, in full, on every rank."""
        parameter = self._parameters[name]
        if not parameter.requires_grad or self.zero_stage == 0:
            if part != "model":
                return self._engine.basic_optimizer.state[parameter][part]
            with deepspeed.zero.GatheredParameters([parameter], enabled=self.zero_stage == 3):
                return parameter.detach().clone()
        key = None if part == "model" else part
        if self.zero_stage == 3:
            return parameter._z3_optimizer.get_full_hp_param(parameter, key)
        return _joined(parameter, key)

    def counters(self) -> dict[str, Any]:
        state = next(iter(self._engine.basic_optimizer.state.values()))
        counters = {"adam_step": float(state["step"]), "skipped_steps": self.skipped_steps}
        if self.dtype == "fp16":
            scaler = self._engine.optimizer.loss_scaler
            counters |= {"loss_scaler": {name: getattr(scaler, name) for name in LOSS_SCALER}}
        return counters

    @torch.no_grad()
    def load_state(self, read: ReadTensor, counters: dict[str, Any]) -> None:
        # First: it makes Adam's state anew and links the parameters to it; what is read below goes through these links.
        self._start_moments(counters["adam_step"])
        buffers = base.persistent_buffers(self.model)
        for key in self.state_spec():
            part, name = key.split("/", 1)
            # On every rank, also where this rank keeps no part of it: `read` is a collective.
            value = read(key).to(self.device)
            if name in buffers:
                buffers[name].copy_(value)
            else:
                self._set(name, part, value)
        self.skipped_steps = counters["skipped_steps"]
        if self.dtype == "fp16" and "loss_scaler" in counters:
            for name in LOSS_SCALER:
                setattr(self._engine.optimizer.loss_scaler, name, counters["loss_scaler"][name])

    def _set(self, name: str, part: str, value: Tensor) -> None:
        """The inverse of `_full`: the weight that computes, and the master or moment behind it."""
        parameter = self._parameters[name]
        if part == "model":
            sharded = self.zero_stage == 3
            # On leaving, ZeRO 3 broadcasts what rank 0 has written and cuts it into parts again.
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=sharded):
                if not sharded or dist.is_main():
                    parameter.data.copy_(value)
        if not parameter.requires_grad:
            return  # nothing behind it: a frozen weight has no master
        if self.zero_stage == 0:
            if part != "model":
                self._engine.basic_optimizer.state[parameter][part].copy_(value)
            return
        key = None if part == "model" else part
        if self.zero_stage == 3:
            parameter._z3_optimizer.set_local_hp_param(_slice(parameter, value), parameter, key)
        else:
            parameter.set_full_hp_param(value, key)

    def _start_moments(self, step: float) -> None:
        """Make Adam's state now, and link each parameter to its part of it (private: DeepSpeed links it after the
        first step, and only for the first parameter group)."""
        optimizer = self._engine.optimizer
        if self.zero_stage == 0:
            masters = [self._parameters[name] for name in self.trainable]
        elif self.zero_stage == 3:
            masters = optimizer.fp32_partitioned_groups_flat
        elif hasattr(optimizer, "single_partition_of_fp32_groups"):
            masters = optimizer.single_partition_of_fp32_groups
        else:
            masters = optimizer.fp32_groups_flat_partition
        self._engine.basic_optimizer.state.clear()
        start_moments(self._engine.basic_optimizer, list(masters), step)
        if self.zero_stage in (1, 2):
            optimizer._hp_optimizer_states_linked = False
            optimizer._lazy_init_hp_params_optimizer_state()

    def release(self) -> None:
        self._engine.destroy()
        self.model = nn.Identity()
        self._parameters, self._engine = {}, None
        gc.collect()  # engine, optimizer and hooks hold one another

    def close(self) -> None:
        process.stop()


def _joined(parameter: Any, key: str | None) -> Tensor:
    """ZeRO 1 and 2: the parts of a master weight (key None) or moment from all ranks.

    Like DeepSpeed's get_full_hp_param, but the bits are summed as integers: adding the other ranks'
    zeros as floats would turn -0.0 into 0.0 and a resumed run would not be bit-identical.
    """
    bits = torch.zeros(parameter.numel(), dtype=torch.int32, device=parameter.device)
    mapping = parameter._hp_mapping
    if mapping is not None:
        address = mapping.lp_fragment_address
        part = mapping.get_hp_fragment(key).detach()
        bits.narrow(0, address.start, address.numel).copy_(part.view(torch.int32))
    torch_dist.all_reduce(bits, group=parameter._dp_group)
    return bits.view(torch.float32).view(parameter.shape)


def _slice(parameter: Any, value: Tensor) -> Tensor:
    """ZeRO 3: this rank's part of a full tensor, zero-padded (DeepSpeed's own setter fails on uneven sizes)."""
    group = parameter.ds_process_group
    size = parameter.ds_tensor.numel()
    padded = value.new_zeros(size * torch_dist.get_world_size(group))
    padded[: value.numel()] = value.flatten()
    return padded.narrow(0, size * torch_dist.get_rank(group), size)
