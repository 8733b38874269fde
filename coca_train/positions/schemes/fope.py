"""FoPE, Fourier position embedding (Hua et al., arXiv 2412.17739): every pair turns by a mixture of frequencies.

RoPE's θ_j below 2π/L are dropped, as training shows no whole turn of them; F are left. Of the J pairs of a head the
first O = min(F, ⌊D/4⌋) get

    cos_o(m) = Σ_i A_io cos(m θ_i),   sin_o(m) = Σ_i B_io sin(m θ_i),   x' = x ∘ cos(m) + turn(x) ∘ sin(m)

and the others none, so that they carry content alone. A and B, of every key head, are a unit where i = o·⌈F/O⌉ plus
normal numbers, drawn once and frozen as in the released configurations; all layers share them. What the map does is no
rotation: it changes lengths, and scores depend on more than distances.

Path: any fused kernel, O(T·D) memory. The tables have heads: cos and sin of T·G·D numbers each, float32, shared by the
layers. The released code pads the tables of the pairs that are not mixed with ones, in sin as in cos, which doubles
their part of q·k: `padding: code`.
"""

import math
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT, ModelConfig, Seed
from coca_train.positions import rotary
from coca_train.positions.base import AttentionShape, Heads, Position, Problem
from coca_train.positions.rope_scaling import base_inv_freq
from coca_train.positions.token_positions import DeviceCopies, Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Mixtures of frequencies."""

    scheme: Literal["fope"]
    theta: float = Field(gt=1, description="rotary base: pair j turns theta^(-2j/D) radians per position")
    original_seq_len: int = Field(gt=0, description="context length the weights are trained at, L [tokens]")
    gain: float = Field(
        ge=0, description="of the normal numbers in A and B; the paper: 0.3 at 60M parameters, 0.4 at 180M, 0.6 at 1.2B"
    )
    seed: Seed = Field(default=0, description="of A and B")
    padding: Literal["paper", "code"] = Field(
        default="paper", description="sin of the pairs that are not mixed. paper: 0; code: 1, as cos"
    )

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse an odd head, and a window in which nothing turns."""
        if issues := rotary.width_problems(model, 1.0):
            return issues
        if len(kept(self, model.head_dim or model.d_model // model.n_heads)):
            return []
        wrong = f"no pair turns once within {self.original_seq_len} tokens, so that nothing would be mixed"
        return [("position.original_seq_len", wrong, "write position.original_seq_len=7 or more")]


def kept(settings: Settings, head_dim: int) -> Tensor:
    """Return the frequencies that turn within the window, float64 (F,)."""
    theta_J = base_inv_freq(settings.theta, head_dim, torch.device("cpu"))
    return theta_J[theta_J >= 2 * math.pi / settings.original_seq_len]


def coefficients(settings: Settings, n_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Draw A and B, float32 (G, F, O) each."""
    n_kept = len(kept(settings, head_dim))
    n_mixed = min(n_kept, head_dim // 4)
    # What Xavier's rule takes for the fans of a tensor with three dimensions.
    std = settings.gain * math.sqrt(2 / (n_kept * n_mixed + n_heads * n_mixed))
    generator = torch.Generator().manual_seed(settings.seed)
    unit_FO = torch.zeros(n_kept, n_mixed, dtype=torch.float32, device="cpu")
    step = math.ceil(n_kept / n_mixed)
    for o in range(min(n_mixed, math.ceil(n_kept / step))):
        unit_FO[o * step, o] = 1.0
    drawn_2GFO = torch.randn((2, n_heads, n_kept, n_mixed), generator=generator, dtype=torch.float32, device="cpu")
    a_GFO, b_GFO = unit_FO + std * drawn_2GFO
    return a_GFO, b_GFO


class Tables(NamedTuple):
    """cos and (-sin, sin) of the key heads, or of some query heads, (B, T, G, D)."""

    query_cos: Tensor
    query_sin: Tensor
    key_cos: Tensor
    key_sin: Tensor


def _mixed(wave_BTF: Tensor, by_GFO: Tensor) -> Tensor:
    """Mix waves, float32 (B, T, G, O). Summed in float64: a product of another shape has another order."""
    return torch.einsum("btf,gfo->btgo", wave_BTF.double(), by_GFO.double()).float()


class Scheme(Position):
    """Maps queries and keys by the mixtures at their positions; a query takes those of its key head."""

    settings: Settings
    relative = False
    bidirectional = True
    caches_rotated_keys = True

    def __init__(self, settings: Settings, shape: AttentionShape) -> None:
        super().__init__(settings, shape)
        self.theta_F = kept(settings, shape.head_dim).float()
        self.a_GFO, self.b_GFO = coefficients(settings, shape.n_kv_heads, shape.head_dim)
        self._theta, self._a, self._b = DeviceCopies(), DeviceCopies(), DeviceCopies()

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the tables of these positions."""
        query = self._tables(queries)
        return Tables(*query, *(query if keys is queries else self._tables(keys)))

    def _tables(self, positions: Positions) -> tuple[Tensor, Tensor]:
        pos_BT, device = positions.pos_BT, positions.pos_BT.device
        theta_F = self._theta.on(self.theta_F, device)
        angle_BTF = pos_BT.to(torch.float32)[..., None] * theta_F
        cos = _mixed(angle_BTF.cos(), self._a.on(self.a_GFO, device))
        sin = _mixed(angle_BTF.sin(), self._b.on(self.b_GFO, device))
        rest = (*cos.shape[:-1], self.shape.head_dim // 2 - cos.shape[-1])
        padding = cos.new_full(rest, 1.0 if self.settings.padding == "code" else 0.0)
        cos, sin = torch.cat((cos, cos.new_ones(rest)), -1), torch.cat((sin, padding), -1)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Map queries and keys. K = E = D."""
        key = rotary.rotate(k_BSGK, tables.key_cos, tables.key_sin).to(k_BSGK.dtype)
        by_group = q_BTHD.unflatten(2, (tables.query_cos.shape[2], -1))
        query = rotary.rotate(by_group, tables.query_cos[:, :, :, None], tables.query_sin[:, :, :, None])
        return query.flatten(2, 3).to(q_BTHD.dtype), key

    def select_heads(self, tables: Tables, heads: Heads) -> Tables:
        """Select the tables of some query heads, one by one, and of their key heads."""
        repeats = self.shape.n_heads // self.shape.n_kv_heads
        query = (x.repeat_interleave(repeats, 2)[:, :, heads.query] for x in tables[:2])
        key = (x.repeat_interleave(heads.repeats, 2)[:, :, heads.key] for x in tables[2:])
        return Tables(*query, *key)
