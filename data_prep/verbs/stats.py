"""python -m data_prep stats: sizes and lengths of a corpus, and what was left out of it and why.

Lengths are counted exactly and in bounded memory: different lengths add up to at most the tokens there are, so n tokens
have at most sqrt(2 n) of them: 50 billion tokens, 316 228 lengths. They are in tokens, the end-of-document token
included.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.runtime.durable import write_bytes, write_json, write_text
from coca_train.runtime.printing import markdown, percent, plain, short
from data_prep.manifest import Corpus, warnings

LONG = (4096, 16384, 32768, 65536)  # documents of at least so many tokens are counted
QUANTILES = (0.1, 0.5, 0.9, 0.99)
CHUNK = 1 << 18  # documents looked at together
MARKS = (4096, 16384, 65536)  # lengths that the picture marks [tokens]
BINS_PER_OCTAVE = 4
ROW = 0.85  # height of a histogram, where the rows are 1 apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito


@dataclass(frozen=True)
class Lengths:
    """values: int64 (k,), the lengths that occur, rising [tokens]; counts: int64 (k,), documents of each."""

    values: np.ndarray
    counts: np.ndarray

    @property
    def n_documents(self) -> int:
        return int(self.counts.sum())

    @property
    def n_tokens(self) -> int:
        return int((self.values * self.counts).sum())

    @property
    def longest(self) -> int:
        return int(self.values[-1])

    def quantile(self, share: float) -> int:
        """Return the smallest length that at least this share of the documents does not exceed."""
        up_to = np.cumsum(self.counts)
        return int(self.values[np.searchsorted(up_to, share * up_to[-1])])

    def at_least(self, n: int) -> tuple[int, int]:
        """Return (documents of at least n tokens, tokens in them)."""
        first = int(np.searchsorted(self.values, n))
        return int(self.counts[first:].sum()), int((self.values * self.counts)[first:].sum())

    def histogram(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count documents, and tokens in them, of edges[i] <= length < edges[i + 1]: int64 (len(edges) - 1,) each."""
        borders = np.searchsorted(self.values, edges)
        sums = [np.concatenate(([0], np.cumsum(part))) for part in (self.counts, self.values * self.counts)]
        return np.diff(sums[0][borders]), np.diff(sums[1][borders])


def count(chunks: Iterable[np.ndarray]) -> Lengths:
    """Count lengths that come in chunks."""
    values, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for chunk in chunks:
        more, times = np.unique(chunk, return_counts=True)
        merged = np.union1d(values, more)
        total = np.zeros(len(merged), np.int64)
        total[np.searchsorted(merged, values)] += counts
        total[np.searchsorted(merged, more)] += times
        values, counts = merged, total
    return Lengths(values, counts)


def corpus_lengths(corpus: Corpus) -> dict[tuple[str, str], Lengths]:
    """Return the lengths of the documents of each (source, split); what is trained on first."""
    by_dataset = {}
    for split in ("train", "valid"):
        for name in corpus.names(split):
            data = corpus.dataset(name, split)
            ranges = ((first, min(first + CHUNK, data.n_documents)) for first in range(0, data.n_documents, CHUNK))
            by_dataset[name, split] = count(np.diff(data.document_starts(a, b + 1)) for a, b in ranges)
    return by_dataset


@contextmanager
def _drawn(path: Path, title: str, subtitle: str, height: float) -> Iterator[Axes]:
    """Give the axes of a page of so many inches, and write it as a PNG when the block ends."""
    sheet = Figure(figsize=(12, height), dpi=140, layout="constrained")
    FigureCanvasAgg(sheet)
    sheet.suptitle(f"{title}\n", fontsize=15, fontweight="bold")
    sheet.set_layout_engine("constrained", h_pad=0.07, w_pad=0.1)
    sheet.text(0.5, 1 - 0.42 / height, subtitle, fontsize=10, color="0.35", ha="center", va="center")
    axes = sheet.subplots()
    axes.tick_params(labelsize=11)
    axes.grid(True, which="major", color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png")
    write_bytes(path, buffer.getvalue())


def lengths_picture(path: Path, by_dataset: Mapping[tuple[str, str], Lengths], name: str) -> None:
    """Draw a row a source: where its tokens are by length of document (filled), and its documents (line).

    by_dataset: by source and split; held-out documents have a row where their source has no others. name: of the
    corpus.
    """
    trained = {source for source, split in by_dataset if split == "train"}
    lengths = {
        source if split == "train" else f"{source} (held out)": one
        for (source, split), one in by_dataset.items()
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
    with _drawn(path, title, subtitle, 2.6 + 0.62 * len(names)) as axes:
        for row, (name, colour) in enumerate(zip(names, cycle(COLOURS), strict=False)):
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


def _long_shares(axes: Axes, middles: Sequence[float], lengths: Sequence[Lengths]) -> None:
    """Write to the right of each row the share of its tokens in documents of at least so many tokens."""
    right = axes.twinx()
    rows = [[percent(one.at_least(mark)[1] / max(1, one.n_tokens)) for mark in MARKS] for one in lengths]
    rows.append([f"≥ {mark // 1024}k" for mark in MARKS])
    texts = ["".join(f"{cell:>10}" for cell in row) for row in rows]
    right.set_yticks([*middles, middles[0] + 0.75], [*texts[:-1], f"{'tokens in documents of':>28}\n{texts[-1]}"])
    right.set_ylim(-0.05, len(middles) + 0.05)
    right.tick_params(length=0)
    for label in right.get_yticklabels():
        label.set_fontfamily("monospace")
        label.set_fontsize(9.5)
    for spine in right.spines.values():
        spine.set_visible(False)


WORDS = {"train": "trained on", "valid": "held out"}
Table = Callable[[Sequence[str], Sequence[Sequence[str]], int], str]


def run(config: PrepareConfig) -> int:
    """Print three tables; write report/stats.{md,json} and report/lengths.png."""
    corpus = Corpus(config)
    by_dataset = corpus_lengths(corpus)
    picture = corpus.report / "lengths.png"
    lengths_picture(picture, by_dataset, corpus.manifest["name"])
    write_json(corpus.report / "stats.json", _as_json(corpus, by_dataset))
    text = _text(corpus, by_dataset, markdown)
    write_text(
        corpus.report / "stats.md", f"# Corpus {corpus.manifest['name']}\n\n{text}\n![lengths]({picture.name})\n"
    )
    print(_text(corpus, by_dataset, plain))
    print(f"Picture: {picture}")
    return 0


def _text(corpus: Corpus, by_dataset: dict[tuple[str, str], Lengths], table: Table) -> str:
    quantiles = [f"p{q:.0%}".removesuffix("%") for q in QUANTILES]
    sizes, long, left_out = [], [], []
    for (name, split), lengths in by_dataset.items():
        record, label = corpus.record(name, split), [name, WORDS[split]]
        numbers = [f"{record['documents']:,}", short(record["tokens"]), f"{record['bytes'] / record['tokens']:.2f}"]
        sizes.append([*label, *numbers, *(short(lengths.quantile(q)) for q in QUANTILES), short(lengths.longest)])
        cells = [lengths.at_least(n) for n in LONG]
        long.append([*label, *(f"{documents:,} ({percent(tokens / lengths.n_tokens)})" for documents, tokens in cells)])
    for name, source in sorted(corpus.manifest["sources"].items()):
        counts, read = source["counts"], source["counts"]["read"]
        shown = {"kept": counts["kept"]} | {what: n for what, n in sorted(counts.items()) if n and what != "read"}
        left_out.append([name, "read", f"{read:,}", ""])
        left_out += [["", what, f"{n:,}", percent(n / read) if read else ""] for what, n in shown.items()]
    header = ["source", "", "documents", "tokens", "bytes/token", *quantiles, "longest"]
    parts = [
        "Lengths in tokens, the end-of-document token included.\n",
        table(header, sizes, 2),
        "Documents of at least so many tokens, and the share of all tokens in them.\n",
        table(["source", "", *(f"{n // 1024}k" for n in LONG)], long, 2),
        "What was read, and left out.\n",
        table(["source", "", "documents", "of those read"], left_out, 2),
    ]
    return "\n".join([*parts, *warnings(corpus.manifest)])


def _as_json(corpus: Corpus, by_dataset: dict[tuple[str, str], Lengths]) -> dict[str, object]:
    datasets = {}
    for (name, split), lengths in by_dataset.items():
        record = corpus.record(name, split)
        datasets[f"{name}_{split}"] = record | {
            "bytes_per_token": record["bytes"] / record["tokens"],
            "quantiles": {str(q): lengths.quantile(q) for q in QUANTILES},
            "at_least": {str(n): dict(zip(("documents", "tokens"), lengths.at_least(n), strict=True)) for n in LONG},
        }
    counts = {name: record["counts"] for name, record in corpus.manifest["sources"].items()}
    return {"name": corpus.manifest["name"], "datasets": datasets, "counts": counts}
