"""What candidates of a search for factors are judged by, on documents of the target length: the loss of a text, as
LongRoPE does, or of the answer to a needle that is hidden in it, as LongRoPE2 does (arXiv 2502.20082).

Most tokens of a text can be predicted from those shortly before them, so its loss hardly shows whether a model still
reads the beginning. The answer to a needle needs the one place that has it. A needle is RULER's (data/ruler.py): a line
among a document's sentences, "The special number of KEY is VALUE."; document i of n has it at a depth drawn from i/n to
(i + 1)/n. The question follows the text, and the answer's tokens alone count.
"""

import random
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coca_train.checkpoint.opening import TrainedRun
from coca_train.config.choice import Selection
from coca_train.data.ruler import needles
from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation.configuration import ExtendConfig, TextConfig
from coca_train.evaluation.suites._prompts import Encode, fit_prompt
from coca_train.evaluation.suites.ruler import essays
from coca_train.evaluation.texts import read_once
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError, UserError
from coca_train.vary import with_inference

PASS_TOKENS = 16384  # of a forward pass
Kind = Literal["number", "word"]


class NoRoomError(UserError):
    """A length that is too short for a needle."""


class Document(NamedTuple):
    """A text, and its tokens."""

    text: str
    tokens: np.ndarray


class Rows(NamedTuple):
    """What is read, one token more than the window, and which of its predictions count."""

    tokens_BS: Tensor
    scored_BT: Tensor


class Needle(NamedTuple):
    """A text with a needle, its question and its answer; n_asked: tokens before the answer."""

    tokens: list[int]
    n_asked: int


def read_documents(run: TrainedRun, given: ExtendConfig) -> tuple[list[Document], list[Document]]:
    """Return documents of the target length: those that candidates are measured on, and as many others.

    Raises UserError E-TKN-01 without a tokenizer, DataError E-EVAL-05 without two texts that are long enough.
    """
    text = TextConfig(
        files=list(given.files), text_field=given.text_field, corpus=None, sources=[], begin="none",
        max_documents=2 * given.documents,
    )  # fmt: skip
    tokenizer = tokenizer_of(run, given)
    documents = [
        Document(each, np.asarray(tokenizer.encode(each), dtype=np.int64))
        for texts in read_once(text, [given.run])().values()
        for each in texts
    ]
    long = [each for each in documents if len(each.tokens) > given.length]
    if len(long) < 2:
        longest = max((len(each.tokens) for each in documents), default=0)
        raise DataError(
            f"E-EVAL-05 text: {len(long)} documents have more than {given.length:,} tokens (the longest has "
            f"{longest:,}), and a search needs two: one to search on and one to confirm. Fix: files=[<longer texts>], "
            "or a smaller length"
        )
    n = min(2 * given.documents, len(long))
    chosen = [long[i * len(long) // n] for i in range(n)]
    return chosen[::2], chosen[1::2]


def tokenizer_of(run: TrainedRun, given: ExtendConfig) -> Tokenizer:
    """Return the tokenizer of a run. Raises UserError E-TKN-01 where it has none."""
    if run.tokenizer is None:
        raise UserError(f"E-TKN-01 {given.run}: has no tokenizer, and texts are needed. Fix: import it with tokenizer=")
    return run.tokenizer


def text_rows(documents: Sequence[Document], length: int) -> Rows:
    """Return the beginnings of documents; every prediction counts."""
    tokens_BS = torch.from_numpy(np.stack([each.tokens[: length + 1] for each in documents]))
    return Rows(tokens_BS, torch.ones(len(documents), length, dtype=torch.bool))


def needle_rows(documents: Sequence[Document], encode: Encode, kind: Kind, length: int, seed: int) -> Rows:
    """Return beginnings of documents with a needle, its question and its answer, of which the answer counts.

    Raises NoRoomError E-EXT-06 when the length has no room for that.
    """
    tokens_BS = torch.zeros(len(documents), length + 1, dtype=torch.int64)
    scored_BT = torch.zeros(len(documents), length, dtype=torch.bool)
    for index, document in enumerate(documents):
        case = f"needle {seed} {length} {index}"
        depth = (index + random.Random(case).random()) / len(documents)
        build = partial(_needle, encode, kind, essays([document.text]), depth, case)
        needle = fit_prompt(build, length, least=0)
        if needle is None:
            least = len(build(0).tokens)
            raise NoRoomError(
                f"E-EXT-06 length={length}: has no room for a needle, its question and its answer, which take {least} "
                f"tokens. Fix: length={4 * least}, for example"
            )
        n = len(needle.tokens)
        tokens_BS[index, :n] = torch.tensor(needle.tokens)  # no prediction looks ahead to what fills up the row
        scored_BT[index, needle.n_asked - 1 : n - 1] = True
    return Rows(tokens_BS, scored_BT)


def _needle(encode: Encode, kind: Kind, sentences: Sequence[str], depth: float, case: str, size: int) -> Needle:
    sample = needles(kind, 1, 1, 1, size, random.Random(case), sentences, [depth])
    asked, whole = encode(sample.prompt), encode(f"{sample.prompt} {sample.expected[0]}")
    # A tokenizer may join the end of the question with the answer.
    differ = (index for index, (before, after) in enumerate(zip(asked, whole, strict=False)) if before != after)
    return Needle(whole, next(differ, len(asked)))


class Judge:
    """Measures scalings of a model on rows of the target length."""

    def __init__(self, run: TrainedRun, rows: Rows) -> None:
        self._run, self.rows = run, rows

    @property
    def n_documents(self) -> int:
        return len(self.rows.tokens_BS)

    @torch.no_grad()
    def losses(self, scaling: Selection) -> np.ndarray:
        """Return the loss of each document, the mean of its predictions that count [nats/token]."""
        model, device = self._run.model, next(self._run.model.parameters()).device
        length = self.rows.scored_BT.shape[1]
        n_rows, parts = max(1, PASS_TOKENS // length), []
        with model.restored():
            model.set_position(with_inference(self._run.loaded.config, rope_scaling=scaling).position)
            for tokens_BS, scored_BT in zip(*(each.to(device).split(n_rows) for each in self.rows), strict=True):
                targets_BT = tokens_BS[:, 1:].where(scored_BT, IGNORE)
                nll_BT = model.losses(tokens_BS[:, :-1], targets_BT, length=length)
                parts.append((nll_BT.double().sum(1) / scored_BT.sum(1)).cpu())
        return torch.cat(parts).numpy()
