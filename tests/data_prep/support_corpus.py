"""A small finished corpus on disk, made without the tokenize verb: what the verbs that look at one are tested on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.corpus_config import load
from coca_train.data.dataset import best_dtype
from coca_train.data.tokenizer import Tokenizer
from data_prep import manifest
from data_prep.concatenate import DatasetWriter
from data_prep.parts import DOCS
from data_prep.selection import digest_of
from tests.data.vocabularies import trained


@dataclass
class Made:
    """One source: its settings in the configuration, and its documents."""

    train: list[str] = field(default_factory=list)
    valid: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("a.jsonl", "b.jsonl.gz")
    counts: dict[str, int] = field(default_factory=dict)


def make(folder: Path, sources: dict[str, Made], overrides: tuple[str, ...] = (), **mix: Any) -> PrepareConfig:
    """Write the corpus `tiny` to folder/tiny, with a vocabulary of 600, and return its configuration.

    Document i of a split is line i + 1 of input i % 2. Groups: whatever the sources name, equal, unless `mix` says.
    """
    trained(folder / "tiny" / "tokenizer.model", 600)
    config = configuration(folder, sources, overrides, **mix)
    write(folder / "tiny", sources)
    return config


def configuration(folder: Path, sources: dict[str, Made], overrides: tuple[str, ...] = (), **mix: Any) -> PrepareConfig:
    """The configuration alone."""
    settings = {name: {"files": [f"{name}.jsonl"]} | corpus_source.settings for name, corpus_source in sources.items()}
    groups = {str(source.get("group", "text")): {"share": 1.0} for source in settings.values()}
    tree = {
        "corpus": {"name": "tiny", "dir": str(folder / "tiny"), "sources": settings},
        "mix": {"tokens": 1000, "groups": groups} | mix,
        "work": {"workers": 1, "progress_bar": False},
    }
    path = folder / "choices" / "corpus" / "tiny.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# @package _global_\n# a test\n" + yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return load(["corpus=tiny", *overrides], (folder / "choices",))


def write(dir: Path, sources: dict[str, Made]) -> None:
    """The datasets and the manifest, with the tokenizer that is there."""
    model = Tokenizer(dir / "tokenizer.model")
    datasets, records = {}, {}
    for name, source in sources.items():
        for split, texts in (("train", source.train), ("valid", source.valid)):
            if texts:
                datasets[f"{name}_{split}"] = write_dataset(dir / f"{name}_{split}", texts, model)
        records[name] = {
            "group": source.settings.get("group", "text"),
            "licence": "none",
            "about": "",
            "inputs": [{"name": input, "bytes": 1, "mtime_ns": 1, "sha256": ""} for input in source.inputs],
            "counts": {"read": len(source.train) + len(source.valid), "kept": len(source.train) + len(source.valid)}
            | source.counts,
        }
    now: manifest.Settings = {"corpus": {}, "sources": {}}
    content = manifest.build("tiny", dir, model, now, records, datasets, {}) | {"files": {}}
    (dir / manifest.NAME).write_bytes(manifest.dump(content))


def write_dataset(prefix: Path, texts: list[str], model: Tokenizer) -> dict[str, int]:
    """One .bin/.idx pair with its origins; returns its record of the manifest."""
    dtype = np.dtype(best_dtype(model.vocab_size))
    with DatasetWriter(prefix.parent, prefix.name, dtype, len(texts)) as writer:
        for i, text in enumerate(texts):
            ids = [*model.encode(text), model.eod]
            row = np.zeros(1, DOCS)
            row["line"], row["tokens"], row["characters"] = i + 1, len(ids), len(text)
            row["bytes"], row["digest"] = len(text.encode()), np.void(digest_of(text))
            writer.write_tokens(np.array(ids, dtype).tobytes())
            writer.add(i % 2, row)
    return dict(writer.counts)
