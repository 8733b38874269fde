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
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.runtime import autograd
from coca_train.runtime.device import device_type

KEEP_UP_TO = 2**18  # numbers of joined weights that a cache keeps for one layer


class JoinedWeights(NamedTuple):
    """Weights and biases concatenated, and the number of features of each layer."""

    weight_NC: Tensor
    bias_N: Tensor | None
    sizes: list[int]

    @classmethod
    def small(cls, layers: Sequence[nn.Module]) -> "JoinedWeights | None":
        """Join the weights of layers; None where they cannot be joined, or where the copy would be large."""
        if not can_join(layers):
            return None
        weights, bias = _weights_and_bias(layers)
        if sum(weight.numel() for weight in weights) > KEEP_UP_TO:
            return None
        return cls(torch.cat(weights), bias, [len(weight) for weight in weights])

    def __call__(self, x_BTC: Tensor, widths: Sequence[int]) -> Sequence[Tensor]:
        joined = F.linear(x_BTC, self.weight_NC, self.bias_N)
        if len(set(widths)) > 1:
            parts = joined.split_with_sizes(self.sizes, -1)
            return [part.unflatten(-1, (-1, width)) for part, width in zip(parts, widths, strict=True)]
        heads = [size // widths[0] for size in self.sizes]  # cut once: every view of a token is a call
        return joined.unflatten(-1, (-1, widths[0])).split_with_sizes(heads, -2)


# By the layers that are joined; None: they are not.
JoinedByLayers = dict[Sequence[nn.Module], JoinedWeights | None]


def project(
    x_BTC: Tensor,
    layers: Sequence[nn.Module],
    widths: Sequence[int],
    joined_weights: JoinedByLayers | None = None,
) -> Sequence[Tensor]:
    """Return what each of these linear layers makes of x, in heads of its width: (B, T, heads, width) each.

    joined_weights: of a cache, whose weights do not change; None: there is none.
    """
    if joined_weights is not None and x_BTC.shape[1] == 1 and not torch.is_grad_enabled():
        if layers not in joined_weights:
            joined_weights[layers] = JoinedWeights.small(layers)
        if (joined := joined_weights[layers]) is not None:
            return joined(x_BTC, widths)
    gains = device_type(x_BTC) == "cuda" and x_BTC.numel() >= 3 * x_BTC.shape[-1] ** 2
    if gains and can_join(layers):
        weights, bias = _weights_and_bias(layers)
        product = autograd.apply(_JoinedProduct, x_BTC, bias, *weights)
        parts = product.split([len(weight) for weight in weights], -1)
    else:
        parts = [layer(x_BTC) for layer in layers]
    return [part.unflatten(-1, (-1, width)) for part, width in zip(parts, widths, strict=True)]


def _weights_and_bias(layers: Sequence[nn.Module]) -> tuple[list[Tensor], Tensor | None]:
    """Return the weights, and the biases one after the other."""
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    biases: list[Tensor] = [layer.bias for layer in linear if layer.bias is not None]
    return [layer.weight for layer in linear], torch.cat(biases) if biases else None


def can_join(layers: Sequence[nn.Module]) -> bool:
    """Whether all layers are plain linear ones (not adapters), and all trained or all frozen: a frozen weight must not
    cost the work of a gradient."""
    if not all(type(layer) is nn.Linear for layer in layers):
        return False
    tensors = [tensor for layer in layers for tensor in layer.parameters()]
    return len({tensor.requires_grad for tensor in tensors}) == 1


class _JoinedProduct(torch.autograd.Function):
    """Compute x Wᵀ + b for concatenated weights. They are concatenated again in the backward pass: kept, they would be
    a second copy of the model's."""

    @staticmethod
    def forward(ctx: autograd.Context, x_BTC: Tensor, bias_N: Tensor | None, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTC, *weights)
        return F.linear(x_BTC, torch.cat(weights), bias_N)

    @staticmethod
    def backward(ctx: autograd.Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_BTC, *weights = ctx.saved_tensors
        wants_x, wants_bias, wants_weights = ctx.needs_input_grad[:3]
        grad_MN = grads[0].flatten(0, -2)
        grad_x = (grad_MN @ torch.cat(weights)).view_as(x_BTC) if wants_x else None
        grad_bias = grad_MN.sum(0) if wants_bias else None
        parts: Sequence[Tensor | None] = [None] * len(weights)
        if wants_weights:
            parts = (grad_MN.T @ x_BTC.flatten(0, -2)).split([len(weight) for weight in weights])
        return grad_x, grad_bias, *parts
