"""Cross-entropy from hidden states, in chunks: the float32 logits of a long sequence are never held.

Every chunk reads the output matrix W twice and adds to dW once, so on a GPU, whose caches hold neither, chunks are as
long as memory allows; on a CPU they are as short as keeps a chunk's logits in the cache.

Shape legend: N tokens (batch times time), n tokens of a chunk, C d_model, V vocab_size.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.runtime import IGNORE, autograd
from coca_train.runtime.device import device_type

# Logits alive at once, by device: 32 MiB in float32; half a GiB in bfloat16.
LOGITS_PER_CHUNK = {"cpu": 2**23, "cuda": 2**28}
LEAST_TOKENS = {"cpu": 64, "cuda": 2048}
CACHED_LOGITS = 2**19  # without gradients on the CPU: small enough that buffers are reused, twice as fast as 2**23

# (logits_nV, targets_n, device) -> nll_n, float32 or wider and 0 where the target is -100, and their gradient with
# respect to the logits, in the logits' dtype. It may write over the logits.
Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def chunk_size(n_tokens: int, vocab_size: int, device: str) -> int:
    """Return the tokens scored at a time, so many that all chunks are about as long. device: cpu or cuda."""
    kind = "cpu" if device == "cpu" else "cuda"
    most = max(LEAST_TOKENS[kind], LOGITS_PER_CHUNK[kind] // vocab_size)
    return most if kind == "cpu" else -(-n_tokens // -(-n_tokens // most))


def score_in_passes(logits_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the definition, one pass over the logits at a time."""
    scored_n1 = (targets_n != IGNORE)[:, None]
    index_n1 = targets_n.clamp_min(0)[:, None]
    wide = torch.promote_types(logits_nV.dtype, torch.float32)
    log_p_nV = F.log_softmax(logits_nV, dim=-1, dtype=wide)
    nll_n1 = -log_p_nV.gather(1, index_n1).masked_fill(~scored_n1, 0.0)  # 0 * inf would be NaN
    one_n1 = torch.ones_like(index_n1, dtype=wide)
    grad_nV = log_p_nV.exp_().scatter_add_(1, index_n1, -one_n1)  # p - onehot(target)
    # Asking costs nothing on the CPU, where mostly all are scored; elsewhere the host would wait for the answer.
    if not (scored_n1.is_cpu and bool(scored_n1.all())):
        grad_nV.mul_(scored_n1)
    return nll_n1[:, 0], grad_nV.to(logits_nV.dtype)


def logits(x_NC: Tensor, weight_VC: Tensor, bias_V: Tensor | None = None, cap: float | None = None) -> Tensor:
    """Return x W^T + b, capped where there is a cap: cap tanh(logit / cap) (Gemma 2, arXiv 2408.00118)."""
    logits_NV = x_NC @ weight_VC.T
    if bias_V is not None:
        logits_NV = logits_NV + bias_V
    return logits_NV if cap is None else cap * torch.tanh(logits_NV / cap)


def score_capped(score: Score, cap: float) -> Score:
    """Return how capped logits are scored, by the score of logits that are not."""

    def scored(logits_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
        share_nV = torch.tanh(logits_nV / cap)
        nll_n, grad_nV = score(cap * share_nV, targets_n)
        return nll_n, grad_nV * (1 - share_nV.square())

    return scored


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum of -log p(target). The gradients that are wanted are formed chunk by chunk in the forward pass."""

    @staticmethod
    def forward(
        ctx: autograd.Context, x_NC: Tensor, weight_VC: Tensor, bias_V: Tensor | None, targets_N: Tensor, score: Score
    ) -> Tensor:
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_x_NC = torch.empty_like(x_NC) if wants_x else None
        wide = torch.promote_types(x_NC.dtype, torch.float32)
        grad_weight_VC = torch.empty_like(weight_VC, dtype=wide) if wants_weight else None
        grad_bias_V = weight_VC.new_zeros(len(weight_VC), dtype=wide) if wants_bias else None
        total = x_NC.new_zeros((), dtype=torch.float32)
        size = chunk_size(x_NC.shape[0], weight_VC.shape[0], device_type(x_NC))
        for start in range(0, x_NC.shape[0], size):
            rows = slice(start, start + size)
            x_nC = x_NC[rows]
            # Now, while the probabilities exist: backward only multiplies by the gradient of a scalar, and all
            # logits never have to be held for it.
            nll_n, grad_nV = score(logits(x_nC, weight_VC, bias_V), targets_N[rows])
            total += nll_n.sum().to(total.dtype)
            if grad_x_NC is not None:
                torch.mm(grad_nV, weight_VC, out=grad_x_NC[rows])
            if grad_weight_VC is not None:
                _add_product(grad_weight_VC, grad_nV.T, x_nC, first=start == 0)
            if grad_bias_V is not None:
                grad_bias_V += grad_nV.sum(0, dtype=wide)
        of_weights = (None if grad is None else grad.to(weight_VC.dtype) for grad in (grad_weight_VC, grad_bias_V))
        ctx.save_for_backward(grad_x_NC, *of_weights)
        return total

    @staticmethod
    def backward(ctx: autograd.Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [None if saved is None else saved * grads[0].to(saved.dtype) for saved in ctx.saved_tensors]
        return *scaled, None, None


def _add_product(total_VC: Tensor, grad_Vn: Tensor, x_nC: Tensor, first: bool) -> None:
    """Add grad @ x to total in place; the first time, overwrite it."""
    beta = 0.0 if first else 1.0
    if total_VC.dtype == grad_Vn.dtype:
        total_VC.addmm_(grad_Vn, x_nC, beta=beta)
    elif device_type(total_VC) == "cpu":  # has no product of bfloat16 that ends in float32
        part_VC = grad_Vn @ x_nC
        total_VC.copy_(part_VC) if first else total_VC.add_(part_VC)
    else:
        add_wider_product(total_VC, grad_Vn, x_nC, beta)


# An operation of its own: on the meta device, where steps are counted, torch 2.11 has no addmm that ends in another
# dtype.
@torch.library.custom_op("coca_train::add_wider_product", mutates_args=("total_VC",))
def add_wider_product(total_VC: Tensor, grad_Vn: Tensor, x_nC: Tensor, beta: float) -> None:
    """Compute total = beta * total + grad @ x, of bfloat16 factors into a float32 sum."""
    torch.addmm(total_VC, grad_Vn, x_nC, out_dtype=total_VC.dtype, beta=beta, out=total_VC)


@add_wider_product.register_fake
def _(total_VC: Tensor, grad_Vn: Tensor, x_nC: Tensor, beta: float) -> None:
    pass


def summed_cross_entropy(
    x_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    score: Score = score_in_passes,
    bias_V: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """Return the sum over tokens of -log softmax(logits)[target] as a float32 scalar, of `logits`; targets of -100 do
    not count. score: of logits that are not capped."""
    weights = [weight_VC] if bias_V is None else [weight_VC, bias_V]
    if x_NC.shape[0] == 0:
        return sum((weight.sum() for weight in weights), x_NC.sum()).float() * 0.0
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in (x_NC, *weights)):
        return token_nll(x_NC, weight_VC, targets_N, bias_V, cap).sum()
    score = score if cap is None else score_capped(score, cap)
    return autograd.apply(_SummedCrossEntropy, x_NC, weight_VC, bias_V, targets_N, score)


@torch.no_grad()
def token_nll(
    x_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, bias_V: Tensor | None = None, cap: float | None = None
) -> Tensor:
    """Return -log p(target) of every token in float32 [nats], 0 where the target is -100, of `logits`; no gradient."""
    out = [x_NC.new_zeros(0, dtype=torch.float32)]
    wide = torch.promote_types(x_NC.dtype, torch.float32)
    device, vocab_size = device_type(x_NC), weight_VC.shape[0]
    size = chunk_size(x_NC.shape[0], vocab_size, device)
    if device == "cpu":
        size = max(LEAST_TOKENS["cpu"], CACHED_LOGITS // vocab_size)
    for x_nC, targets_n in zip(x_NC.split(size), targets_N.split(size), strict=True):
        log_p_nV = F.log_softmax(logits(x_nC, weight_VC, bias_V, cap), dim=-1, dtype=wide)
        out.append(F.nll_loss(log_p_nV, targets_n, ignore_index=IGNORE, reduction="none").float())
    return torch.cat(out)
