"""Suite `recurrence`: a text read segment by segment with a memory (Transformer-XL, arXiv 1901.02860, sections 3.2, 4).

A document's predictions are made in segments of S tokens, each token read once. In every layer a segment attends to
itself and to the M hidden states before it, as they were computed when their own segment was read; M = 0: segments know
nothing of each other. With a memory as long as the text every state is that of one pass over all of it.

The points are reaches: segment and memory together. All reaches score the same predictions of the same documents.

Shape legend: B texts, T predictions, M memory, C d_model.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.perplexity import Perplexity, evaluating, summarise
from coca_train.evaluation.pages import by_length, by_point, curves, document, table, training_windows
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._documents import DocumentSuite, Prefixes, in_order
from coca_train.models.memory import Memory
from coca_train.models.transformer import Transformer
from coca_train.report.blocks import Document, Value


def recurrent_nll(
    model: Transformer, documents: Sequence[np.ndarray], length: int, segment: int, memory_len: int
) -> np.ndarray:
    """Return the NLL [nats] of the first `length` predictions of documents with more tokens than that, nll_BT in
    float64.

    segment, memory_len: S and M [tokens].
    """
    weight = model.embed.weight
    tokens_BT = torch.from_numpy(np.stack([d[: length + 1] for d in documents]).astype(np.int64)).to(weight.device)
    n_texts, parts = len(documents), []
    memory = None
    if memory_len:
        empty_BMC = weight.new_zeros(n_texts, memory_len, weight.shape[1])
        memory = Memory([empty_BMC] * len(model.blocks), torch.zeros(n_texts, dtype=torch.long, device=weight.device))
    with evaluating(model):
        for begin in range(0, length, segment):
            end = min(begin + segment, length)
            pos_BT = torch.arange(begin, end, device=weight.device).expand(n_texts, -1)
            reach = memory_len + segment
            x_BTC = model.hidden(tokens_BT[:, begin:end], pos_BT=pos_BT, length=reach, memory=memory)
            parts.append(model.nll(x_BTC, tokens_BT[:, begin + 1 : end + 1]))
            if memory is not None:
                memory = Memory(memory.new, (memory.length_B + end - begin).clamp(max=memory_len))
    return torch.cat(parts, 1).double().cpu().numpy()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Perplexity by memory."""

    suite: Literal["recurrence"]
    segment: Positive | None = Field(description="length of a segment [tokens]; null: the training window")
    document_tokens: Positive = Field(description="predictions of each document [tokens]")


ABOUT = (
    "Documents are read in segments, one after the other, every token once. Each layer attends to the segment and to "
    "the hidden states of the memory before it, which stay as they were computed (Transformer-XL, section 3.2). A "
    "reach is segment and memory together; a reach of one segment is no memory. Perplexity by sliding windows, which "
    "remember nothing, is the suite perplexity."
)


class Part(TypedDict):
    """Of one document. nll: of all its predictions [nats]. segment, trained (with what memory): [tokens]."""

    nll: float
    segment: int
    trained: int


class Result(Perplexity):
    """segment, memory, trained (with what memory): [tokens]."""

    segment: int
    memory: int
    trained: int


class Evaluator(DocumentSuite[Settings, Part, Result]):
    """Perplexity by memory."""

    VERSION = 1
    LENGTHS_FROM = "eval.document_tokens"

    def length(self, point: Point) -> int:
        return self.settings.document_tokens

    def impossible(self, subject: Subject, point: Point, material: Prefixes) -> str:
        position, segment = subject.model.position, self.settings.segment or subject.training_window
        if not position.memory_len:
            return f"{position.settings.scheme} was trained without a memory of the text before (position.memory_len)"
        for attention_pattern in subject.model.attention_patterns.values():
            keep = attention_pattern.keep()
            if keep is not None and keep.first:
                name = attention_pattern.settings.name
                return f"{name} looks back to the first tokens of a text, and a memory holds the last"
        if int(point) < segment:
            return f"a segment alone has {segment:,} tokens"
        return super().impossible(subject, point, material)

    def measure(self, subject: Subject, point: Point, material: Prefixes, setup: Setup) -> dict[str, Part]:
        length, parts = self.settings.document_tokens, dict[str, Part]()
        segment, trained = self.settings.segment or subject.training_window, subject.model.position.memory_len
        for batch in material.share(length, setup):
            texts = [material.texts[i] for i in batch]
            nll_BT = recurrent_nll(subject.model, texts, length, segment, int(point) - segment)
            for i, nll_T in zip(batch, nll_BT, strict=True):
                parts[str(i)] = {"nll": float(nll_T.sum()), "segment": segment, "trained": trained}
        return parts

    def combine(self, point: Point, material: Prefixes, parts: Mapping[str, Part]) -> Result:
        documents = in_order(parts)
        sums = summarise(np.array([(each["nll"], self.settings.document_tokens) for each in documents]))
        segment, trained = documents[0]["segment"], documents[0]["trained"]
        return {**sums, "segment": segment, "memory": int(point) - segment, "trained": trained}

    def page(self, evaluation: Evaluation[Result]) -> Document:
        """Return the document; models without a memory appear with the reason."""
        rows = evaluation.rows()
        return document(
            evaluation,
            "Perplexity with a memory",
            summary=[
                f"{row.label}: perplexity {value.text}{f' ({value.range})' if value.range else ''} with a memory of "
                f"{last['memory']:,} tokens before segments of {last['segment']:,} (trained with "
                f"{last['trained']:,})."
                for row in rows
                if (last := row.last)
                for value in [_perplexity(last)]
            ],
            sections={
                "By reach": [
                    ABOUT,
                    table(
                        rows,
                        by_point(evaluation.points, _perplexity),
                        name="recurrence",
                        title="Perplexity by reach, segment and memory together [tokens]",
                        best="low",
                        of_tokens=True,
                    ),
                    curves(
                        by_length(rows, _perplexity),
                        name="recurrence-curves",
                        title="Perplexity by reach",
                        x_label="reach [tokens]",
                        y_label="perplexity",
                        x_log=True,
                        marks=training_windows(evaluation),
                    ),
                ]
            },
        )


def _perplexity(result: Result) -> Value:
    low, high, n = result["ci_low"], result["ci_high"], result["n_documents"]
    return Value.of(result["perplexity"], note=f"memory {result['memory']:,}", low=low, high=high, n=n)
