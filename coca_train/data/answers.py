"""Predictions that are scored: all of a text, or those of its answers alone (`data.answers`).

Shape legend: B sequences, T tokens.
"""

from dataclasses import replace
from typing import NamedTuple

import torch

from coca_train.config.schema import DataConfig
from coca_train.data.batch import Batch
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError


class Marks(NamedTuple):
    """The tokens around an answer. end: None where only the end of a document ends it."""

    begin: int
    end: int | None


def marks_of(config: DataConfig) -> Marks | None:
    """Return the tokens of `data.answers`; None: every prediction is scored. Raises DataError E-MIX-05."""
    if config.answers.begin is None:
        return None
    tokenizer = Tokenizer(config.tokenizer)

    def token(name: str, piece: str) -> int:
        # As data_prep encodes a text, in which no piece is a special token; then as other tools do.
        for tokens, shown in (
            (tokenizer.encode(piece), piece.strip()),
            (tokenizer.encode(piece, "tokens"), ""),
        ):
            if len(tokens) == 1 and tokenizer.decode(tokens).strip() == shown:
                return tokens[0]
        raise DataError(
            f"E-MIX-05 data.answers.{name}={piece!r}: is not one token of {config.tokenizer}. Fix: name a piece of its "
            "vocabulary"
        )

    end = config.answers.end
    return Marks(token("begin", config.answers.begin), None if end is None else token("end", end))


def score_answers(batch: Batch, marks: Marks) -> Batch:
    """Leave the predictions within answers: those for which the last mark before, in the same document, is `begin`.
    The token `end` is the last prediction of its answer."""
    tokens_BT, at_T = batch.tokens_BT, torch.arange(batch.tokens_BT.shape[1])
    begin_BT = tokens_BT == marks.begin
    mark_BT = begin_BT if marks.end is None else begin_BT | (tokens_BT == marks.end)
    last_BT = torch.where(mark_BT, at_T, -1).cummax(1).values
    within_BT = begin_BT.gather(1, last_BT.clamp(min=0)) & (last_BT >= 0)
    if batch.doc_BT is not None:
        within_BT &= batch.doc_BT.gather(1, last_BT.clamp(min=0)) == batch.doc_BT
    return replace(batch, targets_BT=batch.targets_BT.where(within_BT, IGNORE))
