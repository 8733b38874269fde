"""NTK-by-parts with s(l) = max(1, l/L) of the sequence in hand (YaRN, arXiv 2309.00071, section 3.3)."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT
from coca_train.positions.frequencies import _shared, ntk_by_parts


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(_shared.PartsRamp):
    """NTK-by-parts by the length in hand."""

    name: Literal["dynamic_ntk_by_parts"]


spectrum = _shared.dynamic(ntk_by_parts.scaled)
