"""A tiny model whose tokens are bytes, and a cell measured as the grid does it: for suites that ask and score."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from coca_train.config.schema import Config
from coca_train.evaluation.results import Cell, Evaluation, Measured
from coca_train.evaluation.subject import Around, Subject
from coca_train.evaluation.variants import Variant
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist
from coca_train.settings import load

WINDOW = 300
SHAPE = ["model.d_model=16", "model.n_heads=2", "model.d_ff=32", "model.n_layers=1", f"train.seq_len={WINDOW}"]


class Bytes:
    """Token n is the byte n; 0 ends a text, 1 begins one."""

    eod, bos = 0, 1

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(token for token in tokens if token > 1).decode(errors="replace")


@cache
def composed(position: str) -> Config:
    return load([f"position={position}", *SHAPE]).config


def subject(position: str = "rope", kind: str = "run") -> Subject:
    config = composed(position)
    model = Transformer(config.model, config.position, config.visibility, vocab_size=256, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=1)
    return Subject(
        facts=measured(position, kind=kind),
        path=Path("nowhere"),
        model=model.eval(),
        tokenizer=Bytes(),  # type: ignore[arg-type]
        variants={"plain": Variant(config.position, config.visibility)},
    )


def measured(name: str, variants: tuple[str, ...] = ("plain",), window: int = WINDOW, kind: str = "run") -> Measured:
    return Measured(
        name=name, path=name, kind=kind, scheme=name, training_window=window, n_parameters=1, step=1, weights="",
        variants=variants,
    )  # fmt: skip


def around(*points: Any, seed: int = 0, micro_batch_tokens: int = 4000, texts: Any = None) -> Around:
    return Around(
        points=points,
        texts=lambda: {"books": texts or []},
        max_documents=100,
        seed=seed,
        micro_batch_tokens=micro_batch_tokens,
    )


def parrot(monkeypatch, suite: Any, answer: Any) -> None:
    """The model's part replaced: answer(prompt's text) is what it says; batches and ranks stay as they are."""
    monkeypatch.setattr(suite, "answers", lambda subject, prompts, length, n, around: [
        (i, answer(subject.tokenizer.decode(list(prompt)))) for i, prompt in enumerate(prompts)
    ])  # fmt: skip


def cell(suite: Any, settings: Any, who: Subject, point: Any, about: Around, n_ranks: int = 1, monkeypatch=None) -> Any:
    """The result of one cell, its parts as JSON gives them back."""
    material, parts = suite.prepare(settings, who, about), []
    for rank in range(n_ranks):
        if monkeypatch is not None:
            monkeypatch.setattr(dist, "rank", lambda rank=rank: rank)
            monkeypatch.setattr(dist, "world_size", lambda: n_ranks)
        parts.append(json.loads(json.dumps(suite.measure(settings, who, point, material, about))))
    result = suite.combine(settings, point, material, parts)
    assert json.loads(json.dumps(result)) == result
    return result


def evaluation(suite: str, settings: Any, subjects: list[Measured], points: tuple, cells: list[Cell]) -> Evaluation:
    return Evaluation(
        suite=suite, name=suite, settings=settings, subjects=subjects, points=points, cells=cells,
        facts=(("computed on", "a test"),), command="python -m coca_train evaluate",
    )  # fmt: skip
