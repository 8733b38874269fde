"""The whole table, one scheme in full, and docs/schemes.md: text made of the facts."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from coca_train.config.fields import described
from coca_train.config.messages import show
from coca_train.planning.catalog import tables
from coca_train.planning.catalog.entries import MODULES, Entry, entries
from coca_train.planning.catalog.facts import SchemeFacts, all_facts, facts
from coca_train.planning.catalog.figures import CAPTIONS, DECAY, DECAYS, has_decay, kind
from coca_train.planning.catalog.reference import ReferenceModel
from coca_train.runtime.trees import leaves

WIDTH = 118  # of a line on a terminal [characters]
LENGTHS = (1024, 4096, 16_384, 32_768)  # at which work and memory of one scheme are told [tokens]
MORE = "One of them in full: scheme=<name>. For another model: model=<configs/model> seq_len=<training window>."


def overview(given: ReferenceModel, conversions: Mapping[str, str]) -> str:
    """All tables, for a terminal. conversions: what each does, by name."""
    lines = []
    for each in _listings(given, all_facts(given), conversions):
        lines += [f"{each.title.upper()} ({each.choice})", "", tables.terminal(each.columns, each.rows), ""]
        lines += [*(_wrapped(f"* {note}", "  ") for note in each.notes), ""]
    return "\n".join([*lines, MORE])


def _listings(
    given: ReferenceModel, table: Mapping[str, SchemeFacts], conversions: Mapping[str, str]
) -> list[tables.Listing[Any]]:
    return [
        tables.schemes(given, table),
        tables.frequencies(given),
        tables.visibilities(given, table),
        tables.layers(),
        tables.conversions(conversions),
    ]


def details(entry: Entry, given: ReferenceModel) -> str:
    """One scheme in full, for a terminal."""
    own, rope = facts(entry, given), facts(entries("position")["rope"], given)
    pairs = [(column.title.replace("- ", ""), column.cell(own)) for column in tables.scheme_columns(rope)]
    lines = [f"{entry.name}: {entry.title}", *([entry.link] if entry.link else []), "", entry.docstring, ""]
    lines += [f"In {given.name}, training window {given.seq_len:,} tokens", ""]
    for title, text in pairs[1:-1]:
        lines.append(f"  {title:<13} {text}")
        if title == "parameters":
            lines += [f"  {'':<13} {name} {list(shape)}" for name, shape in own.parameters.items()]
    lines += [_wrapped(f"  not {name}: {problem}", " " * 6) for name, problem in own.visibilities.items() if problem]
    lines += ["", "Attention of one layer, forward, one sequence (bfloat16)", ""]
    lines += [_by_length(n_tokens, own, given) for n_tokens in LENGTHS]
    lines += ["", "Settings", ""]
    for key, value, text in settings(entry):
        lines += [f"  {key}={value}", *textwrap.wrap(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)]
    return "\n".join([*lines, "", "Train with it", "", f"  {example(own)}"])


def settings(entry: Entry) -> list[tuple[str, str, str]]:
    """(option, value in its YAML, what it is) of a scheme, those of its frequencies too."""
    source = MODULES["position"].source(entry.module)
    texts = {f"position.{name}": text for name, text in described(source).items()}
    inner = entry.values.get("frequencies", {}).get("name", "")
    if inner:
        source = MODULES["position/frequencies"].source(inner)
        texts |= {f"position.frequencies.{name}": text for name, text in described(source).items()}
    names = ("position.scheme", "position.frequencies.name")
    return [(k, show(v), texts.get(k, "")) for k, v in leaves(entry.values, "position") if k not in names]


def example(own: SchemeFacts) -> str:
    """A command line that trains with a scheme."""
    words = ["python -m coca_train", f"position={own.entry.name}"]
    words += ["position/frequencies=dynamic_ntk"] if own.frequencies else []
    words += ["data.order=stream"] if getattr(own.settings, "memory_len", 0) else []
    return " ".join(words)


def document(given: ReferenceModel, conversions: Mapping[str, str]) -> str:
    """docs/schemes.md. conversions: as `overview`."""
    table = all_facts(given)
    lines = [
        "# Schemes, frequencies, visibilities, layers, conversions",
        "",
        "Made by `make docs`; do not edit. `python -m coca_train schemes` prints the tables, also for other models "
        "(`model=neox_tiny seq_len=128`), and `scheme=<name>` prints one of them in full. Conventions, and how the "
        "pieces work together: [positions.md](positions.md).",
        "",
        f"Model: {given.name}, training window {given.seq_len:,} tokens.",
        "",
    ]
    for each in _listings(given, table, conversions):
        lines += [f"## {each.title}: `{each.choice}`", "", tables.markdown(each.columns, each.rows), *_list(each.notes)]
    lines += [
        "## One by one",
        "",
        *_list([f"{name}: {text}" for name, text in CAPTIONS.items()], "How the figures are made:"),
    ]
    shown: dict[str, str] = {}
    for own in table.values():
        lines += _scheme_section(own, shown)
    for group in ("position/frequencies", "visibility"):
        for entry in entries(group).values():
            lines += _section(entry, shown)
    return "\n".join(lines).rstrip() + "\n"


def _by_length(n_tokens: int, own: SchemeFacts, given: ReferenceModel) -> str:
    """Work and memory at a length: pairs on and below the diagonal, and numbers that grow with their power."""
    pairs = n_tokens * (n_tokens + 1) / 2
    work = pairs * own.products * given.shape.n_heads / 1e9
    held = own.held(n_tokens) * 2 / 2**20
    return f"  T = {n_tokens:>6,}   {work:>9,.1f} G multiply-adds   {held:>7,.1f} MiB handed to the kernel"


def _scheme_section(own: SchemeFacts, shown: dict[str, str]) -> list[str]:
    """A scheme's figure, what its file says, its settings and parameters."""
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
    """Title, figures and docstring; a docstring that two choices share stands under the first."""
    lines = [f"### {entry.name}", "", f"{entry.title}. {tables.cited(entry) if entry.link else ''}".rstrip(), ""]
    if entry.group != "position/frequencies":
        lines += [f"![{entry.name}: {kind(entry)}](figures/{entry.name}.svg)"]
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
