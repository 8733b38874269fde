"""Plain causal attention: a query sees every key at or before its own place."""

from typing import Literal

from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern
from coca_train.config.schema import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """No hyper-parameters."""

    name: Literal["causal"]


class Rules(AttentionPattern):
    """One view, with the text's own positions."""
