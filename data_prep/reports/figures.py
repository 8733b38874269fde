"""Pictures of a corpus: its mixture, how long its documents are, and what training shares with held-out text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.patches import Patch

from coca_train.report.figures import COLOURS, page
from coca_train.runtime.printing import percent, short
from data_prep.reports.lengths import Lengths

if TYPE_CHECKING:
    from data_prep.verbs.mix import Plan

MARKS = (4096, 16384, 65536)  # lengths that are marked [tokens]
BINS_PER_OCTAVE = 4
ROW = 0.85  # height of a histogram, where the rows are 1 apart
MANY_CELLS = 12  # rows or columns of a heat map up to which its cells hold their number
LONGEST_LABEL = 32  # characters; of a longer name, a path, its end is shown


def mixture_picture(path: Path, planned: "Plan") -> None:
    """Bars by source, coloured by group: share of the training tokens, and epochs with their limit."""
    shares, rows = planned.shares, np.arange(len(planned.shares))[::-1]
    group_colours = dict(zip(planned.groups, _colours(len(planned.groups)), strict=True))
    colours = [group_colours[share.group] for share in shares]
    weights = [float(share.weight) for share in shares]
    epochs = [float(share.epochs) for share in shares]
    subtitle = (
        f"{short(planned.tokens)} tokens of training; the first source reaches its limit after {short(planned.lasts)}"
    )
    with page(path, f"Mixture {planned.name}", subtitle, (12, 2.6 + 0.4 * len(shares)), columns=2) as (left, right):
        left.barh(rows, [100 * weight for weight in weights], height=0.7, color=colours)
        right.barh(rows, epochs, height=0.7, color=colours)
        for row, share in zip(rows, shares, strict=True):
            _beside(
                left, 100 * float(share.weight), row, f"{percent(float(share.weight))}  ({short(float(share.drawn))})"
            )
            _beside(right, float(share.epochs), row, f"{float(share.epochs):.3g} × {short(share.tokens)} tokens")
        left.set_xlim(0, 145 * max(weights))
        right.set_xlim(0, 1.6 * max(*epochs, planned.max_epochs))
        right.axvline(planned.max_epochs, color="0.3", linewidth=1.5, linestyle="--")
        left.set_xlabel("share of the training tokens [%]", fontsize=12)
        right.set_xlabel(f"epochs (dashed: mix.max_epochs = {planned.max_epochs:g})", fontsize=12)
        left.set_yticks(rows, [share.source for share in shares])
        right.set_yticks(rows, [])
        for axes in (left, right):
            axes.set_ylim(-0.7, len(shares) - 0.3)
            axes.grid(False, axis="y")
        patches = [
            Patch(color=group_colours[name], label=f"{name} {percent(float(share))}")
            for name, share in planned.groups.items()
        ]
        right.figure.legend(handles=patches, loc="outside lower center", ncols=min(6, len(patches)), frameon=False)


def _beside(axes: Any, x: float, y: float, text: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10, bbox=box)


def _colours(n: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


def lengths_picture(path: Path, found: Mapping[tuple[str, str], Lengths], name: str) -> None:
    """A row a source: where its tokens are by length of document (filled), and its documents (line).

    found: by source and split; held-out documents have a row where their source has no others. name: of the corpus.
    """
    trained = {source for source, split in found if split == "train"}
    lengths = {
        source if split == "train" else f"{source} (held out)": one
        for (source, split), one in found.items()
        if split == "train" or source not in trained
    }
    names, longest = list(lengths), max(one.longest for one in lengths.values())
    top = max(17, int(np.ceil(np.log2(longest + 1))))
    shortest = min(int(one.values[0]) for one in lengths.values())
    bottom = max(3, shortest.bit_length() - 1)
    shown = np.unique(np.ceil(2.0 ** np.arange(bottom, top + 1e-9, 1 / BINS_PER_OCTAVE)))
    edges = np.concatenate(([0], shown[1:])).astype(np.int64)  # what is shorter still is in the first bin
    subtitle = "filled: tokens, line: documents, by length of the document; each scaled to its own highest bin"
    title = f"Length of documents: {name}"
    with page(path, title, subtitle, (12, 2.6 + 0.62 * len(names))) as (axes,):
        for row, (name, colour) in enumerate(zip(names, _colours(len(names)), strict=True)):
            documents, tokens = lengths[name].histogram(edges)
            base = float(len(names) - 1 - row)
            for values, options in (
                (tokens, {"fill": True, "color": colour, "alpha": 0.55}),
                (documents, {"color": "0.15", "linewidth": 1.1}),
            ):
                axes.stairs(base + ROW * values / max(1, values.max()), shown, baseline=base, **options)
            axes.axhline(base, color="0.6", linewidth=0.8)
        for mark in MARKS:
            axes.axvline(mark, color="0.3", linewidth=1.2, linestyle="--")
        middles = [len(names) - 0.7 - i for i in range(len(names))]
        _long_shares(axes, middles, list(lengths.values()))
        ticks = [2**power for power in range(bottom + bottom % 2, top + 1, 2)]
        axes.set_xscale("log", base=2)
        axes.set_xlim(shown[0], shown[-1])
        axes.set_xticks(
            ticks, [f"{t}" if t < 1024 else f"{t // 1024}k" if t < 1 << 20 else f"{t >> 20}M" for t in ticks]
        )
        axes.set_xlabel("length of the document [tokens]", fontsize=12)
        axes.set_yticks(middles, names)
        axes.set_ylim(-0.05, len(names) + 0.05)
        axes.grid(False)


def _long_shares(axes: Any, middles: Sequence[float], lengths: Sequence[Lengths]) -> None:
    """To the right of each row, the share of its tokens in documents of at least so many tokens."""
    beside = axes.twinx()
    rows = [[percent(one.at_least(mark)[1] / max(1, one.n_tokens)) for mark in MARKS] for one in lengths]
    rows.append([f"≥ {mark // 1024}k" for mark in MARKS])
    texts = ["".join(f"{cell:>10}" for cell in row) for row in rows]
    beside.set_yticks([*middles, middles[0] + 0.75], [*texts[:-1], f"{'tokens in documents of':>28}\n{texts[-1]}"])
    beside.set_ylim(-0.05, len(middles) + 0.05)
    beside.tick_params(length=0)
    for label in beside.get_yticklabels():
        label.set_family("monospace")
        label.set_fontsize(9.5)
    for spine in beside.spines.values():
        spine.set_visible(False)


def overlap_picture(
    path: Path, trained: Sequence[str], held_out: Sequence[str], shares: np.ndarray, title: str, subtitle: str
) -> None:
    """A heat map: rows = what is trained on, columns = held-out sets; shares: float (rows, columns), of one."""
    few = max(len(trained), len(held_out)) <= MANY_CELLS
    size = (4.5 + (1.15 if few else 0.4) * len(held_out), 3.2 + (0.45 if few else 0.3) * len(trained))
    with page(path, title, subtitle, (max(9.0, size[0]), size[1])) as (axes,):
        top = max(0.05, float(shares.max()))
        image = axes.imshow(100 * shares, cmap="YlOrRd", norm=PowerNorm(0.5, 0, 100 * top), aspect="auto")
        names = [name if len(name) <= LONGEST_LABEL else f"…{name[1 - LONGEST_LABEL :]}" for name in held_out]
        axes.set_xticks(range(len(names)), names, rotation=30 if few else 60, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(trained)), trained)
        axes.set_xlabel("held-out set", fontsize=12)
        axes.grid(False)
        axes.figure.colorbar(image, ax=axes, label="found in training [%]")
        if few:
            for (row, column), share in np.ndenumerate(shares):
                colour = "white" if share > 0.55 * top else "black"
                axes.text(column, row, percent(share), ha="center", va="center", fontsize=10, color=colour)
