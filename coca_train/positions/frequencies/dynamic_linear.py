"""Linear scaling with s(l) = max(1, l/L) of the sequence in hand (YaRN, arXiv 2309.00071, section 3.3)."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import _shared, linear


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Linear scaling by the length in hand."""

    name: Literal["dynamic_linear"]
    theta: _shared.Theta
    original_seq_len: _shared.OriginalSeqLen


spectrum = _shared.dynamic(linear.scaled)
