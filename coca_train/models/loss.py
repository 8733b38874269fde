"""Cross-entropy from hidden states, in chunks: the float32 logits of a long sequence are never held.

Shape legend: N tokens (batch times time), C d_model, V vocab_size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.runtime import IGNORE

LOGITS_PER_CHUNK = 2**23  # float32 logits alive at once: 32 MiB
CACHED_LOGITS = 2**19  # without gradients on the CPU: small enough that buffers are reused, twice as fast as 2**23


def chunk_size(vocab_size: int, n_logits: int = LOGITS_PER_CHUNK) -> int:
    """Tokens scored at a time."""
    return max(64, n_logits // vocab_size)


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum of -log p(target). The gradients that are wanted are formed chunk by chunk in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> Tensor:
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        grad_x_NC = torch.empty_like(x_NC) if wants_x else None
        grad_weight_VC = None
        total = x_NC.new_zeros((), dtype=torch.float32)
        wide = torch.promote_types(x_NC.dtype, torch.float32)
        for start in range(0, x_NC.shape[0], chunk_size(weight_VC.shape[0])):
            rows = slice(start, start + chunk_size(weight_VC.shape[0]))
            x_nC, targets_n = x_NC[rows], targets_N[rows]
            scored_n1 = (targets_n != IGNORE)[:, None]
            index_n1 = targets_n.clamp_min(0)[:, None]
            log_p_nV = F.log_softmax(x_nC @ weight_VC.T, dim=-1, dtype=wide)
            total = total - (log_p_nV.gather(1, index_n1) * scored_n1).sum().to(total.dtype)
            # Now, while the probabilities are at hand: backward only multiplies by the gradient of a scalar, and all
            # logits never have to be held for it.
            if not (wants_x or wants_weight):
                continue
            one_n1 = torch.ones_like(index_n1, dtype=wide)
            grad_nV = log_p_nV.exp_().scatter_add_(1, index_n1, -one_n1).to(x_NC.dtype)  # p - onehot(target)
            if grad_x_NC is not None:
                grad_x_NC[rows] = (grad_nV @ weight_VC) * scored_n1
            if wants_weight:
                part_VC = (grad_nV.T @ (x_nC * scored_n1)).to(wide)
                grad_weight_VC = part_VC if grad_weight_VC is None else grad_weight_VC.add_(part_VC)
        ctx.save_for_backward(grad_x_NC, None if grad_weight_VC is None else grad_weight_VC.to(weight_VC.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        scaled = [None if saved is None else saved * grads[0].to(saved.dtype) for saved in ctx.saved_tensors]
        return scaled[0], scaled[1], None


def summed_cross_entropy(x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> Tensor:
    """Sum over tokens of -log softmax(x W^T)[target] as a float32 scalar; targets of -100 do not count."""
    if x_NC.shape[0] == 0:
        return (x_NC.sum() + weight_VC.sum()).float() * 0.0
    result: Any = _SummedCrossEntropy.apply(x_NC, weight_VC, targets_N)
    return result


@torch.no_grad()
def token_nll(x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> Tensor:
    """-log p(target) of every token in float32 [nats], 0 where the target is -100; no gradient."""
    out = [x_NC.new_zeros(0, dtype=torch.float32)]
    wide = torch.promote_types(x_NC.dtype, torch.float32)
    size = chunk_size(weight_VC.shape[0], CACHED_LOGITS if x_NC.is_cpu else LOGITS_PER_CHUNK)
    for x_nC, targets_n in zip(x_NC.split(size), targets_N.split(size), strict=True):
        log_p_nV = F.log_softmax(x_nC @ weight_VC.T, dim=-1, dtype=wide)
        out.append(F.nll_loss(log_p_nV, targets_n, ignore_index=IGNORE, reduction="none").float())
    return torch.cat(out)
