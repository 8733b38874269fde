"""DAPE, data-adaptive positions (Zheng et al., arXiv 2405.14722): a bias that reads the scores of all heads.

    score(m, n) = a + b + f([a ; b]),   a_h = q_m · k_n / √D,   b a static bias of the distance, both for all heads h

f is an MLP over the heads of one pair, 2H -> mlp_width -> H with a LeakyReLU between (0.01), learned in every layer
like the parameters of b. b is that of kerple_log (the paper's main choice), alibi or fire (32 hidden units, threshold
512). a + b outside of f is the residual of the released code. f's weights start as torch's linear layers have them, its
first bias at 0; it has none at its end: a constant per head, which the softmax does not see.

Relative, but with fire's bias. Heads are mixed, so FlexAttention, which computes one head at a time, cannot run it.

Path: its hook, in `blocked` on the CPU and in a loop over compiled tiles on CUDA. Memory O(T) beyond 1024 keys: the
hidden layer of a tile is mlp_width numbers per pair. Cost: 3·mlp_width more multiply-adds for each pair and head (q·k
and the values are 2D), and those of b.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import STRICT
from coca_train.positions._kerple import LOWEST, clamp_learned
from coca_train.positions.base import AttentionShape, Hook, Initial, LayerPosition, Pairs, Position, ScoreMod
from coca_train.positions.schemes import fire, kerple_log
from coca_train.positions.schemes.alibi import slopes
from coca_train.positions.token_positions import Positions


def _as_linear(weight: Tensor, generator: torch.Generator) -> Tensor:
    return weight.uniform_(-(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A static bias, adapted to the scores."""

    scheme: Literal["dape"]
    bias: Literal["kerple_log", "alibi", "fire"] = Field(description="the static bias that is adapted (paper: kerple)")
    mlp_width: int = Field(ge=1, description="hidden width of the MLP that adapts it (paper: 32)")


class Kerple(nn.Module):
    """r1 and r2 of kerple_log, held in their range."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.r1, self.r2 = nn.Parameter(torch.empty(n_heads)), nn.Parameter(torch.empty(n_heads))

    def forward(self) -> tuple[Tensor, ...]:
        return clamp_learned(self.r1, LOWEST), clamp_learned(self.r2, LOWEST)


def kerple_bias(pairs: Pairs, r1_H: Tensor, r2_H: Tensor) -> Tensor:
    """Return -r1·log(1 + r2·r), (B, H, t, s)."""
    return -r1_H[:, None, None] * torch.log1p(r2_H[:, None, None] * pairs.distance_Bts[:, None])


def alibi_bias(pairs: Pairs, slope_H: Tensor) -> Tensor:
    """Return -slope·r, (B, H, t, s)."""
    return -slope_H[:, None, None] * pairs.distance_Bts[:, None]


def adapt(bias: Callable[..., Tensor]) -> Hook:
    """Build the hook that adds b and f([a ; b]). Its parameters: those of f, then those of b."""

    def scores(pairs: Pairs, carry: Tensor) -> tuple[Tensor, Tensor]:
        w_in_WF, b_in_W, w_out_HW, *of_bias = pairs.parameters
        b_BHts = bias(pairs, *of_bias).expand_as(pairs.scores_BHts)
        both_BtsF = torch.cat((pairs.scores_BHts, b_BHts), 1).permute(0, 2, 3, 1)
        hidden_BtsW = F.leaky_relu(F.linear(both_BtsF.to(w_in_WF.dtype), w_in_WF, b_in_W))
        adapted_BHts = F.linear(hidden_BtsW, w_out_HW).permute(0, 3, 1, 2)
        return pairs.scores_BHts + b_BHts + adapted_BHts, carry

    return Hook(scores, mixes_heads=True)


# What gives the static bias its numbers in a layer, and the hook that reads them.
BIASES: dict[str, tuple[Callable[[int], nn.Module] | None, Hook]] = {
    "kerple_log": (Kerple, adapt(kerple_bias)),
    "alibi": (None, adapt(alibi_bias)),  # its slopes are not learned: all layers share them
    "fire": (partial(fire.Function, mlp_width=32, threshold=512.0), adapt(fire.bias)),
}


class Layer(LayerPosition):
    """The f and the static bias of one layer."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        build, self.hook = BIASES[settings.bias]
        self.bias = None if build is None else build(shape.n_heads)
        self.w_in = nn.Parameter(torch.empty(settings.mlp_width, 2 * shape.n_heads))
        self.b_in = nn.Parameter(torch.empty(settings.mlp_width))
        self.w_out = nn.Parameter(torch.empty(shape.n_heads, settings.mlp_width))

    def score_mod(self, q_BTHD: Tensor, tables: Tensor, tokens: tuple[Tensor, ...]) -> ScoreMod:
        """Pass copies of the parameters, float32 or wider: the kernel reads them after ZeRO 3 has freed the
        originals."""
        dtype = torch.promote_types(self.w_in.dtype, torch.float32)
        mlp = (p.to(dtype, copy=True) for p in (self.w_in, self.b_in, self.w_out))
        return ScoreMod(self.hook, (*mlp, *((tables,) if self.bias is None else self.bias())))


class Scheme(Position):
    """Heads that agree on what a distance means here."""

    settings: Settings

    INITIAL: ClassVar[Mapping[str, Initial]] = {
        **fire.Scheme.INITIAL,
        **kerple_log.Scheme.INITIAL,
        "w_in": _as_linear,
        "b_in": lambda b_W, generator: b_W.zero_(),
        "w_out": _as_linear,
    }

    mixes_heads = True
    layer_class = Layer

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.relative = settings.bias != "fire"

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tensor | None:
        """Return ALiBi's slopes, float32, where they are the static bias."""
        return slopes(self.shape.n_heads, queries.pos_BT.device) if self.settings.bias == "alibi" else None
