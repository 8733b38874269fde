"""Softmax attention: which keys a query sees (attention patterns), and the kernels that compute it.

From the definition outwards: pattern.py (what a query sees), scores.py (a tile of scores), kernels.py
(`eager`, the definition, and torch's fused attention), tiled_attention.py and flex.py (any scheme in linear memory).

Nothing here imports torch before it is needed: the registry is what `--help` lists.
"""

from dataclasses import Field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from coca_train.config.files import Registry


class PatternSettings(Protocol):
    """Settings of an attention pattern: a frozen dataclass that names it. Only the pattern knows the other fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def name(self) -> str: ...


ATTENTION_PATTERNS = Registry(
    Path(__file__).parent / "patterns",
    lambda name: import_module(f"{__name__}.patterns.{name}"),
    "name",
    "coca_train.attention_patterns",
)
