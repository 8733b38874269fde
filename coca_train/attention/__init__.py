"""Attention: which keys a query sees (attention patterns), and the kernels that compute it.

From the definition outwards: pattern.py (what a query sees), scores.py (a tile of scores), kernels.py
(`eager`, the definition, and torch's fused attention), tiled_attention.py and flex.py (any scheme in linear memory),
linear.py (attention without a softmax).

Nothing here imports torch before it is needed: the registry is what `--help` lists.
"""

from importlib import import_module
from pathlib import Path

from coca_train.config.files import Registry
from coca_train.config.schema import PatternSettings

ATTENTION_PATTERNS: Registry[PatternSettings] = Registry(
    Path(__file__).parent / "patterns",
    lambda name: import_module(f"{__name__}.patterns.{name}"),
    "name",
    "coca_train.attention_patterns",
)
