"""Products of one input with several weights as one product, where that is a gain. The weights stay apart as
parameters: checkpoints name them, and a stage may train one of them alone.

Counted for Q, K and V of C features each, N tokens, forward and backward: the input is read four times less and two
sums of its gradients fall away, 10·N·C numbers; the gradients of Q, K and V are copied side by side, 6·N·C, and the
weights twice, 12·C². A gain from N = 3·C on, and ten kernels less. Gate and up would copy more than they save. On a CPU
the products are long enough as they are.

Of a single token a small product is sooner computed than called. While a text is written its weights stay as they are,
so those of small layers are joined once, and kept with the cache.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KEEP_UP_TO = 2**18  # numbers of joined weights that a cache keeps for one layer


class JoinedWeights(NamedTuple):
    """Joined weights and biases, and how many features are whose."""

    weight_NC: Tensor
    bias_N: Tensor | None
    sizes: list[int]

    def __call__(self, x_BTC: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        joined = F.linear(x_BTC, self.weight_NC, self.bias_N)
        if len(set(widths)) > 1:
            return _in_heads(joined.split_with_sizes(self.sizes, -1), widths)
        heads = [size // widths[0] for size in self.sizes]  # cut once: every view of a token is a call
        return joined.unflatten(-1, (-1, widths[0])).split_with_sizes(heads, -2)


# By the layers that are joined; None: they are not.
JoinedByLayers = dict[Sequence[nn.Module], JoinedWeights | None]


def project(
    x_BTC: Tensor,
    layers: Sequence[nn.Module],
    widths: Sequence[int],
    device: str = "",
    kept: JoinedByLayers | None = None,
) -> Sequence[Tensor]:
    """What each of these linear layers makes of x, in heads of its width: (B, T, heads, width) each.

    device: cpu or cuda, as it is done there; "": where x is. kept: of a cache, whose weights do not change; None: there
    is none.
    """
    if kept is not None and x_BTC.shape[1] == 1 and not torch.is_grad_enabled():
        if layers not in kept:
            kept[layers] = _small_joint(layers)
        if (joint := kept[layers]) is not None:
            return joint(x_BTC, widths)
    gains = (device or x_BTC.device.type) == "cuda" and x_BTC.numel() >= 3 * x_BTC.shape[-1] ** 2
    if not gains or not can_join(layers):
        return _in_heads([layer(x_BTC) for layer in layers], widths)
    weights, bias = _parts(layers)
    joined: Any = _Joined.apply(x_BTC, bias, *weights)
    return _in_heads(joined.split([len(weight) for weight in weights], -1), widths)


def _in_heads(features: Sequence[Tensor], widths: Sequence[int]) -> list[Tensor]:
    return [each.unflatten(-1, (-1, width)) for each, width in zip(features, widths, strict=True)]


def _parts(layers: Sequence[nn.Module]) -> tuple[list[Tensor], Tensor | None]:
    """The weights, and the biases one behind the other."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    biases: list[Tensor] = [layer.bias for layer in linear if layer.bias is not None]
    return [layer.weight for layer in linear], torch.cat(biases) if biases else None


def _small_joint(layers: Sequence[nn.Module]) -> JoinedWeights | None:
    """None where they cannot be joined, or would be a copy worth speaking of."""
    if not can_join(layers):
        return None
    weights, bias = _parts(layers)
    if sum(weight.numel() for weight in weights) > KEEP_UP_TO:
        return None
    return JoinedWeights(torch.cat(weights), bias, [len(weight) for weight in weights])


def can_join(layers: Sequence[nn.Module]) -> bool:
    """Plain linear layers (an adapter is none), and all trained or all frozen: a frozen weight must not be given the
    work of a gradient."""
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    tensors = [tensor for layer in layers for tensor in layer.parameters()]
    return len({tensor.requires_grad for tensor in tensors}) == 1


class _Joined(torch.autograd.Function):
    """x Wᵀ + b for weights one above the other. They are joined anew in the backward pass: kept, they would be a second
    copy of the model's."""

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, bias_N: Tensor | None, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTC, *weights)
        return F.linear(x_BTC, torch.cat(weights), bias_N)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_BTC, *weights = ctx.saved_tensors
        wants_x, wants_bias, wants_weights = ctx.needs_input_grad[:3]
        grad_MN = grads[0].flatten(0, -2)
        grad_x = (grad_MN @ torch.cat(weights)).view_as(x_BTC) if wants_x else None
        grad_bias = grad_MN.sum(0) if wants_bias else None
        parts: Sequence[Tensor | None] = [None] * len(weights)
        if wants_weights:
            parts = (grad_MN.T @ x_BTC.flatten(0, -2)).split([len(weight) for weight in weights])
        return grad_x, grad_bias, *parts
