"""RoPE (RoFormer, arXiv 2104.09864): q' = R_m q, k' = R_n k. Any fused kernel, O(T·D) memory.

`rotary_pct` < 1 rotates the first part of the head and leaves the rest (GPT-NeoX). The scaling of
positions is the second axis, `rope_scaling`; its temperature multiplies the whole head, or that part alone.
"""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, ModelConfig
from coca_train.positions import hugging_face, rope_scaling, rotary
from coca_train.positions.base import Problem
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
    rope_scaling: Annotated[
        rope_scaling.AnyRopeScaling, Field(description="frequencies and how they scale with length")
    ]

    def problems(self, model: ModelConfig) -> list[Problem]:
        """Refuse combinations that cannot be computed."""
        return rotary.problems(model, self.rotary_pct, self.rope_scaling)


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
