"""python -m data_prep leakage: what training text has in common with held-out text, in runs of n words."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.dataset import IndexedDataset
from coca_train.data.provenance import Origins, read_manifest
from coca_train.data.readers.base import escape
from coca_train.data.storage import storage
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.durable import write_json, write_text
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import markdown, percent, plain
from data_prep.manifest import Corpus
from data_prep.messages import bar
from data_prep.overlap import WORST, Overlap, overlaps

ANY = "all sources"
CHUNK = 1 << 20  # token ids looked at together

Table = Callable[[Sequence[str], Sequence[Sequence[str]], int], str]


def run(config: PrepareConfig) -> int:
    """Print a row for each held-out set; write report/leakage.md and report/leakage.json."""
    corpus = Corpus(config)
    trained = {name: corpus.dataset(name, "train") for name in corpus.names("train")}
    held_out = {f"{name}_valid": corpus.dataset(name, "valid") for name in corpus.names("valid")}
    held_out |= open_evaluation_sets(config.leakage.against, corpus.tokenizer, set(held_out))
    for what, sets, fix in (
        ("trained on", trained, "give the corpus a source with another hold_out than all"),
        ("held out", held_out, "set leakage.against=[<prefix>], or make it again with corpus.valid_share"),
    ):
        if not sets:
            raise DataError(f"E-TOK-24 {corpus.folder}: nothing is {what}; both are needed to compare them. Fix: {fix}")
    tokens = sum(data.n_tokens for data in trained.values())
    with storage(str(corpus.report)):
        corpus.report.mkdir(exist_ok=True)
    with (
        TemporaryDirectory(prefix=".leakage.", dir=corpus.report) as scratch,
        bar(None, tokens, config.work.progress_bar, unit=" tokens") as progress,
    ):
        n, max_share = config.leakage.ngram, config.leakage.max_share
        measured = overlaps(
            trained, held_out, corpus.tokenizer, n, max_share, Path(scratch), config.work.workers, progress
        )
    _write(corpus, config, measured, list(held_out))
    return 0


def open_evaluation_sets(prefixes: list[str], tokenizer: Tokenizer, taken: set[str]) -> dict[str, IndexedDataset]:
    """Open the sets of leakage.against, by name: the last part of the prefix, or all of it where that is taken.

    Raises DataError E-TOK-11 (made with another tokenizer), E-TOK-09 (an id beyond the vocabulary), and what
    IndexedDataset and `read_manifest` raise.
    """
    sets: dict[str, IndexedDataset] = {}
    for prefix in prefixes:
        data, name, manifest = IndexedDataset(prefix), os.path.basename(prefix), read_manifest(prefix)
        where = f"leakage.against: {escape(prefix)}"
        made_with = tokenizer.digest if manifest is None else manifest["tokenizer"]["sha256"]
        if made_with != tokenizer.digest:
            raise DataError(
                f"E-TOK-11 {where} was made with tokenizer {escape(made_with[:16])}, this corpus with "
                f"{tokenizer.digest[:16]}. Fix: prepare the set with this tokenizer"
            )
        for start in range(0, data.n_tokens, CHUNK):
            ids = data.tokens(start, min(start + CHUNK, data.n_tokens))
            if ids.max() >= tokenizer.vocab_size:
                raise DataError(
                    f"E-TOK-09 {where} holds token id {ids.max()}, the tokenizer has {tokenizer.vocab_size}. "
                    "Fix: prepare the set with this tokenizer"
                )
        sets[escape(prefix if name in taken | sets.keys() else name)] = data
    return sets


def _write(corpus: Corpus, config: PrepareConfig, overlaps: list[Overlap], sets: list[str]) -> None:
    n, max_share, report = config.leakage.ngram, config.leakage.max_share, corpus.report
    records = [asdict(one) | {"source": one.source or ANY, "share": one.share} for one in overlaps]
    write_json(report / "leakage.json", {"ngram": n, "max_share": max_share, "overlaps": records})
    about = (
        f"Runs of {n} words (letters, marks and digits, lower case; all else parts words) of each held-out set\n"
        f"that occur in training text too. More than {percent(max_share)} of a document's runs: it counts as leaked."
    )
    pairs = [
        [str(one.source), one.held_out, f"{one.found:,}", percent(one.share), f"{one.above:,}"]
        for one in overlaps
        if one.source is not None and one.found
    ]
    page = [f"# Overlap with held-out text: {corpus.manifest['name']}\n", about + "\n"]
    page += [_summary(overlaps, sets, markdown), "## By source\n"]
    header = ("source", "held-out set", "found", "of its runs", "documents above")
    page.append(markdown(header, pairs, 2) if pairs else "No run is found anywhere.\n")
    page += ["## Held-out documents with the highest shares\n", _worst(corpus, overlaps, markdown)]
    print(f"{about}\n\n{_summary(overlaps, sets, plain)}\n{_worst(corpus, overlaps, plain)}")
    write_text(report / "leakage.md", "\n".join(page))
    print(f"All of it: {report / 'leakage.md'}")


def _summary(overlaps: list[Overlap], sets: list[str], table: Table) -> str:
    """Return a row for each held-out set: against all sources, and the source that has most of it."""
    rows = []
    for name in sets:
        mine = [one for one in overlaps if one.held_out == name]
        total, most = mine[-1], max(mine[:-1], key=lambda one: one.found)
        numbers = [f"{n:,}" for n in (total.documents, total.short, total.ngrams)]
        where = f"{most.source} {percent(most.share)}" if most.found else "none"
        rows.append([name, *numbers, percent(total.share), f"{total.above:,}", where])
    header = ("held-out set", "documents", "too short", "runs", "in training", "leaked documents", "most in")
    return table(header, rows, 1)


def _worst(corpus: Corpus, overlaps: list[Overlap], table: Table) -> str:
    """Return the held-out documents with the highest shares in a single source, each with its origin."""

    def where(dataset: str, document: int) -> str:
        if dataset in corpus.manifest["datasets"]:
            source, _, split = dataset.rpartition("_")
            if origin := Origins(corpus.dataset(source, split)).find(document):
                return f"{dataset} {document} ({escape(str(origin))})"
        return f"{dataset} {document}"

    pairs = [(worst, one) for one in overlaps if one.source is not None for worst in one.worst]
    pairs.sort(key=lambda pair: (-pair[0].share, pair[1].held_out, pair[0].document))
    rows = []
    for worst, one in pairs[:WORST]:
        most = where(f"{one.source}_train", worst.most or 0)
        rows.append([where(one.held_out, worst.document), percent(worst.share), f"{worst.ngrams:,}", most])
    return table(["held-out document", "found", "of its runs", "most of it in"], rows, 1) if rows else ""
