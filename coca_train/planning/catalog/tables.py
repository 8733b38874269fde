"""The five tables, for a terminal and for docs/: the same columns, the same cells, and what the columns mean."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coca_train.config.messages import show
from coca_train.planning.catalog.entries import Entry, entries, schedules
from coca_train.planning.catalog.facts import (
    FAR,
    FARTHEST,
    LONG,
    SHORT,
    STRETCH,
    FrequencyFacts,
    SchemeFacts,
    VisibilityFacts,
    frequency_facts,
    visibility_facts,
)
from coca_train.planning.catalog.reference import ReferenceModel
from coca_train.runtime.trees import flatten

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column: its title, how wide it may be on a terminal, and what stands in it."""

    title: str
    width: int
    cell: Callable[[T], str]
    right: bool = False
    markdown: Callable[[T], str] | None = None  # what stands in it in docs/, if that is something else


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A table: of what, how one of it is chosen, its columns and rows, and what the columns mean."""

    title: str
    choice: str
    columns: Sequence[Column[T]]
    rows: Sequence[T]
    notes: Sequence[str]


def terminal(columns: Sequence[Column[T]], rows: Sequence[T]) -> str:
    """Aligned columns; cells and titles that are too long take several lines, and line up."""
    table = [[column.title for column in columns], *([column.cell(row) for column in columns] for row in rows)]
    wrapped = [[_lines(cell, column.width) for cell, column in zip(row, columns, strict=True)] for row in table]
    widths = [max(len(part) for line in wrapped for part in line[i]) for i in range(len(columns))]
    lines = []
    for number, line in enumerate(wrapped):
        for depth in range(max(len(cell) for cell in line)):
            parts = [cell[depth] if depth < len(cell) else "" for cell in line]
            padded = (p.rjust(w) if c.right else p.ljust(w) for p, w, c in zip(parts, widths, columns, strict=True))
            lines.append("  ".join(padded).rstrip())
        if number == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def markdown(columns: Sequence[Column[T]], rows: Sequence[T]) -> str:
    """A Markdown table."""
    lines = [[c.title.replace("- ", "") for c in columns], ["--:" if c.right else "---" for c in columns]]
    lines += [[(c.markdown or c.cell)(row).replace("|", "\\|") for c in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def signed(count: int) -> str:
    """A number of parameters, short: +66.6k."""
    if abs(count) < 10_000:
        return f"{count:+,}" if count else "0"
    unit, letter = (1e6, "M") if abs(count) >= 999_500 else (1e3, "k")
    return f"{count / unit:+.3g}{letter}"


def path(kernels: tuple[str, str]) -> str:
    """Kernels of a short and a long window."""
    return "/".join(dict.fromkeys(kernels))


def growth(facts: SchemeFacts, rope: SchemeFacts) -> str:
    """Numbers held per token over those of RoPE, and a note when they do not grow like T."""
    power = "" if round(facts.growth, 1) == 1.0 else f" T^{facts.growth - 1:.1f}"
    return f"{facts.numbers / rope.numbers:.2f}{power}"


def some(chosen: Sequence[str], offered: Sequence[str]) -> str:
    """Which of the names on offer: all, all but a few, or those."""
    missing = [name for name in offered if name not in chosen]
    if not missing:
        return f"all {len(offered)}"
    if not chosen:
        return "–"
    return f"all but {', '.join(missing)}" if len(missing) < len(chosen) else ", ".join(chosen)


def yes(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"


def cited(entry: Entry) -> str:
    """A source as a Markdown link."""
    return f"[{entry.source}]({entry.link})" if entry.link else "–"


def fits(facts: SchemeFacts) -> list[str]:
    """Visibilities that go with a scheme."""
    return [name for name, problem in facts.visibilities.items() if not problem]


def scheme_columns(rope: SchemeFacts) -> list[Column[SchemeFacts]]:
    """What is told of a scheme, some of it over what RoPE costs."""
    return [
        Column("scheme", 14, lambda f: f.entry.name, markdown=lambda f: f"[`{f.entry.name}`](#{f.entry.name})"),
        Column("rela- tive", 5, lambda f: yes(f.relative)),
        Column("para- meters", 6, lambda f: signed(f.n_parameters), right=True),
        Column("path on CPU", 12, lambda f: path(f.paths["cpu"])),
        Column("path on CUDA", 12, lambda f: path(f.paths["cuda"])),
        Column("cost ×T²", 4, lambda f: f"{f.products / rope.products:.2f}", right=True),
        Column("mem. ×T", 4, lambda f: growth(f, rope), right=True),
        Column("cache ×T", 5, lambda f: f"{f.cached / rope.cached:.2f}", right=True),
        Column("max. window", 6, lambda f: f"{f.reach:,}" if f.reach else "any", right=True),
        Column("fre- quen- cies", 6, lambda f: f"all {len(f.frequencies)}" if f.frequencies else "–"),
        Column("visi- bilities", 14, lambda f: some(fits(f), list(f.visibilities))),
        Column("source", 10, lambda f: f.entry.source or "–", markdown=lambda f: cited(f.entry)),
    ]


def schemes(given: ReferenceModel, table: Mapping[str, SchemeFacts]) -> Listing[SchemeFacts]:
    """One row for each choice of configs/position."""
    notes = [
        f"parameters: of the whole {given.name}, trained with windows of {given.seq_len:,}, above those of `nope`",
        f"path: the kernel that is chosen in bfloat16 for {SHORT:,} tokens, and behind the slash for {LONG:,} where "
        "that is another one. blocked: tile by tile, memory O(T·block); sdpa: torch's fused kernel, O(T·D); flex: "
        "FlexAttention, compiled, O(T·D). In float32 the CPU takes sdpa wherever a scheme adds nothing to the scores",
        "alibi asks the device whether to fold its bias into q and k: its CUDA column is that of `fold: always`, which "
        "is what `auto` does there",
        "cost: multiply-adds per pair of tokens over those of rope, of matrix products (of a hook too); what is seen "
        "decides on the number of pairs. mem.: "
        "numbers per token that a layer hands to the kernel over those of rope. Both are taken from the tensors "
        f"themselves at {LONG:,} tokens; where the numbers grow faster or slower than T, the power is shown. cache: "
        "numbers that a token leaves in the cache of a layer, over those of rope",
        f"max. window: the longest one that is not refused, tried in bfloat16 up to {FARTHEST:,} tokens; any: no end "
        "was found",
        "visibilities: with windows shorter than the training window",
    ]
    return Listing("Schemes", "position=<scheme>", scheme_columns(table["rope"]), list(table.values()), notes)


def frequencies(given: ReferenceModel) -> Listing[FrequencyFacts]:
    """One row for each choice of configs/position/frequencies."""
    columns: list[Column[FrequencyFacts]] = [
        Column("frequencies", 20, lambda f: f.entry.name, markdown=lambda f: f"`{f.entry.name}`"),
        Column("what they are", 36, lambda f: f.entry.title),
        Column("kind", 7, lambda f: f.kind),
        Column("theta", 9, lambda f: f"{f.theta:,.0f}", right=True),
        Column("wavelengths", 18, lambda f: " / ".join(f"{s:.3g}" for s in f.stretch)),
        Column("tempe- rature", 6, lambda f: f"{f.temperature:.3f}", right=True),
        Column("source", 10, lambda f: f.entry.source or "–", markdown=lambda f: cited(f.entry)),
    ]
    rows = [frequency_facts(entry, given) for entry in entries("position/frequencies").values()]
    notes = [
        "wavelengths: those of the fastest pair / a quarter of the way to the slowest / the slowest, at "
        f"{STRETCH} training windows ({STRETCH * given.seq_len:,} tokens), over those of plain frequencies with the "
        "same theta; the factors are those of configs/position/frequencies",
        "kind: dynamic follows the length in hand and changes no frequency up to the training window; learned has "
        "parameters (shown as they start)",
        f"temperature: multiplied into both q' and k', at {STRETCH} training windows",
    ]
    return Listing("Frequencies", "position/frequencies=<name>", columns, rows, notes)


def visibilities(given: ReferenceModel, table: Mapping[str, SchemeFacts]) -> Listing[VisibilityFacts]:
    """One row for each choice of configs/visibility."""

    def not_with(f: VisibilityFacts) -> str:
        return ", ".join(name for name, facts in table.items() if facts.visibilities[f.entry.name]) or "–"

    columns: list[Column[VisibilityFacts]] = [
        Column("visibility", 14, lambda f: f.entry.name, markdown=lambda f: f"[`{f.entry.name}`](#{f.entry.name})"),
        Column("what a query sees", 30, lambda f: f.entry.title),
        Column("for", 10, lambda f: "training, evaluation" if f.trains else "evaluation"),
        Column("keys seen", 5, lambda f: f"{f.n_seen:,}", right=True),
        Column("largest distance", 8, lambda f: f"{f.farthest:,}", right=True),
        Column("cache keeps", 5, lambda f: f"{f.cached:,}" if f.cached else "all", right=True),
        Column("not with", 12, not_with),
        Column("source", 22, lambda f: f.entry.source or "–", markdown=lambda f: cited(f.entry)),
    ]
    rows = [visibility_facts(entry, given) for entry in entries("visibility").values()]
    notes = [
        f"keys seen, largest distance: by the last query of {FAR} training windows ({FAR * given.seq_len:,} tokens); "
        "where a key counts as nearer than it is, its counted distance",
        "cache keeps: keys per layer while decoding, so that memory stays constant; all: it grows with the text",
    ]
    return Listing("Visibilities", "visibility=<name>", columns, rows, notes)


def layers() -> Listing[Entry]:
    """One row for each choice of configs/layers."""

    def differs(entry: Entry) -> str:
        kinds = {name: flatten(kind) for name, kind in entry.values["kinds"].items()}
        changes = [f"{name}: {' '.join(f'{k}={show(v)}' for k, v in kind.items())}" for name, kind in kinds.items()]
        return "; ".join(changes) or "–"

    columns: list[Column[Entry]] = [
        Column("layers", 17, lambda s: s.name, markdown=lambda s: f"`{s.name}`"),
        Column("what they are", 32, lambda s: s.title),
        Column("pattern, repeated", 10, lambda s: ", ".join(s.values["pattern"] or ["own"])),
        Column("what a kind says differently", 42, differs),
        Column("source", 10, lambda s: s.source or "–", markdown=lambda s: cited(s)),
    ]
    notes = [
        "pattern: the kinds of the layers from the first on, repeated to the last; `own` is what position, "
        "position/frequencies, visibility and model.logit_scale say",
        "what a kind does not say it has from `own`, also where that changes in a stage or on trained weights; in your "
        "own words: [positions.md](positions.md)",
    ]
    return Listing("Layers", "layers=<name>", columns, schedules(), notes)


def conversions(summaries: Mapping[str, str]) -> Listing[tuple[str, str]]:
    """One row for each conversion of trained weights. summaries: what it does, by name."""
    columns: list[Column[tuple[str, str]]] = [
        Column("conversion", 18, lambda s: s[0], markdown=lambda s: f"`{s[0]}`"),
        Column("what it does", 96, lambda s: s[1]),
    ]
    notes = [
        "start.path gives the weights of another run or of a Hugging Face folder; what they mean changes only where "
        "start.convert declares it, several with commas between them, in their order",
        "each is announced (CHANGED), proved before the first step (the logits that must be equal are), and kept in "
        "run.json; more in [stages.md](stages.md)",
    ]
    return Listing("Conversions", "start.convert=<name>", columns, list(summaries.items()), notes)
