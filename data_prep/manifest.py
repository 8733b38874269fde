"""manifest.json: what a corpus is, what it was made of and how, and the SHA-256 of every file.

The file is a Manifest, and exactly what `dump` gives for its content, so a changed bit anywhere in it is found.
"""

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import NotRequired, TypedDict

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.dataset import IndexedDataset, best_dtype
from coca_train.data.readers import inputs
from coca_train.data.readers.base import Identity
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError, UserError
from coca_train.runtime.printing import plain
from data_prep.concatenate import BLOCK_BYTES, DatasetRecord
from data_prep.messages import differences, join_first
from data_prep.parts import FileRecord, settings

FORMAT = 1
NAME = "manifest.json"
READ, KEPT = "read", "kept"


class TokenizerRecord(TypedDict):
    """The tokenizer of a corpus. file: relative to the folder."""

    file: str
    sha256: str
    kind: str
    vocab_size: int


class SourceRecord(TypedDict):
    """A source. counts: read, kept, and by rule what was left out."""

    group: str
    licence: str
    about: str
    inputs: list[Identity]
    counts: dict[str, int]


class Settings(TypedDict):
    """Everything that decides the bytes of a corpus, except its inputs. sources: by name, `parts.settings`."""

    corpus: dict[str, object]
    sources: dict[str, dict[str, object]]


class Blocks(TypedDict):
    """Size of a block, and by .bin the file with the sums of its blocks."""

    bytes: int
    files: dict[str, str]


class Manifest(TypedDict):
    """What a corpus is. datasets: by <source>_<split>; files: by name; sha256: of the rest."""

    format: int
    kind: str
    name: str
    dtype: str
    end_of_document: int
    tokenizer: TokenizerRecord
    settings: Settings
    sources: dict[str, SourceRecord]
    datasets: dict[str, DatasetRecord]
    files: dict[str, FileRecord]
    blocks: Blocks
    sha256: NotRequired[str]


def build(
    name: str,
    dir: Path | str,
    tokenizer: Tokenizer,
    settings: Settings,
    sources: dict[str, SourceRecord],
    datasets: dict[str, DatasetRecord],
    files: dict[str, FileRecord],
) -> Manifest:
    """Build the manifest of a corpus in `dir`."""
    return {
        "format": FORMAT,
        "kind": "corpus",
        "name": name,
        "dtype": best_dtype(tokenizer.vocab_size).__name__,
        "end_of_document": tokenizer.eod,
        "tokenizer": {
            "file": os.path.relpath(tokenizer.path, dir),
            "sha256": tokenizer.digest,
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
        },
        "settings": settings,
        "sources": sources,
        "datasets": datasets,
        "files": files,
        "blocks": {
            "bytes": BLOCK_BYTES,
            "files": {name: f"{name[:-4]}.sums" for name in files if name.endswith(".bin")},
        },
    }


def dump(content: Manifest) -> bytes:
    """Return the file's bytes: JSON with sorted keys and the SHA-256 of the rest under "sha256"."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return _json(rest | {"sha256": hashlib.sha256(_json(rest)).hexdigest()})


def _json(content: dict[str, object]) -> bytes:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def read(dir: Path | str) -> Manifest:
    """Read the manifest in a folder.

    Raises DataError E-TOK-23 (none: nothing finished there), E-PREP-02 (of something else), E-TOK-08 (changed).
    """
    path = Path(dir) / NAME
    try:
        data = untrusted_io.read_bytes(path)
    except OSError as error:
        raise DataError(
            f"E-TOK-23 {path}: {error.strerror}; it is written when a corpus is finished, so this one is not. "
            "Fix: check corpus.dir, or finish it: python -m data_prep tokenize"
        ) from error
    try:
        manifest: Manifest = untrusted_io.from_json(data)
        what = (manifest["kind"], manifest["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise _changed(path) from error
    # Byte for byte, not by the "sha256" in it alone: a changed space or key order would leave the content the same.
    if dump(manifest) != data:
        raise _changed(path)
    if what != ("corpus", FORMAT):
        raise DataError(
            f"E-PREP-02 {path}: kind {str(what[0])[:80]!r}, format {str(what[1])[:80]!r}; needed is a corpus of format "
            f"{FORMAT}. Fix: use the version of coca_train that made it, or make it again in another corpus.dir"
        )
    return manifest


def _changed(path: Path) -> DataError:
    return DataError(
        f"E-TOK-08 {path}: is not what was written (its content and its own SHA-256 do not agree). Fix: copy it again, "
        "or make the corpus again in another corpus.dir"
    )


def settings_now(config: PrepareConfig, tokenizer: Tokenizer) -> Settings:
    """Return the settings as they are now."""
    return {
        "corpus": {"exact_duplicates": config.corpus.exact_duplicates},
        "sources": {name: settings(config, name, tokenizer) for name in sorted(config.corpus.sources)},
    }


def existing(config: PrepareConfig) -> Manifest | None:
    """Return the manifest of the corpus in corpus.dir; None when none is finished there.

    Raises DataError E-TOK-18 when it was made with other settings or of other inputs, E-TOK-11 with another tokenizer,
    E-PREP-03 when a file is gone or of another size, and what `read` raises. Inputs that are gone are not missed.
    """
    if not (Path(config.corpus.dir) / NAME).exists():
        return None
    manifest = read(config.corpus.dir)
    check_sizes(Path(config.corpus.dir), manifest)
    tokenizer = Tokenizer(config.tokenizer.path)
    if tokenizer.digest != (made_with := manifest["tokenizer"]["sha256"]):
        raise DataError(
            f"E-TOK-11 {config.corpus.dir}: was made with tokenizer {made_with[:16]}, {tokenizer.path} is now "
            f"{tokenizer.digest[:16]}; nothing is overwritten. Fix: bring it back, or choose another corpus.dir"
        )
    changes = differences(manifest["settings"], settings_now(config, tokenizer))
    # Raw files may be gone or copied by now; only those that are there and differ in content speak against the corpus.
    for name in sorted(config.corpus.sources.keys() & manifest["sources"].keys()):
        try:
            now = [_lasting(input.identity()) for input in inputs(name, config.corpus.sources[name])]
        except UserError:
            continue
        then = [_lasting(input) for input in manifest["sources"][name]["inputs"]]
        changes += differences(then, now, f"inputs of {name}")
    if changes:
        raise DataError(
            f"E-TOK-18 {config.corpus.dir}: holds a corpus of other settings: {join_first(changes)}; nothing is "
            "overwritten. Fix: restore those settings, choose another corpus.dir, or move this one away"
        )
    return manifest


def check_sizes(dir: Path, manifest: Manifest) -> None:
    """Raise DataError E-PREP-03 when a file is gone or of another size."""
    for name, record in manifest["files"].items():
        size = (dir / name).stat().st_size if (dir / name).is_file() else None
        if size != record["bytes"]:
            raise DataError(
                f"E-PREP-03 {dir / name}: {'missing' if size is None else f'{size} bytes'}, the manifest says "
                f"{record['bytes']} bytes. Fix: bring the file back, or move {dir} away and make it again"
            )


def _lasting(identity: Identity) -> Identity:
    """Return what a copy of an input has in common with it."""
    return {key: value for key, value in identity.items() if key != "mtime_ns"}


def warnings(manifest: Manifest) -> list[str]:
    """Return what a training with this corpus will lack, a line each."""
    if any(name.endswith("_valid") for name in manifest["datasets"]):
        return []
    return ["No text is held out to measure a training by: raise corpus.valid_share, or add a source with hold_out=all"]


def describe(manifest: Manifest) -> str:
    """Return two small tables: what there is, and what was left out."""
    rows = []
    for name, dataset in sorted(manifest["datasets"].items()):
        n_documents, n_tokens, longest = dataset["documents"], dataset["tokens"], dataset["longest_document"]
        rows.append([name, f"{n_documents:,}", f"{n_tokens:,}", f"{dataset['bytes'] / n_tokens:.2f}", f"{longest:,}"])
    counts = {name: source["counts"] for name, source in sorted(manifest["sources"].items())}
    reasons = {reason for record in counts.values() for reason, n in record.items() if n} - {READ, KEPT}
    columns, tokenizer = (READ, KEPT, *sorted(reasons)), manifest["tokenizer"]
    left_out = [[name, *(f"{record.get(reason, 0):,}" for reason in columns)] for name, record in counts.items()]
    tables = (
        plain(("dataset", "documents", "tokens", "bytes/token", "longest"), rows),
        plain(("source", *(reason.replace("_", " ") for reason in columns)), left_out),
        f"{manifest['name']}: {tokenizer['vocab_size']:,} token ids as {manifest['dtype']}, tokenizer "
        f"{tokenizer['file']} {tokenizer['sha256'][:16]}",
    )
    return "\n".join([*tables, *warnings(manifest)])


class Corpus:
    """The corpus in corpus.dir. Raises what `manifest.read` raises (E-TOK-23: none is finished there)."""

    def __init__(self, config: PrepareConfig) -> None:
        self.folder = Path(config.corpus.dir)
        self.manifest = read(self.folder)
        self.report = self.folder / "report"

    @property
    def tokenizer_path(self) -> Path:
        return self.folder / self.manifest["tokenizer"]["file"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises DataError E-TOK-11 when it is not the one the corpus was made with, E-TKN-01 when it is gone."""
        tokenizer, made_with = Tokenizer(self.tokenizer_path), self.manifest["tokenizer"]["sha256"]
        if tokenizer.digest != made_with:
            raise DataError(
                f"E-TOK-11 {self.tokenizer_path}: is tokenizer {tokenizer.digest[:16]}, the corpus was made with "
                f"{made_with[:16]}. Fix: restore the tokenizer"
            )
        return tokenizer

    def names(self, split: str) -> list[str]:
        """Return the sources that have documents in a split, sorted."""
        return [name for name in sorted(self.manifest["sources"]) if f"{name}_{split}" in self.manifest["datasets"]]

    def record(self, source: str, split: str) -> DatasetRecord:
        """Return what the manifest says about a dataset."""
        return self.manifest["datasets"][f"{source}_{split}"]

    def dataset(self, source: str, split: str) -> IndexedDataset:
        """Open a dataset. Raises DataError E-TOK-25 when it is not as long as the manifest says."""
        data, record = IndexedDataset(self.folder / f"{source}_{split}"), self.record(source, split)
        if (data.n_documents, data.n_tokens) != (record["documents"], record["tokens"]):
            raise DataError(
                f"E-TOK-25 {data.prefix}: holds {data.n_documents:,} documents of {data.n_tokens:,} tokens together, "
                f"the manifest says {record['documents']:,} and {record['tokens']:,}. Fix: python -m data_prep verify, "
                "then copy the files again or prepare the corpus again"
            )
        return data
