"""RoPE (RoFormer, arXiv 2104.09864): q' = R_m q, k' = R_n k. Any fused kernel, O(T·D) memory.

`rotary_pct` < 1 rotates the first part of the head and leaves the rest (GPT-NeoX). The scaling of
positions is the second axis, `rope_scaling`; its temperature multiplies the whole head, or that part alone.
`angle_penalty` draws queries and keys together in training, towards the collinearity that CoCA (arXiv 2309.08646) has
by construction: what its angle does to RoPE can so be tried in the same model.
"""

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions import hugging_face, rope_scaling, rotary
from coca_train.positions.base import LayerPosition, PositionedQK, Problem, Projections
from coca_train.positions.token_positions import Positions


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Rotary position embedding."""

    scheme: Literal["rope"]
    rotary_pct: float = Field(gt=0, le=1, description="rotated share of each head; GPT-NeoX 0.25, LLaMA 1")
    temperature_on: Literal["head", "rotated"] = Field(
        default="head",
        description="what the temperature of the frequencies multiplies where a part of the head is rotated: head, all "
        "of it (YaRN Eq. 21); rotated, that part alone (transformers, Phi-4-mini)",
    )
    angle_penalty: float = Field(
        default=0.0,
        ge=0,
        description="in training, the weight in the loss [nats per token] of how far queries and keys are from "
        "collinear: 1 - c, from 0 to 2, where c is the cosine between them by rotated pairs, the mean over all "
        "queries and keys of a row weighted by their lengths, and over heads and layers; 0: off",
    )
    rope_scaling: Annotated[
        rope_scaling.AnyRopeScaling, Field(description="frequencies and how they scale with length")
    ]

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse combinations that cannot be computed."""
        return rotary.problems(model, self.rotary_pct, self.rope_scaling)


LEAST = 1e-6  # |q||k|, summed over a row


class PenalisedLayer(LayerPosition):
    """Adds what its queries and keys lack of being collinear to the loss."""

    settings: Settings

    def forward(
        self,
        position: "Scheme",
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: object,
        project: Projections,
        tokens: tuple[Tensor, ...] = (),
    ) -> PositionedQK:
        """Rotate, and in training leave the penalty of these queries and keys."""
        if self.training and torch.is_grad_enabled():
            width = position.rotary_dim
            penalty = self.settings.angle_penalty * misalignment(q_BTHD[..., :width], k_BSGK[..., :width])
            if self.is_asked:
                self.penalty = penalty
        return super().forward(position, q_BTHD, k_BSGK, tables, project, tokens)


def misalignment(q_BTHR: Tensor, k_BSGR: Tensor) -> Tensor:
    """Return how far queries and keys are from collinear, the mean over rows and heads: 1 - c, with c the sum of q·k
    over all queries, keys and pairs of features, divided by that of |q||k| of each pair (the cosines of CoCA's Θ,
    arXiv 2309.08646, section 2.2, weighted by lengths). A float32 scalar from 0 to 2, linear in T and S."""
    wide = torch.promote_types(q_BTHR.dtype, torch.float32)
    (q_BH2J, q_BHJ), (k_BG2J, k_BGJ) = (_sums(x.to(wide)) for x in (q_BTHR, k_BSGR))
    k_BH2J, k_BHJ = (x.repeat_interleave(q_BHJ.shape[1] // x.shape[1], 1) for x in (k_BG2J, k_BGJ))
    longest_BH = (q_BHJ * k_BHJ).sum(-1)
    is_there_BH = longest_BH > LEAST  # a head of zeros has no angle, and would have an infinite gradient
    cosine_BH = (q_BH2J * k_BH2J).sum((-2, -1)) / torch.where(is_there_BH, longest_BH, 1.0)
    return 1 - torch.where(is_there_BH, cosine_BH, 1.0).mean()


def _sums(x_BTHR: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over tokens of the pairs of features, (B, H, 2, J), and of their lengths, (B, H, J)."""
    pairs_BTH2J = x_BTHR.unflatten(-1, (2, -1))
    return pairs_BTH2J.sum(1), torch.linalg.vector_norm(pairs_BTH2J, dim=-2).sum(1)


class Tables(NamedTuple):
    """The rotations of queries and keys."""

    query: rotary.CosSin
    key: rotary.CosSin


class Scheme(rotary.Rotary):
    """Rotates queries and keys by their own position."""

    settings: Settings
    bidirectional = True

    def forward(self, queries: Positions, keys: Positions, length: int) -> Tables:
        """Return the rotations at a sequence length [tokens], which dynamic frequencies adapt to."""
        spectrum = self.spectrum(length, queries.pos_BT.device)
        tables = rotary.query_and_key_tables(queries, keys, spectrum)
        if self.settings.temperature_on == "rotated":
            return Tables(*(turn._replace(temperature=1.0) for turn in tables))
        return Tables(*tables)

    def layer(self) -> LayerPosition:
        """Build the part of one new layer."""
        return PenalisedLayer(self.settings, self.shape) if self.settings.angle_penalty else super().layer()

    @classmethod
    def to_transformers(cls, settings: Settings, head_dim: int) -> hugging_face.Rotation:
        """Return the rotation, where transformers has the frequencies."""
        pct = settings.rotary_pct
        words = hugging_face.to_native(settings.rope_scaling, rotary.width(head_dim, pct), pct)
        temperature = (words.scaling or {}).get("attention_factor", 1.0)
        if pct < 1 and settings.temperature_on == "head" and temperature != 1:
            raise hugging_face.NotTheSame(
                "a temperature on the whole of a head that is rotated in part (partial rotation; theirs is "
                "position.temperature_on=rotated)"
            )
        return hugging_face.Rotation(pct, words)


def from_transformers(rotary_pct: float, rope_scaling: dict[str, object]) -> dict[str, object]:
    """Return the position section of a model of transformers."""
    rotation = {"rotary_pct": rotary_pct, "temperature_on": "rotated" if rotary_pct < 1 else "head"}
    return {"scheme": "rope", **rotation, "rope_scaling": rope_scaling}
