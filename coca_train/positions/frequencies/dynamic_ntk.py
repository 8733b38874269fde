"""NTK-aware scaling by the length in hand, in both conventions found in print and in code.

s(l) = 1 for l <= L, else alpha·l/L - (alpha - 1).
alpha = 1: the YaRN paper's s(l) = max(1, l/L) (arXiv 2309.00071, section 3.3).
alpha > 1: the CoCA code's and `transformers`' "factor"; the CoCA paper's tables use 2, 4 and 8, its main ones 4.
"""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import _shared, ntk
from coca_train.positions.hugging_face import Scaling, Words


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """NTK-aware scaling by the length in hand."""

    name: Literal["dynamic_ntk"]
    theta: _shared.Theta
    alpha: Annotated[
        float,
        Field(ge=1, description="s(l) = alpha·l/L - (alpha - 1) beyond L; 1: YaRN paper; 2, 4, 8: CoCA paper and code"),
    ]
    original_seq_len: _shared.OriginalSeqLen


def factor(settings: Settings, length: int) -> float:
    """s(l), length: the sequence in hand, l [tokens]."""
    return settings.alpha * _shared.stretch(settings, length) - (settings.alpha - 1)


spectrum = _shared.dynamic(ntk.scaled, factor)


ROPE_TYPE = "dynamic"
ELSEWHERE = (
    "vLLM has one set of frequencies for texts of all lengths (vllm#3488), llama.cpp none (llama.cpp#8361): both "
    "compute something else"
)


def from_transformers(scaling: Scaling) -> dict[str, Any]:
    """Their factor is our alpha, and they scale from max_position_embeddings on."""
    original = scaling.only_length()
    return {"theta": scaling.theta, "alpha": scaling.factor(), "original_seq_len": original}


def to_transformers(settings: Settings, rotary_dim: int, rotary_pct: float) -> Words:
    """As they are read."""
    scaling = {"rope_type": ROPE_TYPE, "factor": settings.alpha}
    original = settings.original_seq_len
    return Words(settings.theta, scaling, max_positions=original, decodes_to=original, caveats=(ELSEWHERE,))
