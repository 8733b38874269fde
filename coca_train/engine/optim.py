"""The optimizer of every engine, its state from the first moment on, its learning rate as a function of the step."""

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from coca_train.config.schema import OptimConfig
from coca_train.config.sizes import cooldown_steps
from coca_train.engine.muon import MuonAndAdamW, block_matrices

ADAM, MUON = ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)
Moments = dict[str, tuple[str, ...]]
NORM_PIECE = 2**16  # elements cast to float64 at a time on a CPU: so many stay in its cache


def lr_at(step: int, optim: OptimConfig, max_steps: int) -> float:
    """Return the learning rate of optimizer step `step` (0 is the first).

    Linear from warmup_init_lr over warmup_steps, then linear or cosine from lr to min_lr, which the last
    step has; `constant` stays at lr; `wsd` does until its cooldown begins (MiniCPM, arXiv 2404.06395, section 4.2),
    and then falls from lr to min_lr, linearly or as 1 - sqrt (arXiv 2405.18392, Eq. 1 and section 3).
    """
    if step < optim.warmup_steps:
        return optim.warmup_init_lr + (optim.lr - optim.warmup_init_lr) * step / optim.warmup_steps
    falls_from = optim.warmup_steps
    if optim.schedule == "wsd":
        falls_from = max(falls_from, max_steps - 1 - cooldown_steps(optim.cooldown, max_steps))
    if optim.schedule == "constant" or step < falls_from:
        return optim.lr
    progress = min(1.0, (step - falls_from) / max(1, max_steps - 1 - falls_from))
    return optim.min_lr + (optim.lr - optim.min_lr) * _remaining(progress, optim)


def _remaining(progress: float, optim: OptimConfig) -> float:
    """Return the part of the way from lr to min_lr that remains when `progress` of the decay is done."""
    if optim.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if optim.schedule == "wsd" and optim.cooldown_shape == "sqrt":
        return 1.0 - math.sqrt(progress)
    return 1.0 - progress


def parameter_groups(parameters: Iterable[tuple[str, Tensor]], weight_decay: float) -> list[dict[str, object]]:
    """Split parameters into two groups: matrices decay; norms and biases do not. Frozen parameters are in neither."""
    trained = [(name, p) for name, p in parameters if p.requires_grad]
    matrices = [p for name, p in trained if len(getattr(p, "ds_shape", p.shape)) >= 2]
    vectors = [p for name, p in trained if len(getattr(p, "ds_shape", p.shape)) < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step; Muon's follows the same schedule at its own height."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


def moments_of(model: nn.Module, trainable: Iterable[str], optim: OptimConfig) -> Moments:
    """Return what the optimizer keeps of each trained parameter, by name."""
    matrices = set(block_matrices(model)) if optim.name == "muon" else set()
    return {name: MUON if name in matrices else ADAM for name in trainable}


def build_optimizer(
    parameters: Iterable[tuple[str, Tensor]], optim: OptimConfig, moments: Moments, sliced: bool = False
) -> torch.optim.Optimizer:
    """Build AdamW (arXiv 1711.05101): matrices decay, embeddings among them as in GPT-NeoX; norms and biases do not. Or
    Muon with it (engine/muon.py). sliced: an engine will put parts of matrices in their place."""
    named = dict(parameters)
    matrices = [named.pop(name) for name, kept in moments.items() if kept == MUON]
    groups = parameter_groups(named.items(), optim.weight_decay)
    if optim.name == "muon":
        optimizer = MuonAndAdamW(groups, matrices, optim, sliced)
    else:
        optimizer = torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)
    for group in optimizer.param_groups:
        group["moments"] = MUON if group.get("muon") else ADAM  # of its parameters, for engines that flatten them
    return optimizer


def start_moments(
    optimizer: torch.optim.Optimizer, tensors: Iterable[tuple[Tensor, Collection[str]]], step: float = 0.0
) -> None:
    """Make zero state for `tensors`, each with what is kept of it, as a first step would make it (memory is taken
    now)."""
    # Not left to the first step: a run that does not fit should fail before it has trained, and a resumed state is read
    # into tensors that must be there.
    for tensor, kept in tensors:
        state: dict[str, Tensor] = {key: torch.zeros_like(tensor, requires_grad=False) for key in kept}
        if kept == ADAM:
            state["step"] = torch.tensor(step, dtype=torch.float32, device=tensor.device)
        optimizer.state[tensor] = state


@torch.no_grad()
def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm over all gradients together, a scalar: float64 on a CPU, in the gradients' dtype on a GPU.

    On a CPU torch adds up the squares of a tensor one after the other in float32: of 10^7 elements the norm is 4e-4
    too low, of 10^8 a hundredth. In float64, as DeepSpeed has it, it is exact, at 1.6 ms a million elements instead of
    0.4. A GPU sums in a tree over thousands of threads, for which float32 is enough, and takes many tensors in one
    kernel; in float64 it would be 64 times slower on all but data-centre cards.
    """
    if not gradients or not gradients[0].is_cpu:
        return torch.nn.utils.get_total_norm(gradients)
    pieces = [piece for gradient in gradients for piece in gradient.flatten().split(NORM_PIECE)]
    return torch.stack([torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in pieces]).norm()


def adam_step(optimizer: torch.optim.Optimizer) -> float:
    """Return the steps that AdamW has done; 0 where it trains nothing."""
    return next((float(state["step"]) for state in optimizer.state.values() if "step" in state), 0.0)
