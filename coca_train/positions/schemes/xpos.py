"""xPos (Sun et al., arXiv 2212.10554): RoPE whose pairs also decay with distance.

    q' = ζ_j^((m - c)/b) R_m q,   k' = ζ_j^(-(n - c)/b) R_n k,   ζ_j = (2j/R + γ) / (1 + γ),   b = scale_base

so pair j counts with ζ_j^((m - n)/b): slow pairs, whose ζ is near 1, last longer. c cancels in the score;
in the middle of the batch's positions it keeps the powers small. Exactly relative.

Path: any fused kernel, on the CPU and on CUDA. Memory O(T·D), cost that of RoPE.

Range. ζ_0 is the smallest base. Over N tokens the powers of queries and keys both span ζ_0^(-N/b), and the
product of the earliest query with the latest key reaches it. The causal mask hides that score, but it must
not become infinite before: kernels that add -inf would make it NaN. Hence a bound on N, by dtype.
"""

import math
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions import rope_scaling, rotary
from coca_train.positions.base import Problem
from coca_train.positions.token_positions import Positions
from coca_train.runtime.errors import UserError

# What ζ_0^(-N/b) may take of a dtype's exponent range [bits]; the rest is left to q·k. bfloat16 ends like float32.
RANGE = {torch.float16: 10.0}
RANGE_ELSE = 120.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Rotary position embedding with decay."""

    scheme: Literal["xpos"]
    gamma: float = Field(gt=0, description="offset γ of the decay rates; the smaller, the faster the fast pairs decay")
    scale_base: float = Field(
        gt=0,
        description="pair j decays by ζ_j over this distance [tokens]; 512 reaches 34 000 tokens (fp16: 2 800)",
    )
    rotary_pct: float = Field(gt=0, le=1, description="share of each head that is rotated and decays")
    rope_scaling: Annotated[
        rope_scaling.AnyRopeScaling, Field(description="frequencies and how they scale with length")
    ]

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse combinations that cannot be computed."""
        return rotary.problems(model, self.rotary_pct, self.rope_scaling)


class Tables(NamedTuple):
    """Rotations of queries and keys with their powers of ζ multiplied in, and how many tokens they span."""

    query: rotary.CosSin
    key: rotary.CosSin
    span: int
    reach: tuple[bool, bool]  # whether float16, and the other dtypes, reach that far


class Scheme(rotary.Rotary):
    """Rotates queries and keys; lets queries fade and keys grow with the position."""

    settings: Settings

    caches_rotated_keys = False  # the centre moves with the positions of the batch

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the scaled rotations at a sequence length [tokens], which dynamic frequencies adapt to."""
        spectrum = self.spectrum(length, queries.pos_BT.device)
        place_BT, place_BS = (rotary.moved_positions(each.pos_BT, spectrum).double() for each in (queries, keys))
        first, last = float(min(queries.first, keys.first)), float(max(queries.last, keys.last))
        if spectrum.positions_N is not None:
            first, last = 0.0, spectrum.end
        centre = (first + last) // 2
        query, key = rotary.query_and_key_tables(queries, keys, spectrum)
        query = _scaled(query, self._powers(place_BT - centre))
        key = _scaled(key, self._powers(centre - place_BS))
        span = math.ceil(last - first) + 1
        return Tables(query, key, span, (self._reaches(span, torch.float16), self._reaches(span, torch.float32)))

    def _powers(self, offset_BT: Tensor) -> Tensor:
        """Return ζ_j^(offset/b) for both features of every pair, float32 (B, T, 1, R). The powers are taken in float64:
        an exponent of 32 would cost a float32 one five bits."""
        j = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64, device=offset_BT.device)
        zeta_J = (j / self.rotary_dim + self.settings.gamma) / (1 + self.settings.gamma)
        power_BTJ = zeta_J ** (offset_BT[..., None] / self.settings.scale_base)
        return torch.cat((power_BTJ, power_BTJ), -1).float()[:, :, None, :]

    def rotate(self, q_BTHD: Tensor, k_BSGK: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys. K = E = D. Raises UserError (E-POS-05) where the powers would leave the range of the
        dtype."""
        # int: torch 2.11 compiles no index that is a bool.
        if not tables.reach[int(q_BTHD.dtype != torch.float16)]:
            raise self._too_far(tables.span, q_BTHD.dtype)
        return super().rotate(q_BTHD, k_BSGK, tables)

    @property
    def _bits_per_base(self) -> float:
        return math.log2((1 + self.settings.gamma) / self.settings.gamma)

    def _reaches(self, span: int, dtype: torch.dtype) -> bool:
        return span * self._bits_per_base <= RANGE.get(dtype, RANGE_ELSE) * self.settings.scale_base

    def _too_far(self, span: int, dtype: torch.dtype) -> UserError:
        base, bits = self.settings.scale_base, RANGE.get(dtype, RANGE_ELSE)
        needed = math.ceil(span * self._bits_per_base / bits)
        return UserError(
            f"E-POS-05 position.scale_base={base:g}: xpos with scale_base {base:g} reaches "
            f"{int(bits * base / self._bits_per_base)} tokens in {str(dtype)[6:]}, not {span}: its powers would leave "
            f"the number range; the reach grows with scale_base, which a model is trained with. "
            f"Fix: train with position.scale_base={needed}, or take shorter windows"
        )


def _scaled(turn: rotary.CosSin, power_BT1R: Tensor) -> rotary.CosSin:
    return turn._replace(cos_BT1R=turn.cos_BT1R * power_BT1R, sin_BT1R=turn.sin_BT1R * power_BT1R)
