"""Attention patterns: one file each, usable with every scheme whose positions act on pairs.

Each module holds `Settings` (its own hyper-parameters) and `Rules`, an `AttentionPattern`.
"""

import torch

from coca_train import positions
from coca_train.attention import ATTENTION_PATTERNS, PatternSettings
from coca_train.attention.pattern import AttentionPattern
from coca_train.config.schema import ModelConfig
from coca_train.positions import SchemeSettings
from coca_train.positions.base import AttentionShape, Position, Problem


def settings(value: object) -> PatternSettings:
    """Check a mapping with the key `name` and return it as that attention pattern's Settings (errors: see
    Registry.settings)."""
    return ATTENTION_PATTERNS.settings(value)


def build(settings: PatternSettings) -> AttentionPattern:
    """Build the attention pattern that `settings` names."""
    return ATTENTION_PATTERNS.module(settings.name).Rules(settings)


def problems(settings: PatternSettings, position: SchemeSettings, model: ModelConfig) -> list[Problem]:
    """Return why an attention pattern cannot be combined with the scheme of these position settings; empty: it can.

    model: one that the scheme can be built for (the settings' own `problems` finds nothing).
    """
    return build(settings).problems(outline(position, model))


def outline(position: SchemeSettings, model: ModelConfig) -> Position:
    """Build the scheme of these settings on the meta device, to read its properties."""
    with torch.device("meta"):
        return positions.build(position, AttentionShape.of(model, max_seq_len=1))
