"""What a run leaves for its reader: loss curve, extrapolation report, comparison of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coca_train.evaluation.extrapolation.comparison_figures import (
    cost_picture,
    curve,
    perplexity_pictures,
    position_picture,
)
from coca_train.evaluation.extrapolation.measure import Extrapolation
from coca_train.evaluation.extrapolation.tables import (
    absences,
    extrapolation_page,
    extrapolation_table,
    label,
    perplexity,
    window_header,
)
from coca_train.report.figures import DASHES, loss_figure, perplexity_figure
from coca_train.runtime.durable import read_json, write_json, write_text
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import markdown
from coca_train.tracking.writers import read_jsonl


def write_extrapolation(result: Extrapolation, directory: Path) -> dict[str, Path]:
    """extrapolation.json, .md and .png in `directory`; returns their paths by kind.

    The picture has every text and variant, or, of more variants than there are line styles, all texts together.
    """
    paths = {kind: directory / f"extrapolation.{kind}" for kind in ("json", "md", "png")}
    write_json(paths["json"], result.to_json())
    write_text(paths["md"], extrapolation_page(result))
    banded = (result.sources[-1], result.variants[0])  # one band: more of them hide the lines
    few = len(result.variants) <= len(DASHES)
    curves = [
        curve(
            result,
            source,
            name,
            f"{source}, {name}" if few else name,
            colour if few else dash,
            dash if few else None,
            band=(source, name) == banded,
        )
        for colour, source in enumerate(result.sources if few else [result.pooled])
        for dash, name in enumerate(result.variants)
        if result.scored(name)
    ]
    sample = result.sample(banded[0])
    perplexity_figure(
        paths["png"],
        curves,
        result.training_window,
        f"{result.run} ({result.scheme}): perplexity beyond the training window",
        f"{sample.n_documents} held-out documents, {sample.n_tokens:,} predictions, the same at every window; "
        f"stride {result.stride}; band of {', '.join(banded)}: 95 % over documents",
    )
    return paths


def read_extrapolation(path: Path) -> Extrapolation:
    """Raises DataError when the file is damaged, or another version of coca_train wrote it."""
    try:
        return Extrapolation.from_json(read_json(path))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"E-REPORT-02 report {path}: not an extrapolation report of this version of coca_train "
            f"({type(error).__name__}: {error}). Fix: start the run's own command again, which writes the report anew"
        ) from error


def write_loss_curve(run_dir: Path, title: str) -> Path:
    """loss_curve.png from the run's metrics.jsonl."""
    records = read_jsonl(run_dir / "metrics.jsonl")
    losses = [r for r in records if r.get("loss") is not None]
    last = losses[-1] if losses else None
    subtitle = f"{last['step']:,} steps, last training loss {last['loss']:.3f}" if last else "no steps yet"
    path = run_dir / "loss_curve.png"
    loss_figure(path, records, f"{title}: loss", subtitle)
    return path


def write_comparison(
    results: Mapping[str, Extrapolation], facts: Mapping[str, Mapping[str, Any]], directory: Path, checks: Sequence[str]
) -> tuple[str, dict[str, Path]]:
    """comparison.json, .md and pictures of several runs; returns the tables and the paths by kind.

    results: extrapolation report by scheme, all over the same text and windows. facts: by scheme, what
    report.comparison.facts_of gives; all of it is kept in the JSON. checks: what was verified to be the
    same for all runs, in words.
    """
    first = next(iter(results.values()))
    sample = first.sample(first.pooled)
    setting = (
        f"training window {first.training_window}; {sample.n_documents} held-out documents ({first.pooled}), "
        f"{sample.n_tokens:,} predictions; stride {first.stride}"
    )
    paths = perplexity_pictures(results, setting, directory)
    paths |= position_picture(results, directory) | cost_picture(facts, directory)
    paths["tables"], paths["numbers"] = directory / "comparison.md", directory / "comparison.json"
    write_json(
        paths["numbers"],
        {"checks": list(checks), "runs": {s: {**facts[s], "extrapolation": r.to_json()} for s, r in results.items()}},
    )
    table = perplexity_table(results) + "\n" + training_table(facts)
    notes = [
        f"* {label(scheme, result, name)}{windows}: {reason}"
        for scheme, result in results.items()
        for name, windows, reason in absences(result)
    ]
    if notes:
        table += "\n" + "\n".join(["Not scored:\n", *notes]) + "\n"
    lines = ["# Perplexity by context window\n", setting.capitalize() + ".\n", *(f"* {c}" for c in checks), "", table]
    lines += ["With 95 % intervals, bootstrap over documents (most of it is what all schemes share: some documents are"]
    lines += ["harder than others):\n", perplexity_table(results, interval=True)]
    write_text(paths["tables"], "\n".join(lines))
    return table, paths


def text_of(result: Extrapolation) -> str:
    """The report for the terminal: a line on what it is, the table, what was not scored."""
    notes = "".join(f"not scored: {name}{windows}: {reason}\n" for name, windows, reason in absences(result))
    return (
        f"Perplexity by context window [tokens]; trained with {result.training_window}; the same "
        f"{result.sample(result.pooled).n_tokens:,} held-out tokens in every column\n\n"
        f"{extrapolation_table(result)}{notes}"
    )


def perplexity_table(results: Mapping[str, Extrapolation], interval: bool = False) -> str:
    """Rows: scheme and variant; columns: perplexity by window."""
    first = next(iter(results.values()))
    rows = [
        [
            label(scheme, result, name),
            *(perplexity(result.find(result.pooled, name, w), interval) for w in first.windows),
        ]
        for scheme, result in results.items()
        for name in result.variants
    ]
    return markdown(["position", *window_header(first.windows, first.training_window)], rows)


def training_table(facts: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows: schemes; columns: size, losses [nats per token], time of a step and peak memory, and their ratio to the
    first scheme's."""
    texts = list(dict.fromkeys(key for fact in facts.values() for key in fact if key.startswith("valid/")))
    first = next(iter(facts.values()))
    rows = [
        [
            scheme,
            f"{fact['parameters']:,}",
            *("-" if (loss := fact.get(key)) is None else f"{loss:.3f}" for key in ("loss", *texts)),
            _relative(fact.get("ms_per_step"), first.get("ms_per_step")),
            _relative(fact.get("peak_memory_mib"), first.get("peak_memory_mib")),
        ]
        for scheme, fact in facts.items()
    ]
    return markdown(["position", "parameters", "train loss", *texts, "ms a step", "peak memory [MiB]"], rows)


def _relative(value: float | None, first: float | None) -> str:
    """A number and its ratio to the first one."""
    if value is None:
        return "-"
    return f"{value:,.0f} ({value / first:.2f}x)" if first else f"{value:,.0f}"
