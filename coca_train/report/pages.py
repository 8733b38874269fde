"""What a run leaves for its reader: loss curve, extrapolation report, comparison of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coca_train.evals.extrapolation import ALL, Extrapolation
from coca_train.report.figures import Curve, loss_figure, perplexity_figure
from coca_train.report.files import read_json, write_json, write_text
from coca_train.report.tables import (
    extrapolation_page,
    extrapolation_table,
    markdown,
    number,
    perplexity,
    window_header,
)
from coca_train.sinks import read_jsonl


def write_extrapolation(result: Extrapolation, directory: Path) -> dict[str, Path]:
    """extrapolation.json, .md and .png in `directory`; returns their paths by kind."""
    paths = {kind: directory / f"extrapolation.{kind}" for kind in ("json", "md", "png")}
    write_json(paths["json"], result.to_json())
    write_text(paths["md"], extrapolation_page(result))
    banded = (result.sources[-1], result.frequencies[0])  # one band: more of them hide the lines
    curves = [
        curve(result, source, name, f"{source}, {name}", colour, dash, band=(source, name) == banded)
        for colour, source in enumerate(result.sources)
        for dash, name in enumerate(result.frequencies)
    ]
    first = result.cell(*banded, result.windows[0])
    perplexity_figure(
        paths["png"],
        curves,
        result.training_window,
        f"{result.run} ({result.scheme}): perplexity beyond the training window",
        f"{first.n_documents} held-out documents, {first.n_tokens:,} predictions, the same at every window; "
        f"stride {result.stride}; band of {', '.join(banded)}: 95 % over documents",
    )
    return paths


def read_extrapolation(path: Path) -> Extrapolation:
    return Extrapolation.from_json(read_json(path))


def curve(
    result: Extrapolation, source: str, frequencies: str, label: str, colour: int, dash: int, band: bool = True
) -> Curve:
    cells = [result.cell(source, frequencies, w) for w in result.windows]
    return Curve(
        label=label,
        windows=result.windows,
        perplexity=[c.perplexity for c in cells],
        low=[c.ci_low for c in cells] if band else None,
        high=[c.ci_high for c in cells] if band else None,
        colour=colour,
        dash=dash,
    )


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
    """comparison.json, .md and .png of several runs; returns the table and the paths.

    results: extrapolation report by scheme, all over the same text and windows. facts: by scheme, loss
    [nats per token], tokens_per_s and what else is to be kept in the JSON. checks: what was verified to
    be the same for all runs, in words.
    """
    paths = {kind: directory / f"comparison.{kind}" for kind in ("json", "md", "png")}
    table = comparison_table(results, facts)
    first = next(iter(results.values()))
    source = pooled(first)
    sample = first.cell(source, first.frequencies[0], first.windows[0])
    setting = (
        f"training window {first.training_window}; {sample.n_documents} held-out documents ({source}), "
        f"{sample.n_tokens:,} predictions; stride {first.stride}"
    )
    write_json(
        paths["json"],
        {"checks": list(checks), "runs": {s: {**facts[s], "extrapolation": r.to_json()} for s, r in results.items()}},
    )
    lines = ["# Perplexity by context window\n", setting.capitalize() + ".\n", *(f"* {c}" for c in checks), "", table]
    lines += ["With 95 % intervals, bootstrap over documents (most of it is what all schemes share: some documents are"]
    lines += ["harder than others):\n", comparison_table(results, facts, interval=True)]
    write_text(paths["md"], "\n".join(lines))
    curves = [
        curve(result, source, name, label(scheme, name), colour, dash, band=False)
        for colour, (scheme, result) in enumerate(results.items())
        for dash, name in enumerate(result.frequencies)
    ]
    perplexity_figure(paths["png"], curves, first.training_window, "Perplexity by context window", setting)
    return table, paths


def text_of(result: Extrapolation) -> str:
    """The report for the terminal: a line on what it is, then the table."""
    return (
        f"Perplexity by context window [tokens]; trained with {result.training_window}; the same "
        f"{result.cell(pooled(result), result.frequencies[0], result.windows[0]).n_tokens:,} held-out tokens in "
        f"every column\n\n{extrapolation_table(result)}"
    )


def pooled(result: Extrapolation) -> str:
    """The text a comparison is about: all sources together, or the only one."""
    return ALL if ALL in result.sources else result.sources[0]


def label(scheme: str, frequencies: str) -> str:
    return scheme if frequencies == "plain" else f"{scheme} + {frequencies}"


def comparison_table(
    results: Mapping[str, Extrapolation], facts: Mapping[str, Mapping[str, Any]], interval: bool = False
) -> str:
    """Rows: scheme and frequencies; columns: perplexity by window, then loss and speed of the training."""
    first = next(iter(results.values()))
    rows = [
        [
            label(scheme, name),
            *(perplexity(result.cell(pooled(result), name, w), interval) for w in first.windows),
            number(facts[scheme].get("loss")) if name == result.frequencies[0] else "",
            f"{facts[scheme].get('tokens_per_s') or 0:,.0f}" if name == result.frequencies[0] else "",
        ]
        for scheme, result in results.items()
        for name in result.frequencies
    ]
    header = ["position", *window_header(first.windows, first.training_window), "train loss", "tokens/s"]
    return markdown(header, rows)
