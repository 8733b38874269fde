"""Linear attention with RoPE (RoFormer, arXiv 2104.09864, section 3.3, Eq. 19): features are rotated, no softmax.

    out_m = Σ_{n≤m} (R_m φ(q_m)) · (R_n φ(k_n)) v_n / Σ_{n≤m} φ(q_m) · φ(k_n),   φ(x) = elu(x) + 1

The numerator is rotated, the denominator is not, so it stays above zero; weights may be negative and need not add up to
one. Exactly relative. 1/√D and a logit scale are in both and cancel, so `model.logit_scale` is refused unless
softmax layers have it. The temperature of a `rope_scaling` is one of a softmax, and is left out.

Path: a state that sums up the tokens before (attention/linear.py), O(T·D²) time and O(T·D) memory; no T x T matrix, on
any device. It can drop no token, so attention patterns other than causal are refused. The cache holds keys and values
like any other, and a step reads them all, O(T·D): `rope_scaling` may turn old keys otherwise in a longer text. A state
of constant size (arXiv 2006.16236, section 3.4) could not follow it.

With `layers=nope_every_fourth`, three such layers and then one with softmax and without positions, it is a hybrid.
"""

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions import rope_scaling, rotary
from coca_train.positions.base import NO_TERMS, LayerPosition, PositionedQK, Problem, Projections
from coca_train.positions.token_positions import Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Rotated features, without a softmax."""

    scheme: Literal["linear_rope"]
    rotary_pct: float = Field(gt=0, le=1, description="rotated share of each head's features; the paper: 1")
    rope_scaling: Annotated[
        rope_scaling.AnyRopeScaling, Field(description="frequencies and how they scale with length")
    ]

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse a width that cannot be rotated, and options that change the scores of a softmax."""
        found = rotary.problems(model, self.rotary_pct, self.rope_scaling)
        options = (
            ("model.score_cap", model.score_cap is not None, "null"),
            ("model.score_scale", model.score_scale != "none", "none"),
            ("model.learned_sink", model.learned_sink, "false"),
        )
        wrong = "it changes the scores of a softmax, and linear_rope has none"
        return found + [(key, wrong, f"write {key}={off}") for key, is_on, off in options if is_on]


class Tables(NamedTuple):
    """The rotations of queries and keys."""

    query: rotary.CosSin
    key: rotary.CosSin


def features(x_BTHD: Tensor) -> Tensor:
    """Return elu(x) + 1 in the dtype of x, without the zero that torch's elu plus one is from -17 on."""
    wide = x_BTHD.to(torch.promote_types(x_BTHD.dtype, torch.float32))
    return (wide.clamp(max=0).exp() + wide.relu()).to(x_BTHD.dtype)


class Layer(LayerPosition):
    """A layer without parameters of its own."""

    def forward(
        self,
        position: "Scheme",
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: Tables,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Return the rotated features, and those that divide. K = E = D."""
        divisor = features(q_BTHD), features(k_BSGK)
        return PositionedQK(*position.rotate(*divisor, tables), NO_TERMS, divisor=divisor)


class Scheme(rotary.Rotary):
    """Rotates features by their own position."""

    settings: Settings
    linear = True
    caches_rotated_keys = False  # a key is used twice, once as it is
    layer_class = Layer

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the rotations at a sequence length [tokens], which dynamic frequencies adapt to."""
        spectrum = self.spectrum(length, queries.pos_BT.device)._replace(temperature=1.0)
        return Tables(*rotary.query_and_key_tables(queries, keys, spectrum))
