"""The page of a sweep: what each of its trainings came to, by the last of its metrics.

A training has one loss on its held-out text and no interval of it, so the page says whose is the lowest and no more;
which difference is more than luck is for `compare` to say, by the documents of the runs' own reports.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coca_train.evaluation.grid_blocks import FEW_NAMES, Sections, curves, file_names, written
from coca_train.report.blocks import MISSING, Document, Line, Lines, Row, Table, Value

VALID = "valid/"
LOSS = "{:.4f}"
NOTE = (
    "Losses in nats per token: the last that was logged of the training, and the last validation. A dash: not measured."
)
DOUBT = "Each is one figure of one training: `compare` says which differences outlast documents, and seeds."


@dataclass(frozen=True, kw_only=True)
class Swept:
    """One training. point: what it sets differently from the others, option -> value. records: of its metrics.jsonl.
    ended: how; "" where that is not known."""

    name: str
    point: Mapping[str, str]
    records: Sequence[Mapping[str, Any]]
    ended: str = ""

    @cached_property
    def last(self) -> dict[str, Any]:
        """The last of everything."""
        return {key: value for record in self.records for key, value in record.items()}

    @property
    def label(self) -> str:
        """ "rope", or "position=rope, optim.lr=1e-3"."""
        pairs = list(self.point.items())
        return pairs[0][1] if len(pairs) == 1 else ", ".join(f"{key}={value}" for key, value in pairs) or self.name


def sweep_page(runs: Sequence[Swept], command: str, comparing: str) -> Document:
    """command: of the sweep. comparing: that of a comparison of its finished runs; "" without two of them."""
    options, texts = _options(runs), _texts(runs)
    files = file_names(texts)
    named = ": " + ", ".join(run.label for run in runs) if len(options) == 1 and len(runs) <= FEW_NAMES else ""
    sections: Sections = {
        "Held-out loss": [_curves(runs, text, files[text]) for text in texts],
        "Results": [results(runs)],
        "Compare them": [f"{DOUBT}\n\n`{comparing}`" if comparing else ""],
    }
    return Document(
        title=f"Sweep of {', '.join(options)}{named or f': {len(runs)} runs'}",
        finding=_finding(runs, texts),
        summary=(),
        sections=written(sections),
        facts=[("trainings", str(len(runs))), ("swept", ", ".join(options))],
        command=command,
    )


def results(runs: Sequence[Swept]) -> Table:
    """A row for each training: its point of the sweep, its last step, losses, and the perplexities of validations."""
    options = _options(runs)
    columns = list(dict.fromkeys(column for run in runs for column in _measured(run)))
    ended = any(run.ended for run in runs)
    return Table(
        name="results",
        title="What each training came to",
        label_columns=(*options, "run"),
        columns=(*columns, *(["ended"] if ended else [])),
        rows=tuple(
            Row(
                label=(*(run.point.get(option, MISSING.text) for option in options), run.name),
                values=(
                    *(_measured(run).get(column, MISSING) for column in columns),
                    *([Value(run.ended)] if ended else []),
                ),
            )
            for run in runs
        ),
        note=NOTE,
    )


def _options(runs: Sequence[Swept]) -> list[str]:
    return list(dict.fromkeys(option for run in runs for option in run.point))


def _texts(runs: Sequence[Swept]) -> list[str]:
    """The held-out texts that anything was validated on."""
    return sorted({key.removeprefix(VALID) for run in runs for key in run.last if key.startswith(VALID)})


def _measured(run: Swept) -> dict[str, Value]:
    """By column; nothing of a training that has not begun."""
    if not run.last:
        return {}
    cells = {"step": Value.of(run.last["step"], "{:,}"), "loss": Value.of(run.last.get("loss"), LOSS)}
    losses = {text: run.last[VALID + text] for text in _texts([run])}
    perplexities = {text: None if loss is None else math.exp(loss) for text, loss in losses.items()}
    cells |= {f"validation {text}": Value.of(loss, LOSS) for text, loss in losses.items()}
    return cells | {f"perplexity {text}": Value.of(each, "{:.4g}") for text, each in perplexities.items()}


def _finding(runs: Sequence[Swept], texts: Sequence[str]) -> list[str]:
    """Whose held-out losses are the lowest; nothing of fewer than two."""
    lowest: dict[str, list[str]] = {}
    for text in texts:
        known = [(run.last[VALID + text], run) for run in runs if run.last.get(VALID + text) is not None]
        if len(known) > 1:
            loss, best = min(known, key=lambda each: each[0])
            lowest.setdefault(best.label, []).append(f"{loss:.3f} on {text}")
    if not lowest:
        return []
    said = "; ".join(f"{label}, {' and '.join(losses)}" for label, losses in lowest.items())
    return [f"Lowest held-out loss: {said} (nats a token, {len(runs)} runs)."]


def _curves(runs: Sequence[Swept], text: str, file: str) -> Lines | None:
    key = VALID + text
    points = ([(record["step"], record[key]) for record in run.records if key in record] for run in runs)
    return curves(
        (Line.through(run.label, each) for run, each in zip(runs, points, strict=True)),
        name=f"held-out-{file}",
        title=f"Held-out loss: {text}",
        alt=f"Loss on held-out {text} against the optimizer step, a curve for each training.",
        x_label="optimizer step",
        y_label="loss [nats per token]",
    )
