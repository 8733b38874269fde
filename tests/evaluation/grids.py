"""Tiny models, cells measured as the grid does it, rank by rank and through JSON, and made-up evaluations."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from coca_train import positions
from coca_train.config.schema import ModelConfig
from coca_train.evaluation import suites
from coca_train.evaluation.results import Cell, Evaluation, Measured
from coca_train.evaluation.subject import Setup, Subject, begin_of
from coca_train.evaluation.suite import AnySuite, suite_of
from coca_train.evaluation.variants import Variant
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.report.blocks import Document, Row, Table
from coca_train.runtime import dist
from tests.models.conftest import NEOX, PLAIN
from tests.models.conftest import settings as scheme_settings

CONFIGS = Path(__file__).parents[2] / "configs" / "evaluation" / "eval"
LETTERS = SimpleNamespace(encode=lambda text: [ord(letter) % 101 for letter in text], bos=None)
ROPE = {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": PLAIN}
TINY = replace(NEOX, n_layers=1, d_model=16, n_heads=2, d_ff=32)  # for answers, token by token
WORDS = "the quick brown fox jumps over the lazy dog and runs away again. "
TEXTS = {"a": [WORDS * 2, WORDS[5:] * 2, "short"], "b": [WORDS[9:] * 3]}


class Bytes:
    """Token n is the byte n; 0 ends a text, 1 begins one."""

    eod, bos, digest = 0, 1, "bytes"

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(token for token in tokens if token > 1).decode(errors="replace")


def settings(suite: str, **changes: Any) -> Any:
    """A suite's shipped settings, with changes."""
    return suites.settings(yaml.safe_load((CONFIGS / f"{suite}.yaml").read_text())["eval"] | changes)


def measured(name: str, variants: Sequence[str] = ("plain",), window: int = 32, kind: str = "run") -> Measured:
    return Measured(
        name=name, path=f"runs/{name}", kind=kind, scheme=name, training_window=window, n_parameters=1, step=1,
        weights="", variants=tuple(variants),
    )  # fmt: skip


def subject(
    name: str, scheme: Any, rope_scaling: Sequence[dict[str, Any]] = (), *, tokenizer: Any = LETTERS,
    kind: str = "run", config: ModelConfig = NEOX,
) -> Subject:  # fmt: skip
    """A random model with a training window of 32 tokens. frequencies: the variants beside its own."""
    own, attention_pattern = scheme_settings(scheme)
    model = Transformer(config, own, attention_pattern, vocab_size=256, max_seq_len=32)
    init_weights(model, config, seed=3)
    variants = {getattr(getattr(own, "rope_scaling", None), "name", "plain"): Variant(own, attention_pattern)}
    for section in rope_scaling:
        variants[section["name"]] = Variant(positions.settings(scheme | {"rope_scaling": section}), attention_pattern)
    facts = measured(name, tuple(variants), kind=kind)
    begin = begin_of("bos" if kind == "huggingface" else "none", (), tokenizer)
    return Subject(
        facts=facts, path=Path("nowhere"), model=model.eval(), tokenizer=tokenizer, variants=variants, begin=begin
    )


@cache
def byte_subject(scheme: str = "rope", kind: str = "run") -> Subject:
    """A model whose tokens are bytes; `learned` has 300 positions."""
    section = {"rope": ROPE, "alibi": "alibi_plain", "learned": {"scheme": "learned", "max_len": 300}}[scheme]
    return subject(scheme, section, tokenizer=Bytes(), kind=kind, config=TINY)


def parrot(monkeypatch: pytest.MonkeyPatch, suite: ModuleType, answer: Callable[[str], str]) -> None:
    """The model's part replaced: answer(prompt's text) is what it answers."""

    def measure(self: Any, subject: Any, point: Any, material: Any, setup: Any) -> dict[str, str]:
        texts = [subject.tokenizer.decode(list(case.tokens)) for case in material[point]]
        mine = list(enumerate(texts))[dist.rank() :: dist.world_size()]
        return {str(i): answer(text) for i, text in mine}

    monkeypatch.setattr(suite.Evaluator, "measure", measure)


def setup(points: Sequence[Any], texts: Any = None, micro_batch_tokens: int = 256, seed: int = 5) -> Setup:
    return Setup(
        points=tuple(points), texts=lambda: texts or {}, max_documents=4, seed=seed,
        micro_batch_tokens=micro_batch_tokens,
    )  # fmt: skip


def result(
    suite: AnySuite, who: Subject, point: Any, shared: Setup, ranks: int = 1, material: Any = None
) -> dict[str, Any]:
    """Of one cell, measured by so many ranks one after the other; parts and result as JSON gives them back."""
    parts, material = {}, material or suite.prepare(who, shared)
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(ranks))
            parts |= json.loads(json.dumps(suite.measure(who, point, material, shared)))
    return json.loads(json.dumps(suite.combine(point, material, parts), allow_nan=False))


def evaluate(
    options: Any, subjects: Sequence[Subject], lengths: Sequence[int], texts: Any = None, ranks: int = 1
) -> Evaluation:
    """Every cell of the grid."""
    (suite,) = suite_of(options).parts()
    points = suite.points(lengths)
    shared, cells = setup(points, texts), []
    for who in subjects:
        material = suite.prepare(who, shared)
        for name, variant in who.variants.items():
            variant.apply_to(who.model)
            for point in points:
                if reason := suite.impossible(who, point, material):
                    cells.append(cell(who.name, name, point, reason=reason))
                else:
                    known = result(suite, who, point, shared, ranks, material)
                    cells.append(cell(who.name, name, point, known))
        next(iter(who.variants.values())).apply_to(who.model)
    return evaluation(options.suite, {}, [who.facts for who in subjects], points, cells)


def cell(name: str, variant: str, point: Any, result: Mapping[str, Any] | None = None, **absent: str) -> Cell:
    """absent: reason, and status where it is not impossible."""
    status: Any = "done" if result is not None else absent.pop("status", "impossible")
    return Cell(subject=name, variant=variant, point=point, status=status, result=result, **absent)


def evaluation(
    suite: str, options: Any, subjects: Sequence[Measured], points: Any, cells: Sequence[Cell]
) -> Evaluation:
    return Evaluation(
        suite=suite, name=suite, settings=options, subjects=tuple(subjects), points=points, cells=tuple(cells),
        facts=(("computed on", "a test"),), command="python -m coca_train evaluate",
    )  # fmt: skip


def blocks(document: Document) -> dict[str, Any]:
    """Of a report, by name, those that have one."""
    return {b.name: b for section in document.sections for b in section.blocks if hasattr(b, "name")}


def row(table: Table, *label: str) -> Row:
    """The row with this label."""
    return next(row for row in table.rows if row.label == label)
