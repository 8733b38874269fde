"""A model that copies as far back as it reads: of a known reach, for suites that ask what stands in a prompt."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from coca_train.models.cache import KVCache
from coca_train.positions.token_positions import Positions
from tests.evaluation.grids import Bytes, measured

VOCAB = 256


def successor(text: list[int], reach: int) -> int:
    """The token behind the place that agrees longest with the text's end (the last of such places), among the last
    `reach` tokens; 0 where nothing agrees."""
    text = text[-reach:]
    found, best = 0, 0
    for end in range(1, len(text)):
        n = 0
        while n < end and text[end - 1 - n] == text[-1 - n]:
            n += 1
        if n >= max(1, best):
            found, best = text[end], n
    return found


class NoPosition:
    """A scheme without tables."""

    mixes_heads = False

    def __call__(self, *given: Any) -> None:
        """Return what is the same at every length."""


class CopyHead(nn.Module):
    """What a Transformer is to an evaluation. Hidden states are the logits. reach [tokens]: how far back it reads.
    says(text, reach): the token it puts behind a text.

    Shape legend: B rows, T new tokens, S all tokens, V vocabulary.
    """

    max_positions, bidirectional = None, False
    layer_types = ("default",)
    position = attention_pattern = SimpleNamespace(settings=None)  # other than any that is put on it

    def __init__(self, reach: int, says: Callable[[list[int], int], int] = successor) -> None:
        super().__init__()
        self.reach, self.says, self.weight = reach, says, nn.Parameter(torch.zeros(1))

    def position_of(self, kind: str) -> Any:
        return NoPosition()

    def set_position(self, settings: Any) -> None:
        """It has none; nor attention pattern and logit scale."""

    set_attention_pattern = set_logit_scale = set_position

    @property
    def attention_patterns(self) -> dict[str, Any]:
        return {"default": SimpleNamespace(length=lambda length: length)}

    def new_cache(self, capacity: int, at_length: int | None = None) -> KVCache:
        return KVCache([None], capacity, at_length)

    def hidden(self, tokens_BT: Tensor, length: int | None = None, cache: KVCache | None = None) -> Tensor:
        tokens_BS = tokens_BT
        if cache is not None:
            first = cache.length
            cache.advance(Positions.counted(first, first + tokens_BT.shape[1]))
            tokens_BS = cache.extend(0, tokens_BT[:, :, None])[0][:, :, 0]
        logits_BTV = torch.zeros(*tokens_BT.shape, VOCAB)
        # Only the last token of a row, or of the text before padding, is ever asked for what follows.
        for row, tokens_S in enumerate(tokens_BS.tolist()):
            n = len(tokens_S) if cache is not None else max(i for i, t in enumerate(tokens_S, 1) if t)
            logits_BTV[row, n - len(tokens_S) - 1, self.says(tokens_S[:n], self.reach)] = 10.0
        return logits_BTV

    def head(self, x: Tensor) -> Tensor:
        return x


def copying(reach: int) -> Any:
    """A subject of bytes with this reach [tokens]."""
    facts = measured("copier", window=64)
    return SimpleNamespace(
        name="copier", facts=facts, model=CopyHead(reach).eval(), tokenizer=Bytes(), begin=(), training_window=64
    )
