"""What both forms of KERPLE share (Chi et al., arXiv 2205.09921): two learned numbers per head, held within bounds and
not lost at them; the same for all layers, or in each layer its own.

The authors' released code creates one pair per head and passes it to every layer (`rpe_emb` of their gpt2_model.py).

The authors' released code cuts the stored numbers to the bounds before each use, so a number at its bound keeps its
gradient and can leave it again. `clamp` alone would give it no gradient for ever: with their initial values about one
in a hundred starts below its bound. Writing to parameters in a forward pass is no choice either, as optimizers keep
their own float32 copy; so what is cut here is the value in use, and the gradient that would push it further out.
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from coca_train.config.schema import SchemeSettings
from coca_train.positions.base import AttentionShape, LayerPosition, Position, Projections, Terms
from coca_train.positions.token_positions import Positions, distances
from coca_train.runtime import autograd

LOWEST = 0.01  # the authors' bound on both numbers


class KerpleSettings(SchemeSettings, Protocol):
    """Settings of both forms."""

    @property
    def shared(self) -> bool: ...


class _Bounds(autograd.Context, Protocol):
    bounds: tuple[float, float]


class _ClampLearned(torch.autograd.Function):
    """Clamp x and keep the gradient of x at the bound; drop a gradient whose descent leads outwards."""

    @staticmethod
    def forward(ctx: _Bounds, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: _Bounds, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,), (low, high), grad = ctx.saved_tensors, ctx.bounds, grads[0]
        outwards = ((x <= low) & (grad > 0)) | ((x >= high) & (grad < 0))
        return grad.masked_fill(outwards, 0), None, None


def clamp_learned(parameter: Tensor, low: float, high: float = math.inf) -> Tensor:
    """Clamp a parameter to [low, high]; return a new tensor, float32 or wider, never the parameter itself."""
    wide = parameter.to(torch.promote_types(parameter.dtype, torch.float32))
    return autograd.apply(_ClampLearned, wide, low, high)


class Layer(LayerPosition):
    """The r1 and r2 of one layer, where layers do not share them."""

    def __init__(self, settings: KerpleSettings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        if not settings.shared:
            self.r1, self.r2 = nn.Parameter(torch.empty(shape.n_heads)), nn.Parameter(torch.empty(shape.n_heads))

    def terms(
        self, position: Position, q_BTHD: Tensor, k_BSGK: Tensor, tables: Terms | Tensor, project: Projections
    ) -> Terms:
        """Return the bias of each distance: the shared one, or one computed from this layer's parameters and the
        distances r_R."""
        assert isinstance(position, Kerple)
        return tables if isinstance(tables, Terms) else position.by_distance(self.r1, self.r2, tables)


class Kerple(Position):
    """Base of both forms; with `shared` it has the r1 and r2 of all layers."""

    settings: KerpleSettings

    bidirectional = True  # the kernel is of |m - n|
    layer_class = Layer
    highest_r2 = math.inf

    def __init__(self, settings: KerpleSettings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        if settings.shared:
            self.r1, self.r2 = nn.Parameter(torch.empty(shape.n_heads)), nn.Parameter(torch.empty(shape.n_heads))

    def bias(self, r1_H1: Tensor, r2_H1: Tensor, r_R: Tensor) -> Tensor:
        """Return b(h, r) of each head and distance, (H, R)."""
        raise AssertionError("each form has its own")

    def by_distance(self, r1_H: Tensor, r2_H: Tensor, r_R: Tensor) -> Terms:
        """Return the bias of each distance, float32 or wider."""
        r1_H1, r2_H1 = clamp_learned(r1_H, LOWEST)[:, None], clamp_learned(r2_H, LOWEST, self.highest_r2)[:, None]
        return Terms(distance_HR=self.bias(r1_H1, r2_H1, r_R))

    def forward(self, queries: Positions, keys: Positions, length: int) -> Terms | Tensor:
        """Return the bias of each distance where layers share it, else the distances r_R, float32."""
        r_R = distances(queries, keys, self.shape.bidirectional, torch.float32).abs()
        return self.by_distance(self.r1, self.r2, r_R) if self.settings.shared else r_R
