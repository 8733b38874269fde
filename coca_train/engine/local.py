"""Plain torch on one process: the reference the DeepSpeed engine is tested against."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from coca_train.config.schema import EngineConfig, OptimConfig
from coca_train.engine import base, process
from coca_train.engine.base import InitParameter, MicroBatch, ReadRange, Slice, StepResult
from coca_train.engine.optim import adam_step, build_optimizer, global_norm, moments_of, set_lr, start_moments
from coca_train.models.lora import named_parameters
from coca_train.models.trainable import select_trainable
from coca_train.runtime import dist
from coca_train.runtime.untrusted_io import JsonObject


class LocalEngine:
    """fp32: the parameters are the master weights. bf16: what DeepSpeed's BF16 optimizer does, written out.

    bf16 weights compute; each micro batch's bf16 gradients are added up in float32; norm, clipping and the optimizer
    work on float32 masters, which start as the rounded weights and are rounded back after each step.
    (Autocast over float32 weights would round elsewhere and agree less closely with DeepSpeed.)
    """

    def __init__(
        self,
        config: EngineConfig,
        optim: OptimConfig,
        model_fn: Callable[[], nn.Module],
        init: InitParameter | None,
        trainable: Sequence[str],
    ) -> None:
        assert dist.world_size() == 1 and config.dtype != "fp16", "config/check.py refuses both"
        self.device = process.start(config)
        self.dtype = config.dtype
        self.zero_stage = 0
        self.skipped_steps = 0
        self._max_grad_norm = optim.max_grad_norm
        with base.parameters_on_meta():
            self.model = model_fn()
        self.trainable = select_trainable(self.model, trainable)
        base.materialise(self.model, init, self.device, base.DTYPES[config.dtype])
        self._weights = {name: p for name, p in named_parameters(self.model) if p.requires_grad}
        self._masters = self._weights
        if config.dtype != "fp32":
            self._masters = {name: p.detach().float().requires_grad_() for name, p in self._weights.items()}
        self._moments = moments_of(self.model, self.trainable, optim)
        self._optimizer = build_optimizer(self._masters.items(), optim, self._moments)
        self._start_moments(0.0)

    def train_step(self, micro_batches: Sequence[MicroBatch], lr: float) -> StepResult:
        set_lr(self._optimizer, lr)
        total, tokens = self._backward(micro_batches)
        scale = 1.0 / max(1, tokens)
        gradients = [master.grad for master in self._masters.values() if master.grad is not None]
        norm = global_norm(gradients)
        summed, grad_norm = torch.stack((total, norm.to(total.dtype))).tolist()  # one look: the host waits for it
        loss = summed * scale
        # Looked at before anything changes: a step is done or skipped as a whole.
        skipped = not (math.isfinite(loss) and math.isfinite(grad_norm))
        if skipped:
            self.skipped_steps += 1
        else:
            torch.nn.utils.clip_grads_with_norm_(list(self._masters.values()), self._max_grad_norm, norm)
            self._optimizer.step()
            self._round_weights()
        # After a skipped step too, else the next one would add to its NaN.
        self._optimizer.zero_grad(set_to_none=True)
        return StepResult(loss=loss, grad_norm=grad_norm, skipped=skipped, tokens=tokens)

    def _backward(self, micro_batches: Sequence[MicroBatch]) -> tuple[Tensor, int]:
        """Compute gradients; return the summed loss and the number of targets."""
        tokens = base.count_targets(micro_batches)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.model.train()
        for batch in micro_batches:
            nll = base.summed_loss(self.model, batch, self.device)
            total += nll.detach()
            (nll * (1.0 / max(1, tokens))).backward()
            self._accumulate()
        return total, tokens

    def compute_gradients(self, micro_batches: Sequence[MicroBatch]) -> float:
        total, tokens = self._backward(micro_batches)
        return float(total) * (1.0 / max(1, tokens))

    def drop_gradients(self, micro_batches: Sequence[MicroBatch]) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def computing(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]

    def _accumulate(self) -> None:
        """Move a micro batch's low-precision gradients to the float32 masters."""
        if self._masters is self._weights:
            return
        for name, weight in self._weights.items():
            if weight.grad is not None:
                gradient, master = weight.grad.float(), self._masters[name]
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    @torch.no_grad()
    def _round_weights(self) -> None:
        if self._masters is not self._weights:
            for name, weight in self._weights.items():
                weight.copy_(self._masters[name])

    @contextmanager
    def eval_module(self) -> Iterator[nn.Module]:
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()

    def state_spec(self) -> dict[str, tuple[int, ...]]:
        return base.spec_of(self.model, self._moments)

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor of the state, the engine's own."""
        held = dict(named_parameters(self.model)) | base.persistent_buffers(self.model) | self._masters
        for key in self.state_spec():
            part, name = key.split("/", 1)
            tensor = held[name] if part == "model" else self._optimizer.state[self._masters[name]][part]
            yield key, tensor.detach()

    def slices(self) -> list[Slice]:
        return [Slice(key, 0, tensor.flatten()) for key, tensor in self._state()]

    def counters(self) -> JsonObject:
        return {"adam_step": adam_step(self._optimizer), "skipped_steps": self.skipped_steps}

    def _start_moments(self, step: float) -> None:
        start_moments(self._optimizer, ((self._masters[name], kept) for name, kept in self._moments.items()), step)

    @torch.no_grad()
    def load_state(self, read: ReadRange, counters: JsonObject) -> None:
        self._start_moments(counters["adam_step"])
        for key, tensor in self._state():
            tensor.copy_(read(key, 0, tensor.numel()).view(tensor.shape))
        self._round_weights()
        self.skipped_steps = counters["skipped_steps"]

    def release(self) -> None:
        self._optimizer.state.clear()
        self.model = nn.Identity()
        self._weights, self._masters = {}, {}

    def close(self) -> None:
        process.stop()
