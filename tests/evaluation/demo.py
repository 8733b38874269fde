"""A made-up report with a block of every kind, paper's rows, missing figures, and words that must be escaped."""

import math
from collections.abc import Collection
from typing import Any

from coca_train.report import paper
from coca_train.report.blocks import (
    Block,
    Document,
    HeatMap,
    HeatMaps,
    Line,
    Lines,
    Row,
    Section,
    Table,
    Text,
    Value,
    Verdict,
)

WINDOWS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
OUT_OF_MEMORY = Value("–", note="out of memory")
GROWTH = {"RoPE": 4.2, "RoPE + dynamic_ntk": 1.45, "ALiBi": 1.08, "CoCA": 1.5, "CoCA + dynamic_ntk": 1.22}
METHODS = {"rope": "RoPE", "coca": "CoCA", "coca+dynamic_ntk": "CoCA + dynamic NTK"}


def perplexities(growth: float) -> list[float]:
    return [21.5 * growth ** (index**0.8) for index in range(len(WINDOWS))]


def perplexity_table() -> Table:
    ours = []
    for index, (name, growth) in enumerate(GROWTH.items()):
        values = [
            Value.of(n, "{:,.2f}", note="100 documents", low=0.96 * n, high=1.05 * n) for n in perplexities(growth)
        ]
        if name == "ALiBi":
            values[-2:] = [OUT_OF_MEMORY, OUT_OF_MEMORY]
        if name == "RoPE":
            values[-1] = Value("inf", math.inf)
        method, _, rope_scaling = name.partition(" + ")
        ours.append(Row(label=(method, rope_scaling or "as trained", f"{index + 1},000"), values=tuple(values)))
    odd = Value("–", note="max_positions < window & more")
    ours.append(
        Row(label=("<script>alert(1)</script>", "50 % of_all", "12"), values=(Value("30.00", 30.0), *(odd,) * 6))
    )
    table = paper.table("table1_perplexity")
    theirs = paper.rows(
        {name: table[name] for name in ("alibi", "rope", "coca", "coca+dynamic_ntk")},
        WINDOWS,
        label=lambda name: (paper.method(name), "α = 4" if "ntk" in name else "as trained", "–"),
    )
    return Table(
        name="perplexity",
        title="Perplexity by window [tokens]",
        label_columns=("model", "rope_scaling", "steps"),
        columns=tuple(f"{w:,}" for w in WINDOWS),
        rows=(*ours, *theirs),
        best="low",
        note="Sliding windows with stride 512; all windows score the same 1,234,567 tokens of `books_test`.",
    )


def curves(banded: Collection[str] = ("CoCA + dynamic_ntk",)) -> Lines:
    """banded: which have an interval."""
    ours = []
    for name, growth in GROWTH.items():
        y = perplexities(growth)
        low, high = (tuple(v * by for v in y) if name in banded else None for by in (0.9, 1.12))
        ours.append(Line(label=name, x=WINDOWS, y=tuple(y), low=low, high=high))
    table = paper.table("table1_perplexity")
    theirs = [Line.through(paper.method(m), zip(WINDOWS, table[m], strict=True), theirs=True) for m in METHODS]
    return Lines(
        name="perplexity-curves",
        title="Perplexity by window",
        alt="Perplexity against the window. RoPE rises steeply beyond 512 tokens, CoCA with dynamic NTK hardly.",
        x_label="window [tokens]",
        y_label="perplexity (lower is better)",
        lines=(*ours, *theirs),
        x_log=True,
        y_log=True,
        marks=((512, "training window (512)"),),
        note="Band: 95 % interval over documents.",
    )


def heat_maps() -> HeatMaps:
    depths = ("0 %", "20 %", "40 %", "60 %", "80 %", "100 %")
    panels = []
    for index, name in enumerate(("RoPE", "RoPE + dynamic_ntk", "ALiBi", "CoCA", "CoCA + dynamic_ntk", "CoCA strict")):
        reach = 1.2 + 0.9 * index
        values = tuple(
            tuple(
                None if index == 2 and x > 4 else 1 / (1 + math.exp(1.6 * (x - reach - 0.3 * y)))
                for x in range(len(WINDOWS))
            )
            for y in range(len(depths))
        )
        names = tuple(f"{w:,}" if w < 10_000 else f"{w // 1024}k" for w in WINDOWS)
        panels.append(HeatMap(title=name, x_names=names, y_names=depths, values=values, mark_after_x=1))
    return HeatMaps(
        name="passkey",
        title="Passkeys retrieved, by length and depth",
        alt="Inside the training window nearly all are retrieved; beyond it CoCA reaches farthest.",
        x_label="length [tokens]",
        y_label="depth",
        panels=tuple(panels),
        low=0.0,
        high=1.0,
        note="Share of 20 prompts in each square.",
    )


def verdicts() -> tuple[Verdict, ...]:
    """Of every state, with words that must be escaped."""
    parts = (("holds", "2,048"), ("uses", "1,024"), ("finds", "512"))
    none = (("holds", "none"), ("finds", "none"))
    return (
        Verdict(label="CoCA + dynamic_ntk", line="reads to 512 tokens (1x its window)", parts=parts, state="reads"),
        Verdict(label="RoPE", line="reads nowhere, not even inside its window", parts=none, state="none"),
        Verdict(label="<ALiBi>", line="no verdict: 17 of 20 documents missing", parts=(), state="unknown"),
        Verdict(label="CoCA", line="reads to 256 tokens (0.5x its window)", parts=parts[:2], state="partly"),
    )


def lines_of(*lines: Line, **fields: Any) -> Lines:
    """These curves, without words."""
    return Lines(**({"name": "l", "title": "", "alt": "", "x_label": "", "y_label": ""} | fields), lines=lines)


def document_of(*blocks: Block, **fields: Any) -> Document:
    """These blocks, without words."""
    sections = (Section(title="", blocks=blocks),)
    return Document(**({"title": "", "summary": (), "facts": (), "command": ""} | fields), sections=sections)


def document() -> Document:
    text = (
        "Windows slide by `stride` tokens; each scores only what no earlier one scored.\nPositions start at 0.\n\n"
        "* bits per byte need the text, not only its tokens;\n* documents shorter than the window are left out, which\n"
        "  the table says.\n\nOne thing to keep in mind: perplexity does not say whether a model finds a fact again."
    )
    return Document(
        title="How far does <CoCA> reach? Perplexity & passkeys",
        summary=(
            "CoCA with dynamic NTK keeps its perplexity below 75 up to 32,768 tokens, 64 times its training window.",
            "RoPE fails right beyond its training window; `dynamic_ntk` saves it for about four times as far.",
            "The order of the methods is the paper's, but for ALiBi.",
        ),
        sections=(
            Section(title="Perplexity", blocks=(perplexity_table(), curves(GROWTH))),
            Section(title="Passkey retrieval", blocks=(heat_maps(),)),
            Section(title="Definitions", blocks=(Text(text=text),), folded=True),
        ),
        facts=(
            ("models", "6, between 12 and 5,000 steps"),
            ("text", "books_test, 100 documents, 1,234,567 tokens"),
            ("device", "NVIDIA H200 & 2 others"),
            ("time", "1 h 12 min"),
            ("coca_train", "0.6.0"),
        ),
        verdicts=verdicts(),
        command="python -m coca_train evaluate +eval=perplexity checkpoint='[runs/rope,runs/coca]' "
        'grid.lengths="[512,1024,2048,4096,8192,16384,32768]" name="<demo>"',
    )
