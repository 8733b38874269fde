"""What somebody adds: a bias by distance that a key's own token opens. It has a hook, parameters, and a tensor of every
token that is cached.

    score(m, n) = q·k / √D - a_h² · log(1 + p·r) · σ(w_h · x_n)     for each head h, r = m - n
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coca_train.config.schema import STRICT
from coca_train.positions.base import AttentionShape, Hook, Initial, LayerPosition, Pairs, Position, ScoreMod


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """A bias by distance that tokens open."""

    scheme: Literal["gated"]
    power: float = Field(gt=0, description="what the distance is multiplied by within the logarithm")


def close(pairs: Pairs, carry: Tensor) -> tuple[Tensor, Tensor]:
    """Takes away what distance costs, where the key's gate is open."""
    a_H, power = pairs.parameters
    gate_BH1s = pairs.keys[0].transpose(1, 2)[:, :, None]
    far_B1ts = (power * pairs.distance_Bts.to(a_H.dtype)).log1p()[:, None]
    return pairs.scores_BHts - a_H.square()[:, None, None] * far_B1ts * gate_BH1s, carry


CLOSE = Hook(close)


class Strength(nn.Module):
    """a of every head, float32 or wider: a copy, as ZeRO 3 takes the parameter back."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(n_heads))

    def forward(self) -> Tensor:
        return self.a.to(torch.promote_types(self.a.dtype, torch.float32), copy=True)


class Layer(LayerPosition):
    """One layer's gates and strengths."""

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.gate = nn.Linear(shape.d_model, shape.n_heads, bias=False)
        self.strength = Strength(shape.n_heads)

    def tokens(self, x_BSC: Tensor) -> tuple[Tensor]:
        """σ(w_h · x) of every token, (B, S, H)."""
        gate_BSH = self.gate(x_BSC)
        return (gate_BSH.to(torch.promote_types(gate_BSH.dtype, torch.float32)).sigmoid(),)

    def score_mod(self, q_BTHD: Tensor, tables: Any, tokens: tuple[Tensor, ...]) -> ScoreMod:
        a_H = self.strength()
        power = torch.full((1,), self.settings.power, dtype=a_H.dtype, device=a_H.device)
        return ScoreMod(CLOSE, (a_H, power), keys=tokens)


class Scheme(Position):
    """Distance, as far as tokens let it count."""

    INITIAL: ClassVar[Mapping[str, Initial]] = {"a": lambda a_H, generator: a_H.fill_(1.0)}

    layer_class = Layer
