"""S², LongLoRA's shifted sparse attention (Chen et al., arXiv 2309.12307, section 3.2): in training alone, half of the
heads attend within groups of the sequence, the others within groups that are shifted by half a group.

Group of a token at m: m div G for the first half of the heads, (m + G / 2) div G for the second; G is a quarter of the
training window in the paper. Evaluation, generation and exports attend to everything before a query, which the weights
learn as well. The released code rolls the sequence to shift it, so that the first tokens of a text see its end; here
the first and the last shifted group are half as long instead. A document has groups of its own. O(T·G) pairs.
"""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.attention.pattern import AttentionPattern, Chunks, Rule, not_linear
from coca_train.config.schema import STRICT, Positive
from coca_train.positions.base import Position, Problem


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Groups of tokens, in training."""

    name: Literal["s2"]
    window: Positive = Field(description="length of the texts that are trained on [tokens]")
    group: Positive | None = Field(
        default=None, description="tokens of a group, G, even; null: a quarter of the window"
    )

    @property
    def size(self) -> int:
        """Tokens of a group."""
        return self.group or max(2, self.window // 8 * 2)


class Rules(AttentionPattern):
    """Causal attention, for which groups stand in while a model is trained."""

    settings: Settings

    def in_training(self) -> tuple[Rule, ...]:
        size = self.settings.size
        return Rule(chunks=Chunks(size, 0, 0)), Rule(chunks=Chunks(size, 0, 0, ahead=size // 2))

    def problems(self, position: Position) -> list[Problem]:
        """Refuse an odd group, heads that cannot be halved, schemes that mix heads, linear ones, and a memory."""
        key, scheme, found = "attention_pattern.name", position.settings.scheme, not_linear(self.settings, position)
        if self.settings.size % 2:
            text = "groups are shifted by half of one, and this is odd"
            found.append(("attention_pattern.group", text, f"write attention_pattern.group={self.settings.size + 1}"))
        if position.shape.n_heads % 2:
            text = f"half of the heads see shifted groups, and there are {position.shape.n_heads}"
            found.append((key, text, "write attention_pattern=causal, or an even model.n_heads"))
        if position.mixes_heads:
            text = f"halves of the heads see other groups, and {scheme} mixes all heads of a pair of tokens"
            found.append((key, text, "write attention_pattern=causal, or choose another scheme"))
        if position.memory_len:
            text = f"groups lie within a text, and {scheme} sees the text before it too"
            found.append((key, text, "write position.memory_len=0, or attention_pattern=causal"))
        return found
