"""Tiny models under a suite, cell by cell and rank by rank, as the runner would have them."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from coca_train import positions
from coca_train.evaluation import suites
from coca_train.evaluation.results import Cell, Evaluation, Measured
from coca_train.evaluation.subject import Around, Subject
from coca_train.evaluation.variants import Variant
from coca_train.report.blocks import Document, Lines, Row, Table
from tests.models.conftest import NEOX, build

CONFIGS = Path(__file__).parents[2] / "configs" / "evaluation" / "eval"
LETTERS = SimpleNamespace(encode=lambda text: [ord(letter) % 101 for letter in text], bos=None)


def settings(suite: str, **changes: Any) -> Any:
    """A suite's shipped settings, with changes."""
    return suites.settings(yaml.safe_load((CONFIGS / f"{suite}.yaml").read_text())["eval"] | changes)


def subject(name: str, scheme: Any, frequencies: Sequence[dict[str, Any]] = (), config: Any = NEOX) -> Subject:
    """A random model with a training window of 32 tokens. frequencies: the variants beside its own."""
    model = build(config, scheme).eval()
    own = model.position.settings
    name_of = lambda s: getattr(getattr(s, "frequencies", None), "name", "plain")  # noqa: E731
    found = {name_of(own): Variant(own, model.visibility.settings)}
    for section in frequencies:
        other = positions.settings(scheme | {"frequencies": section})
        found[section["name"]] = Variant(other, model.visibility.settings)
    facts = Measured(
        name=name,
        path="runs/x",
        kind="run",
        scheme=own.scheme,
        training_window=32,
        n_parameters=1,
        step=1,
        weights="",
        variants=tuple(found),
    )
    return Subject(facts=facts, path=Path("runs/x"), model=model, tokenizer=LETTERS, variants=found)  # type: ignore[arg-type]


def around(points: Sequence[Any], texts: dict[str, list[str]], micro_batch_tokens: int = 256) -> Around:
    return Around(
        points=tuple(points), texts=lambda: texts, max_documents=4, seed=5, micro_batch_tokens=micro_batch_tokens
    )


def evaluate(
    options: Any, subjects: Sequence[Subject], lengths: Sequence[int], texts: Any, monkeypatch: Any, ranks: int = 1
) -> Evaluation:
    """Every cell, measured by so many ranks one after the other, through JSON as between processes."""
    module = suites.suite_module(options.suite)
    points = module.points(options, lengths)
    known, cells = around(points, texts), []
    for each in subjects:
        material = module.prepare(options, each, known)
        for name, variant in each.variants.items():
            variant.put_on(each.model)
            for point in points:
                if reason := module.impossible(options, each, point, material):
                    cells.append(Cell(subject=each.name, variant=name, point=point, status="impossible", reason=reason))
                    continue
                parts = []
                for rank in range(ranks):
                    monkeypatch.setenv("RANK", str(rank))
                    monkeypatch.setenv("WORLD_SIZE", str(ranks))
                    parts.append(json.loads(json.dumps(module.measure(options, each, point, material, known))))
                monkeypatch.setenv("RANK", "0")
                monkeypatch.setenv("WORLD_SIZE", "1")
                result = json.loads(json.dumps(module.combine(options, point, material, parts), allow_nan=False))
                cells.append(Cell(subject=each.name, variant=name, point=point, status="done", result=result))
        next(iter(each.variants.values())).put_on(each.model)
    return Evaluation(
        suite=options.suite,
        name="e",
        settings={},
        subjects=tuple(each.facts for each in subjects),
        points=points,
        cells=tuple(cells),
        facts=(),
        command="python -m coca_train evaluate",
    )


def tables(document: Document) -> dict[str, Table]:
    """The tables of a report, by name."""
    return {b.name: b for section in document.sections for b in section.blocks if isinstance(b, Table)}


def lines(document: Document) -> dict[str, Lines]:
    """The curves of a report, by name."""
    return {b.name: b for section in document.sections for b in section.blocks if isinstance(b, Lines)}


def row(table: Table, *label: str) -> Row:
    """The row with this label."""
    return next(row for row in table.rows if row.label == label)
