"""FIRE, functional interpolation for relative positions (Li et al., arXiv 2310.04418).

    b(m, n) = f_θ(ψ(m - n) / (ψ(max(L, m)) + ε)),   ψ(x) = log(|c·x| + 1),   L = |a·threshold|

f_θ is an MLP, 1 -> mlp_width -> heads with a ReLU between. Each layer learns c, a and f_θ (the paper's FIRE; its FIRE-S
shares them). Start as in the paper's code: c = 0.1, a = 1, the weights of f_θ uniform as torch's linear layers have
them; ε = 1e-6. f_θ has no bias at its end: a constant per head, which the softmax does not see.

Not relative: up to position L the bias is a function of the distance; beyond, distances are shares of the way back to
the first token, which is how any length is mapped to [0, 1]. Where a text begins therefore matters, and a table over
distances cannot hold it.

Path: its hook, in `blocked` on the CPU and in a loop over compiled tiles on CUDA. FlexAttention could ask f_θ for one
pair, but its backward pass would add every pair's gradient to the same few parameters, one after the other. Memory O(T)
beyond 1024 keys: a tile's hidden layer is mlp_width numbers per pair. Cost: mlp_width·(1 + 1/H) more multiply-adds for
each pair and head, and two logarithms for each pair.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT
from coca_train.positions.base import AttentionShape, Hook, Initial, LayerPosition, Pairs, Position, ScoreMod

EPS = 1e-6


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A learned function of interpolated distances."""

    scheme: Literal["fire"]
    mlp_width: int = Field(ge=1, description="hidden width of the function's MLP (paper: 32)")
    threshold: float = Field(
        gt=0, description="L at the start [tokens]: before it, distances are not interpolated (paper: 512)"
    )


def interpolate(pairs: Pairs, carry: Tensor) -> tuple[Tensor, Tensor]:
    """Add b(m, n)."""
    return pairs.scores_BHts + bias(pairs, *pairs.parameters), carry


def bias(pairs: Pairs, c_1: Tensor, l_1: Tensor, w1_W: Tensor, b1_W: Tensor, w2_HW: Tensor) -> Tensor:
    """Return b(m, n) of every pair and head, (B, H, t, s)."""
    farthest_Bt1 = torch.maximum(pairs.pos_Bt.to(c_1.dtype), l_1)[..., None]
    x_Bts = _psi(pairs.distance_Bts.to(c_1.dtype), c_1) / (_psi(farthest_Bt1, c_1) + EPS)
    hidden_BtsW = F.relu(x_Bts[..., None] * w1_W + b1_W)
    return F.linear(hidden_BtsW, w2_HW).permute(0, 3, 1, 2)


def _psi(x: Tensor, c_1: Tensor) -> Tensor:
    return (c_1 * x).abs().log1p()


FIRE = Hook(interpolate, per_head=(4,))  # w2


class Function(nn.Module):
    """c, a and f_θ of one layer. Calling it returns the arguments of `bias` after the pairs: copies, float32 or wider,
    which the kernel reads after ZeRO 3 has freed the parameters."""

    def __init__(self, n_heads: int, mlp_width: int, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.c, self.a = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.w1, self.b1 = nn.Parameter(torch.empty(mlp_width)), nn.Parameter(torch.empty(mlp_width))
        self.w2 = nn.Parameter(torch.empty(n_heads, mlp_width))

    def forward(self) -> tuple[Tensor, ...]:
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        c_1, a_1, *mlp = (p.to(dtype, copy=True) for p in (self.c, self.a, self.w1, self.b1, self.w2))
        return c_1, (a_1 * self.threshold).abs(), *mlp


class Layer(LayerPosition):
    """The function of one layer."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.function = Function(shape.n_heads, settings.mlp_width, settings.threshold)

    def score_mod(self, q_BTHD: Tensor, tables: object, tokens: tuple[Tensor, ...]) -> ScoreMod:
        """Return the hook with the layer's parameters, which serve all pairs."""
        return ScoreMod(FIRE, self.function())


class Scheme(Position):
    """A bias that knows how far back a token stands, as a share of all there is."""

    INITIAL: ClassVar[Mapping[str, Initial]] = {
        "c": lambda c_1, generator: c_1.fill_(0.1),
        "a": lambda a_1, generator: a_1.fill_(1.0),
        "w1": lambda w1_W, generator: w1_W.uniform_(-1, 1, generator=generator),
        "b1": lambda b1_W, generator: b1_W.uniform_(-1, 1, generator=generator),
        "w2": lambda w2_HW, generator: w2_HW.uniform_(
            -(w2_HW.shape[1] ** -0.5), w2_HW.shape[1] ** -0.5, generator=generator
        ),
    }

    relative = False
    layer_class = Layer
