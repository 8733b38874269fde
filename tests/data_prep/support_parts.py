"""Corpora of a few documents as tokenizing leaves them: raw files, a tokenizer, and parts written by hand."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coca_train.config.corpus_schema import CorpusSourceConfig, PrepareConfig
from coca_train.data.corpus_config import load
from coca_train.data.dataset import best_dtype
from coca_train.data.readers import inputs
from coca_train.data.tokenizer import Tokenizer
from data_prep.parts import DOCS, SPLITS, Encoded, Part, settings

BASE: list[PrepareConfig] = []
HOLD_OUT = {"hash": 0.3, "none": 0.0, "all": 1.0}


@dataclass(frozen=True)
class Doc:
    """A document of a test. line: None = the next one."""

    text: str
    id: str | None = None
    line: int | None = None


def text_digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def is_held_out(text: str, hold_out: str) -> bool:
    return int.from_bytes(text_digest(text)[:8], "big") / 2**64 < HOLD_OUT[hold_out]


def configuration(folder: Path, tokenizer: Path, **sources: dict[str, Any]) -> PrepareConfig:
    """A corpus in folder/corpus. sources: what differs from the defaults, by name; files are found by the name."""
    if not BASE:
        BASE.append(load(["corpus.sources.text.files=[x.jsonl]"]))
    base = BASE[0]
    template: CorpusSourceConfig = base.corpus.sources["text"]
    source_configs = {
        name: replace(template, files=[str(folder / "raw" / f"{name}-*.jsonl")], **changes)
        for name, changes in sources.items()
    }
    corpus = replace(base.corpus, name="tiny", dir=str(folder / "corpus"), sources=source_configs)
    return replace(
        base,
        corpus=corpus,
        tokenizer=replace(base.tokenizer, path=str(tokenizer)),
        work=replace(base.work, progress_bar=False),
    )


def write_raw(folder: Path, name: str, number: int, documents: Sequence[Doc]) -> None:
    """A .jsonl whose line numbers are those of the documents; blank lines between."""
    lines: dict[int, str] = {}
    for doc in documents:
        lines[doc.line or len(lines) + 1] = json.dumps({"text": doc.text, "id": doc.id})
    path = folder / "raw" / f"{name}-{number:03d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines.get(i, "") + "\n" for i in range(1, max(lines, default=0) + 1)))


def write_parts(
    config: PrepareConfig, corpus: dict[str, list[list[list[Doc]]]], rules: dict[str, int] | None = None
) -> None:
    """corpus: source -> inputs -> parts -> documents. rules: counts of what a filter left out, in every part."""
    folder = Path(config.corpus.dir).parent
    tokenizer = Tokenizer(config.tokenizer.path)
    for name, files in corpus.items():
        for number, parts in enumerate(files):
            write_raw(folder, name, number, [doc for part in parts for doc in part])
        all_inputs = inputs(name, config.corpus.sources[name])
        for input, parts in zip(all_inputs, files, strict=True):
            line = 0
            for number, documents in enumerate(parts):
                stem = Path(config.corpus.dir) / "parts" / name / f"{input.number:05d}" / f"{number:05d}"
                stem.parent.mkdir(parents=True, exist_ok=True)
                part = Part(stem, {"chunk": number} if number else None)
                encoded, line = encode(config.corpus.sources[name], tokenizer, documents, line, rules)
                part.add(encoded)
                now, identity = settings(config, name, tokenizer), input.identity()
                part.commit(now, identity, {"chunk": number + 1}, number == len(parts) - 1)


def encode(
    source: CorpusSourceConfig, tokenizer: Tokenizer, documents: Sequence[Doc], line: int, rules: dict[str, int] | None
) -> tuple[Encoded, int]:
    """A chunk of documents, the first after a line; and the last line."""
    dtype = best_dtype(tokenizer.vocab_size)
    rows = np.zeros(len(documents), DOCS)
    tokens: dict[int, list[int]] = {split: [] for split in range(len(SPLITS))}
    for row, doc in zip(rows, documents, strict=True):
        line = doc.line or line + 1
        ids = [*tokenizer.encode(doc.text), tokenizer.eod]
        split = int(is_held_out(doc.text, source.hold_out))
        tokens[split] += ids
        row["line"], row["tokens"], row["characters"] = line, len(ids), len(doc.text)
        row["bytes"], row["split"], row["digest"] = len(doc.text.encode()), split, text_digest(doc.text)
        if doc.id is not None:
            row["id"] = text_digest(doc.id)
    counts = {"documents": len(documents), "characters": int(rows["characters"].sum())}
    counts |= {"bytes": int(rows["bytes"].sum()), **(rules or {})}
    return Encoded(tuple(np.array(ids, dtype) for ids in tokens.values()), rows, counts, []), line


def change_record(stem: Path, **changes: Any) -> None:
    """Change a part's .json."""
    record = json.loads(Path(f"{stem}.json").read_text())
    Path(f"{stem}.json").write_text(json.dumps(record | changes))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
