"""The facts as text: tables and one scheme in full for a terminal, and docs/schemes.md."""

import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from coca_train.catalog.entries import MODULES, Entry, entries, schedules
from coca_train.catalog.facts import (
    FAR,
    FARTHEST,
    LONG,
    SHORT,
    STRETCH,
    PatternFacts,
    ReferenceModel,
    ScalingFacts,
    SchemeFacts,
    measure_attention_pattern,
    measure_frequencies,
    measure_scheme,
    measure_schemes,
)
from coca_train.catalog.figures import CAPTIONS, DECAY, DECAYS, figure_kind, has_decay
from coca_train.config.fields import describe_settings
from coca_train.config.files import config_dir
from coca_train.config.messages import show
from coca_train.runtime.trees import flatten, leaves, section

T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table."""

    title: str
    width: int  # at most, on a terminal
    cell: Callable[[T], str]
    right: bool = False
    markdown: Callable[[T], str] | None = None  # the cell in docs/; None: the same


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A table with notes."""

    title: str
    choice: str  # the word of a command line that chooses a row
    columns: Sequence[Column[T]]
    rows: Sequence[T]
    notes: Sequence[str]


def format_table(columns: Sequence[Column[T]], rows: Sequence[T]) -> str:
    """Return a table with aligned columns; long cells and titles are wrapped."""
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
    """Return a Markdown table."""
    lines = [[c.title.replace("- ", "") for c in columns], ["--:" if c.right else "---" for c in columns]]
    lines += [[(c.markdown or c.cell)(row).replace("|", "\\|") for c in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_count(count: int) -> str:
    """Format a number of parameters: +66.6k."""
    if abs(count) < 10_000:
        return f"{count:+,}" if count else "0"
    unit, letter = (1e6, "M") if abs(count) >= 999_500 else (1e3, "k")
    return f"{count / unit:+.3g}{letter}"


def format_path(kernels: tuple[str, str]) -> str:
    """Return the kernels of a short and a long window."""
    return "/".join(dict.fromkeys(kernels))


def format_cost(facts: SchemeFacts, rope: SchemeFacts) -> str:
    """Return multiply-adds over those of RoPE, and the power when they do not grow like T²."""
    return f"{facts.products / rope.products:.2f}{' T^-1' if facts.linear else ''}"


def format_growth(facts: SchemeFacts, rope: SchemeFacts) -> str:
    """Return numbers per token over those of RoPE, and the power when they do not grow like T."""
    power = "" if round(facts.growth, 1) == 1.0 else f" T^{facts.growth - 1:.1f}"
    return f"{facts.numbers / rope.numbers:.2f}{power}"


def abbreviate(chosen: Sequence[str], offered: Sequence[str]) -> str:
    """Abbreviate a choice of names: all, all but a few, or those."""
    missing = [name for name in offered if name not in chosen]
    if not missing:
        return f"all {len(offered)}"
    if not chosen:
        return "–"
    return f"all but {', '.join(missing)}" if len(missing) < len(chosen) else ", ".join(chosen)


def format_bool(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"


def cite(entry: Entry) -> str:
    """Return a source as a Markdown link."""
    return f"[{entry.source}]({entry.link})" if entry.link else "–"


def fitting_attention_patterns(facts: SchemeFacts) -> list[str]:
    """Return the attention patterns that go with a scheme."""
    return [name for name, problem in facts.attention_patterns.items() if not problem]


def scheme_columns(rope: SchemeFacts) -> list[Column[SchemeFacts]]:
    """Return the columns of a scheme; costs are relative to RoPE."""
    return [
        Column("scheme", 14, lambda f: f.entry.name, markdown=lambda f: f"[`{f.entry.name}`](#{f.entry.name})"),
        Column("rela- tive", 5, lambda f: format_bool(f.relative)),
        Column("para- meters", 6, lambda f: format_count(f.n_parameters), right=True),
        Column("path on CPU", 12, lambda f: format_path(f.paths["cpu"])),
        Column("path on CUDA", 12, lambda f: format_path(f.paths["cuda"])),
        Column("cost ×T²", 4, lambda f: format_cost(f, rope), right=True),
        Column("mem. ×T", 4, lambda f: format_growth(f, rope), right=True),
        Column("cache ×T", 5, lambda f: f"{f.cached / rope.cached:.2f}", right=True),
        Column("max. window", 6, lambda f: f"{f.reach:,}" if f.reach else "any", right=True),
        Column("RoPE scal- ings", 6, lambda f: f"all {len(f.rope_scaling)}" if f.rope_scaling else "–"),
        Column(
            "attention patterns", 14, lambda f: abbreviate(fitting_attention_patterns(f), list(f.attention_patterns))
        ),
        Column("source", 10, lambda f: f.entry.source or "–", markdown=lambda f: cite(f.entry)),
    ]


def list_schemes(reference: ReferenceModel, table: Mapping[str, SchemeFacts]) -> Listing[SchemeFacts]:
    """Return a table with a row for each choice of configs/position."""
    notes = [
        f"parameters: of the whole {reference.name}, trained with windows of {reference.seq_len:,}, above those of "
        "`nope`",
        f"path: the kernel that is chosen in bfloat16 for {SHORT:,} tokens, and behind the slash for {LONG:,} where "
        "that is another one. blocked: tile by tile, memory O(T·block); sdpa: torch's fused kernel, O(T·D); flex: "
        "FlexAttention, compiled, O(T·D); linear: a state, O(T·D). In float32 the CPU takes sdpa wherever a scheme "
        "adds nothing to the scores",
        "alibi asks the device whether to fold its bias into q and k: its CUDA column is that of `fold: always`, which "
        "is what `auto` does there",
        "cost: multiply-adds per pair of tokens over those of rope, of matrix products (of a hook too); what is seen "
        "decides on the number of pairs. mem.: "
        "numbers per token that a layer hands to the kernel over those of rope. Both are taken from the tensors "
        f"themselves at {LONG:,} tokens; where they grow faster or slower, the power of T is shown. cache: "
        "numbers that a token leaves in the cache of a layer, over those of rope",
        f"max. window: the longest one that is not refused, tried in bfloat16 up to {FARTHEST:,} tokens; any: no end "
        "was found",
        "attention patterns: with windows shorter than the training window, each scheme with the values of its file "
        "(transformer_xl has a memory there; without one, `position.memory_len=0`, it goes with all of them)",
    ]
    return Listing("Schemes", "position=<scheme>", scheme_columns(table["rope"]), list(table.values()), notes)


def list_rope_scalings(reference: ReferenceModel) -> Listing[ScalingFacts]:
    """Return a table with a row for each choice of configs/position/rope_scaling."""
    columns: list[Column[ScalingFacts]] = [
        Column("rope_scaling", 20, lambda f: f.entry.name, markdown=lambda f: f"`{f.entry.name}`"),
        Column("what they are", 36, lambda f: f.entry.title),
        Column("kind", 7, lambda f: f.kind),
        Column("theta", 9, lambda f: f"{f.theta:,.0f}", right=True),
        Column("wavelengths", 18, lambda f: " / ".join(f"{s:.3g}" for s in f.stretch)),
        Column("tempe- rature", 6, lambda f: f"{f.temperature:.3f}", right=True),
        Column("source", 10, lambda f: f.entry.source or "–", markdown=lambda f: cite(f.entry)),
    ]
    rows = [measure_frequencies(entry, reference) for entry in entries("position/rope_scaling").values()]
    notes = [
        "wavelengths: those of the fastest pair / a quarter of the way to the slowest / the slowest, at "
        f"{STRETCH} training windows ({STRETCH * reference.seq_len:,} tokens), over those of plain frequencies with "
        "the same theta; the factors are those of configs/position/rope_scaling",
        "kind: dynamic follows the length in hand and changes no frequency up to the training window; learned has "
        "parameters (shown as they start)",
        f"temperature: multiplied into both q' and k', at {STRETCH} training windows",
    ]
    return Listing("Frequencies", "position/rope_scaling=<name>", columns, rows, notes)


def list_attention_patterns(reference: ReferenceModel, table: Mapping[str, SchemeFacts]) -> Listing[PatternFacts]:
    """Return a table with a row for each choice of configs/attention_pattern."""

    def not_with(f: PatternFacts) -> str:
        return ", ".join(name for name, facts in table.items() if facts.attention_patterns[f.entry.name]) or "–"

    columns: list[Column[PatternFacts]] = [
        Column(
            "attention pattern", 14, lambda f: f.entry.name, markdown=lambda f: f"[`{f.entry.name}`](#{f.entry.name})"
        ),
        Column("what a query sees", 27, lambda f: f.entry.title),
        Column("for", 10, lambda f: f.used_in),
        Column("keys seen", 5, lambda f: f"{f.n_seen:,}", right=True),
        Column("largest distance", 8, lambda f: f"{f.farthest:,}", right=True),
        Column("cache keeps", 5, lambda f: f"{f.cached:,}" if f.cached else "all", right=True),
        Column("not with", 12, not_with),
        Column("source", 22, lambda f: f.entry.source or "–", markdown=lambda f: cite(f.entry)),
    ]
    rows = [measure_attention_pattern(entry, reference) for entry in entries("attention_pattern").values()]
    notes = [
        f"keys seen, largest distance: by the last query of {FAR} training windows ({FAR * reference.seq_len:,} "
        "tokens); where a key counts as nearer than it is, its counted distance",
        "cache keeps: keys per layer while decoding, so that memory stays constant; all: it grows with the text",
    ]
    return Listing("Attention patterns", "attention_pattern=<name>", columns, rows, notes)


def list_layers() -> Listing[Entry]:
    """Return a table with a row for each choice of configs/layers."""

    def differs(entry: Entry) -> str:
        types = {name: flatten(kind) for name, kind in section(entry.values, "types").items()}
        changes = [f"{name}: {' '.join(f'{k}={show(v)}' for k, v in kind.items())}" for name, kind in types.items()]
        return "; ".join(changes) or "–"

    def pattern(entry: Entry) -> str:
        names = entry.values["pattern"]
        return ", ".join(names if names and isinstance(names, list) else ["default"])

    columns: list[Column[Entry]] = [
        Column("layers", 17, lambda s: s.name, markdown=lambda s: f"`{s.name}`"),
        Column("what they are", 32, lambda s: s.title),
        Column("pattern, repeated", 10, pattern),
        Column("what a kind says differently", 42, differs),
        Column("source", 10, lambda s: s.source or "–", markdown=lambda s: cite(s)),
    ]
    notes = [
        "pattern: the types of the layers from the first on, repeated to the last; `default` is what position, "
        "position/rope_scaling, attention_pattern and model.logit_scale say",
        "what a type leaves out it has from `default`, also where that changes in a stage or on trained weights; types "
        "of your own: [positions.md](positions.md)",
    ]
    return Listing("Layers", "layers=<name>", columns, schedules(), notes)


def list_conversions(summaries: Mapping[str, str]) -> Listing[tuple[str, str]]:
    """Return a table with a row for each conversion of trained weights. summaries: what it does, by name."""
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


WIDTH = 118  # of a line on a terminal [characters]
LENGTHS = (1024, 4096, 16_384, 32_768)  # at which work and memory of one scheme are listed [tokens]
MORE = "One of them in full: scheme=<name>. For another model: model=<configs/model> seq_len=<training window>."


def overview(reference: ReferenceModel, conversions: Mapping[str, str]) -> str:
    """Return all tables, for a terminal. conversions: what each does, by name."""
    lines = []
    for each in _listings(reference, measure_schemes(reference), conversions):
        lines += [f"{each.title.upper()} ({each.choice})", "", format_table(each.columns, each.rows), ""]
        lines += [*(_wrapped(f"* {note}", "  ") for note in each.notes), ""]
    return "\n".join([*lines, MORE])


def _listings(
    reference: ReferenceModel, table: Mapping[str, SchemeFacts], conversions: Mapping[str, str]
) -> list[Listing[Any]]:
    return [
        list_schemes(reference, table),
        list_rope_scalings(reference),
        list_attention_patterns(reference, table),
        list_layers(),
        list_conversions(conversions),
    ]


def details(entry: Entry, reference: ReferenceModel) -> str:
    """Return one scheme in full, for a terminal."""
    own, rope = measure_scheme(entry, reference), measure_scheme(entries("position")["rope"], reference)
    pairs = [(column.title.replace("- ", ""), column.cell(own)) for column in scheme_columns(rope)]
    lines = [f"{entry.name}: {entry.title}", *([entry.link] if entry.link else []), "", entry.docstring, ""]
    lines += [f"In {reference.name}, training window {reference.seq_len:,} tokens", ""]
    for title, text in pairs[1:-1]:
        lines.append(f"  {title:<13} {text}")
        if title == "parameters":
            lines += [f"  {'':<13} {name} {list(shape)}" for name, shape in own.parameters.items()]
    lines += [
        _wrapped(f"  not {name}: {problem}", " " * 6) for name, problem in own.attention_patterns.items() if problem
    ]
    lines += ["", "Attention of one layer, forward, one sequence (bfloat16)", ""]
    lines += [_by_length(n_tokens, own, reference) for n_tokens in LENGTHS]
    options = settings(entry)
    lines += ["", "Settings", ""] if options else []
    for key, value, text in options:
        lines += [f"  {key}={value}", *textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)]
    return "\n".join([*lines, "", "Train with it", "", f"  {example(own)}"])


def settings(entry: Entry) -> list[tuple[str, str, str]]:
    """Return (option, value in its YAML, description) of a scheme and its frequencies."""
    source = MODULES["position"].source(entry.module)
    texts = {f"position.{name}": text for name, text in describe_settings(source).items()}
    inner = str(section(entry.values, "rope_scaling").get("name", ""))
    if inner:
        source = MODULES["position/rope_scaling"].source(inner)
        texts |= {f"position.rope_scaling.{name}": text for name, text in describe_settings(source).items()}
    names = ("position.scheme", "position.rope_scaling.name")
    return [(k, show(v), texts.get(k, "")) for k, v in leaves(entry.values, "position") if k not in names]


def example(own: SchemeFacts) -> str:
    """Return a command line that trains with a scheme."""
    entry = own.entry
    words = ["python -m coca_train", f"position={entry.name}"]
    words += [f"--config-dir {shlex.quote(str(entry.folder))}"] if entry.folder != config_dir() else []
    words += ["position/rope_scaling=dynamic_ntk"] if own.rope_scaling else []
    words += ["data.order=stream"] if getattr(own.settings, "memory_len", 0) else []
    return " ".join(words)


def document(reference: ReferenceModel, conversions: Mapping[str, str]) -> str:
    """Return docs/schemes.md. conversions: as in `overview`."""
    table = measure_schemes(reference)
    lines = [
        "# Schemes, RoPE scalings, attention patterns, layers, conversions",
        "",
        "Made by `make docs`; do not edit. `python -m coca_train schemes` prints the tables, also for other models "
        "(`model=neox_tiny seq_len=128`), and `scheme=<name>` prints one of them in full. Conventions, and how the "
        "pieces work together: [positions.md](positions.md).",
        "",
        f"Model: {reference.name}, training window {reference.seq_len:,} tokens.",
        "",
    ]
    for each in _listings(reference, table, conversions):
        lines += [f"## {each.title}: `{each.choice}`", "", markdown(each.columns, each.rows), *_list(each.notes)]
    lines += [
        "## One by one",
        "",
        *_list([f"{name}: {text}" for name, text in CAPTIONS.items()], "How the figures are made:"),
    ]
    shown: dict[str, str] = {}
    for own in table.values():
        lines += _scheme_section(own, shown)
    for group in ("position/rope_scaling", "attention_pattern"):
        for entry in entries(group).values():
            lines += _section(entry, shown)
    return "\n".join(lines).rstrip() + "\n"


def _by_length(n_tokens: int, own: SchemeFacts, reference: ReferenceModel) -> str:
    """Return work and memory at a length: numbers that grow with their power."""
    work = own.work(n_tokens) * reference.shape.n_heads / 1e9
    held = own.held(n_tokens) * 2 / 2**20
    return f"  T = {n_tokens:>6,}   {work:>9,.1f} G multiply-adds   {held:>7,.1f} MiB handed to the kernel"


def _scheme_section(own: SchemeFacts, shown: dict[str, str]) -> list[str]:
    """Return the section of a scheme: figure, docstring, settings and parameters."""
    entry = own.entry
    lines = _section(entry, shown)
    rows = [f"| `{key}` | `{value}` | {text.replace('|', chr(92) + '|')} |" for key, value, text in settings(entry)]
    if rows:
        lines += ["| option | value | what it is |", "|---|---|---|", *rows, ""]
    if own.parameters:
        shapes = ", ".join(f"`{name}` {list(shape)}" for name, shape in own.parameters.items())
        lines += [f"Parameters that `nope` has not, or in another shape: {shapes}.", ""]
    return [*lines, f"`{example(own)}`", ""]


def _section(entry: Entry, shown: dict[str, str]) -> list[str]:
    """Return title, figures and docstring; a docstring that two choices share is under the first."""
    lines = [f"### {entry.name}", "", f"{entry.title}. {cite(entry) if entry.link else ''}".rstrip(), ""]
    if entry.group != "position/rope_scaling":
        lines += [f"![{entry.name}: {figure_kind(entry)}](figures/{entry.name}.svg)"]
        if has_decay(entry):
            lines += [f"![{entry.name}: {DECAY}](figures/{entry.name}{DECAYS}.svg)"]
        lines += [""]
    module = f"{entry.group}/{entry.module}"
    if module in shown:
        return [*lines, f"The same module as [`{shown[module]}`](#{shown[module]}), see there.", ""]
    shown[module] = entry.name
    return [*lines, "```text", entry.docstring, "```", ""]


def _list(points: Sequence[str], title: str = "") -> list[str]:
    return [*([title] if title else []), "", *(f"* {point}" for point in points), ""]


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
