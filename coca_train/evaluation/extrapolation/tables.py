"""Markdown tables that also read well in a terminal."""

import math
from collections.abc import Sequence

from coca_train.evaluation.extrapolation.measure import Extrapolation
from coca_train.evaluation.measures.perplexity import Perplexity
from coca_train.runtime.printing import markdown

ABSENT = "–"  # a cell that cannot be scored; the report says why


def number(value: float | None) -> str:
    """About four significant digits; '-' for what is not known."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def perplexity(result: Perplexity | None, interval: bool) -> str:
    """The perplexity, with its 95 % interval where there is one."""
    if result is None:
        return ABSENT
    if not interval or result.ci_low is None:
        return number(result.perplexity)
    return f"{number(result.perplexity)} [{number(result.ci_low)}, {number(result.ci_high)}]"


def label(run: str, result: Extrapolation, variant: str) -> str:
    """A run's name for what it was trained with, the run and the variant for what was exchanged afterwards."""
    return run if variant == result.variants[0] else f"{run} + {variant}"


def window_header(windows: Sequence[int], training_window: int) -> list[str]:
    return [f"{w} ({w / training_window:g}x)" for w in windows]


def extrapolation_table(result: Extrapolation, interval: bool = False) -> str:
    """Rows: text and variant; columns: windows [tokens] and their multiple of the training window."""
    rows = [
        [source, name, *(perplexity(result.find(source, name, w), interval) for w in result.windows)]
        for source in result.sources
        for name in result.variants
    ]
    return markdown(["text", "variant", *window_header(result.windows, result.training_window)], rows, n_left=2)


def absences(result: Extrapolation) -> list[tuple[str, str, str]]:
    """What was not scored, a line for each variant and reason: (variant, windows in words, reason)."""
    found: dict[tuple[str, str], list[str]] = {}
    for absent in result.absent:
        windows = found.setdefault((absent.variant, absent.reason), [])
        windows += [] if absent.window is None else [f"{absent.window:,}"]
    return [(name, " at " + ", ".join(ws) if ws else "", reason) for (name, reason), ws in found.items()]


def extrapolation_page(result: Extrapolation) -> str:
    """The whole report as Markdown: what was measured and how, perplexities with intervals, bits."""
    samples = [(source, result.sample(source)) for source in result.sources]
    texts = ", ".join(f"{source}: {p.n_documents} documents, {p.n_tokens:,} predictions" for source, p in samples)
    bits = [
        [source, name, *(_bits(result.find(source, name, w)) for w in result.windows)]
        for source in result.sources
        for name in result.variants
    ]
    header = ["text", "variant", *window_header(result.windows, result.training_window)]
    left_out = [f"* {name}{windows}: {reason}" for name, windows, reason in absences(result)]
    return "\n".join(
        [
            f"# Perplexity beyond the training window: {result.run} ({result.scheme})\n",
            f"Trained with windows of {result.training_window} tokens. Held-out text ({texts}), each document cut to "
            f"{result.document_tokens:,} tokens. Sliding windows with stride {result.stride}: every window length "
            f"scores the same tokens once, later windows only what no earlier one scored; positions start at 0 in each "
            f"window; dynamic frequencies see the window's length. NLL in float32. In brackets: 95 % interval, "
            f"bootstrap over documents (seed {result.seed}).\n",
            "## Perplexity\n",
            extrapolation_table(result, interval=True),
            *(["Not scored:\n", *left_out, ""] if left_out else []),
            "## Bits per token / bits per byte\n",
            markdown(header, bits, n_left=2),
        ]
    )


def _bits(result: Perplexity | None) -> str:
    if result is None:
        return ABSENT
    per_byte = "-" if result.bits_per_byte is None else f"{result.bits_per_byte:.3f}"
    return f"{result.bits_per_token:.3f} / {per_byte}"
