"""NTK-aware scaling by the sequence length, in both conventions found in print and in code.

s(l) = 1 for l <= L, else alpha·l/L - (alpha - 1).
alpha = 1: the YaRN paper's s(l) = max(1, l/L) (arXiv 2309.00071, section 3.3).
alpha > 1: the CoCA code's and `transformers`' "factor"; the CoCA paper's tables use 2, 4 and 8, its main ones 4.
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import NativeScaling, ScalingReader
from coca_train.positions.rope_scaling import (
    OriginalSeqLen,
    RopeScaling,
    Spectrum,
    base_inv_freq,
    ntk_theta,
    rounded,
    stretch,
)

ELSEWHERE = (
    "vLLM has one set of frequencies for texts of all lengths (vllm#3488), llama.cpp none (llama.cpp#8361): both "
    "compute something else"
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(RopeScaling):
    """NTK-aware scaling by the sequence length."""

    name: Literal["dynamic_ntk"]
    alpha: Annotated[
        float,
        Field(ge=1, description="s(l) = alpha·l/L - (alpha - 1) beyond L; 1: YaRN paper; 2, 4, 8: CoCA paper and code"),
    ]
    original_seq_len: OriginalSeqLen

    ROPE_TYPE = "dynamic"

    def spectrum(self, rotary_dim: int, length: int) -> Spectrum:
        factor = self.alpha * stretch(self.original_seq_len, length) - (self.alpha - 1)
        return rounded(base_inv_freq(ntk_theta(self.theta, factor, rotary_dim), rotary_dim))

    @classmethod
    def from_transformers(cls, scaling: ScalingReader) -> dict[str, object]:
        """Read their factor as our alpha; they scale from max_position_embeddings on."""
        original = scaling.single_length()
        return {"theta": scaling.theta, "alpha": scaling.factor(), "original_seq_len": original}

    def to_transformers(self, rotary_dim: int, rotary_pct: float) -> NativeScaling:
        scaling, original = {"rope_type": self.ROPE_TYPE, "factor": self.alpha}, self.original_seq_len
        return NativeScaling(self.theta, scaling, max_positions=original, decodes_to=original, caveats=(ELSEWHERE,))
