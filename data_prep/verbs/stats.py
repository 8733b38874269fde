"""python -m data_prep stats: sizes and lengths of a corpus, and what was left out of it and why."""

from collections.abc import Callable
from typing import Any

from coca_train.runtime.durable import write_json, write_text
from coca_train.runtime.printing import markdown, percent, plain, short
from data_prep.merging.manifest import warnings
from data_prep.reports.corpus import Corpus
from data_prep.reports.lengths import LONG, QUANTILES, Lengths, lengths_picture, of_corpus
from data_prep.schema import PrepareConfig

WORDS = {"train": "trained on", "valid": "held out"}
Table = Callable[[Any, Any, int], str]


def run(config: PrepareConfig) -> int:
    """Print three tables; write report/stats.{md,json} and report/lengths.png."""
    corpus = Corpus(config)
    by_dataset = of_corpus(corpus)
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
    sizes, long = [], []
    for (name, split), lengths in by_dataset.items():
        record = corpus.record(name, split)
        label = [name, WORDS[split]]
        sizes.append(
            [*label, f"{record['documents']:,}", short(record["tokens"]), f"{record['bytes'] / record['tokens']:.2f}"]
            + [short(lengths.quantile(q)) for q in QUANTILES]
            + [short(lengths.longest)]
        )
        cells = [lengths.at_least(n) for n in LONG]
        long.append([*label, *(f"{documents:,} ({percent(tokens / lengths.n_tokens)})" for documents, tokens in cells)])
    header = ["source", "", "documents", "tokens", "bytes/token", *quantiles, "longest"]
    return "\n".join(
        [
            "Lengths in tokens, the end-of-document token included.\n",
            table(header, sizes, 2),
            "Documents of at least so many tokens, and the share of all tokens in them.\n",
            table(["source", "", *(f"{n // 1024}k" for n in LONG)], long, 2),
            "What was read, and left out.\n",
            table(["source", "", "documents", "of those read"], _left_out(corpus), 2),
            *warnings(corpus.manifest),
        ]
    )


def _left_out(corpus: Corpus) -> list[list[str]]:
    """A row for each source and thing that was counted while it was made."""
    rows = []
    for name in sorted(corpus.manifest["sources"]):
        counts = corpus.manifest["sources"][name]["counts"]
        read = counts["read"]
        shown = {"kept": counts["kept"]} | {what: n for what, n in sorted(counts.items()) if n and what != "read"}
        rows.append([name, "read", f"{read:,}", ""])
        rows += [["", what, f"{n:,}", percent(n / read) if read else ""] for what, n in shown.items()]
    return rows


def _as_json(corpus: Corpus, by_dataset: dict[tuple[str, str], Lengths]) -> dict[str, Any]:
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
