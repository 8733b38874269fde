"""From a folder of texts to the data of a training: what `data.path` asks for.

The folder and what it holds decide where the data go, so they are found again, and a folder that has changed gets other
data. The folder itself is only read.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.config.schema import DataConfig
from coca_train.data.corpus_config import load
from coca_train.data.readers.base import escape
from coca_train.data.readers.files import Listing, listing
from coca_train.data.storage import lock_and_wait, storage
from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import write_json
from coca_train.runtime.errors import DataError, UserError
from data_prep.fitting import fit_valid_share, stretch_for, vocabulary, vocabulary_for
from data_prep.manifest import NAME as MANIFEST
from data_prep.manifest import read as read_manifest
from data_prep.messages import say

FORMAT = 1  # of what decides the data besides the folder and the options
SOURCE = "text"  # all files are one source: a document is as likely as any other of its length
RECORD = "folder.json"  # what was read, next to the data
SHARE, SIZE = "data.valid_share", "data.vocab_size"
# Options as messages of data_prep call them, and as a training does.
WORDS = (
    ("work.on_error", "data.on_error"),
    ("tokenizer.vocab_size", SIZE),
    ("corpus.valid_share", SHARE),
    ("text_field, id_field or join_field", "data.text_field"),
    ("text_field or id_field", "data.text_field"),
    (f"corpus.sources.{SOURCE}.files", "data.path"),
    ("files= of the source", "data.path"),
    ("corpus.dir", "data.dir"),
)


@dataclass(frozen=True)
class TextFolder:
    """A folder, and how it is made into data. tokenizer: SHA-256 of an existing one; None: one is trained."""

    path: str
    text_field: str
    vocab_size: int | None
    valid_share: float | None
    on_error: str
    tokenizer: str | None

    @cached_property
    def listing(self) -> Listing:
        """List what the folder holds now. Raises DataError E-RAW-01, 02."""
        return listing(self.path, "data.path")

    @property
    def folder(self) -> str:
        """Return the name of the folder for all data made of this one, whatever it held."""
        path = os.path.abspath(self.path)
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(path)).strip("-._")[:80] or "text"
        return f"{base}-{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:8]}"

    @property
    def key(self) -> str:
        """Return the name of the data that are made of the folder as it is now."""
        options = [self.text_field, self.vocab_size, self.valid_share, self.on_error, self.tokenizer]
        content = [FORMAT, options, _files(self.listing)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def fitting_vocabulary(self) -> int | None:
        """Return the size of the vocabulary that is trained [token ids]."""
        size = self.vocab_size
        return size if size or self.tokenizer is not None else vocabulary_for(self.listing.text_bytes)

    def changes(self, dir: Path) -> str:
        """Describe what has changed in the folder since the data in `dir` were made of it; "": nothing."""
        try:
            before, now = untrusted_io.read_object(dir / RECORD)["files"], _files(self.listing)
            added, removed = len(now.keys() - before.keys()), len(before.keys() - now.keys())
            changed = sum(before[name] != now[name] for name in now.keys() & before.keys())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ""
        counts = {"added": added, "removed": removed, "changed": changed}
        return ", ".join(f"{n:,} file{'s' if n > 1 else ''} {what}" for what, n in counts.items() if n)


def _files(listed: Listing) -> dict[str, list[int]]:
    # With escapes, as a name may be no text.
    return {escape(file.path): [file.size, file.mtime_ns] for file in listed.files}


def newest(folder: Path) -> Path | None:
    """Return the newest finished data in a folder that `TextFolder.folder` names; None: there are none."""
    made = [path.parent for path in folder.glob(f"*/{RECORD}") if is_finished(path.parent)]
    return max(made, key=lambda path: (path / RECORD).stat().st_mtime, default=None)


def is_finished(dir: Path) -> bool:
    return all((dir / name).is_file() for name in (MANIFEST, RECORD))


def finished_vocab_size(dir: Path) -> int:
    """Return the vocabulary size of finished data [token ids]."""
    return read_manifest(dir)["tokenizer"]["vocab_size"]


def sources() -> dict[str, dict[str, str | float]]:
    """Return the sources of a data section, with paths below data.dir."""
    paths = {"path": f"${{data.dir}}/{SOURCE}_train", "valid_path": f"${{data.dir}}/{SOURCE}_valid"}
    return {SOURCE: paths | {"weight": 1.0, "on_exhausted": "repeat"}}


def prepare(data: DataConfig) -> None:
    """Make the data that data.path asks for, unless they are there.

    Of processes that do so at once one works, the others wait. Raises what the verbs `tokenizer` and `tokenize` raise,
    with the names that a training has for options; DataError E-RAW-33 for too little text.
    """
    from data_prep.verbs import tokenize, tokenizer  # seconds, where nothing has to be made

    dir = Path(data.dir)
    if is_finished(dir):
        return
    with _in_words_of_training(), storage(str(dir)):
        dir.parent.mkdir(parents=True, exist_ok=True)
        with lock_and_wait(dir.parent / f".{dir.name}.lock"):
            if is_finished(dir):
                return
            config = _configuration(data)
            config = fit_valid_share(config, SHARE)
            if not config.corpus.valid_share:
                raise _too_little(data, "held out")
            listed = listing(str(data.path), "data.path")
            if config.tokenizer.import_from is None and data.vocab_size is not None:
                say(vocabulary(data.vocab_size, listed.text_bytes, SIZE))
            tokenizer.run(config)
            tokenize.run(config)
            for split, what in (("train", "left to train on"), ("valid", "held out")):
                if not (dir / f"{SOURCE}_{split}.idx").is_file():
                    raise _too_little(data, what)
            write_json(dir / RECORD, {"path": os.path.abspath(listed.folder), "files": _files(listed)})


def _configuration(data: DataConfig) -> PrepareConfig:
    """Return the configuration of the verbs `tokenizer` and `tokenize` for a data section."""
    assert data.path is not None
    config = load([f"corpus.sources.{SOURCE}.files=[of_a_training.txt]"])
    stretch = None if data.valid_share is None else stretch_for(listing(data.path, "data.path").text_bytes)
    source = replace(config.corpus.sources[SOURCE], kind="folder", files=[data.path], text_field=data.text_field)
    name, sources = Path(data.dir).parent.name, {SOURCE: source}
    corpus = replace(config.corpus, name=name, dir=data.dir, sources=sources)
    corpus = replace(corpus, valid_share=data.valid_share, valid_characters=stretch)
    own = Path(data.dir) / f"tokenizer{Path(data.tokenizer).suffix}"
    origin = None if Path(data.tokenizer) == own else data.tokenizer
    tokenizer = replace(config.tokenizer, path=str(own), import_from=origin, vocab_size=data.vocab_size)
    # skip is set by a person who has seen what is wrong: a folder of three files may lose one.
    work = replace(config.work, on_error=data.on_error, max_reject_share=1.0)
    return replace(config, corpus=corpus, tokenizer=tokenizer, work=work)


def _too_little(data: DataConfig, what: str) -> DataError:
    return DataError(
        f"E-RAW-33 data.path={escape(str(data.path))}: of the text that can be read nothing is {what}; a training "
        f"needs both. Fix: give it more text, or another share: {SHARE}=0.1"
    )


@contextmanager
def _in_words_of_training() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        text = str(error)
        for theirs, ours in WORDS:
            text = text.replace(theirs, ours)
        raise type(error)(text) from error
