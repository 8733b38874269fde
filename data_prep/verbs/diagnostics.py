"""Make the corpus of the diagnostics (coca_train/data/diagnostics.py): a source for each task, drawn from a seed."""

import io
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.arguments import Arguments
from coca_train.config.load import Loaded
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Positive, Seed
from coca_train.config.verb import Verb
from coca_train.data.dataset import best_dtype
from coca_train.data.diagnostics import LEAST, TASKS, Example, Split, example, vocabulary
from coca_train.data.storage import flush_to_disk, storage
from coca_train.data.tokenizer import Tokenizer
from data_prep.concatenate import DatasetRecord, DatasetWriter
from data_prep.made_here import build_once, find_corpus, write_manifest
from data_prep.manifest import Manifest, Settings, SourceRecord, build, describe
from data_prep.messages import bar, say
from data_prep.parts import DOCS, FileRecord
from data_prep.selection import digest_of

NAME, TOKENIZER = "diagnostics", "tokenizer.model"
SPECIAL = 3  # <unk>, <s> and </s>, which ends a document
BATCH = 1000  # documents written together
VERSION = 2  # of how examples are drawn: one more with every change of an example (its test has their digest)
SHORT = 24  # symbols of most examples, at most
SPLITS: tuple[Split, ...] = ("train", "valid")

USAGE = """\
Make the corpus of the diagnostics: short tasks with exact answers, a source for each; no network is needed.

  python -m data_prep diagnostics                       what data=diagnostics makes by itself when it is missing
  python -m data_prep diagnostics dir=data/longer longest=127 n_documents=10000
"""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DiagnosticsConfig:
    """Where the corpus goes, and how large it is."""

    dir: str = Field(default="data/diagnostics", description="folder to make")
    longest: int = Field(
        default=63,
        ge=LEAST,
        description=f"a quarter of the examples have {LEAST} to so many symbols, the others at most {SHORT}; one more "
        "ends a document [tokens]",
    )
    n_documents: Positive = Field(default=20000, description="training examples of each task")
    n_valid_documents: Positive = Field(default=500, description="held-out examples of each task")
    seed: Seed = Field(default=1234, description="what examples are drawn from")


def _diagnostics(loaded: Loaded[DiagnosticsConfig], arguments: Arguments) -> None:
    options: DiagnosticsConfig = loaded.config
    manifest = existing(options)
    if manifest is None:
        make(options)
    else:
        print(f"{options.dir}: is there already, nothing to do\n{describe(manifest)}")


DIAGNOSTICS = Root(
    name="diagnostics", schema=DiagnosticsConfig, command="data_prep diagnostics", examples="dir=data/mine"
)
VERB = Verb(DIAGNOSTICS, USAGE, _diagnostics)


def make(options: DiagnosticsConfig, progress: bool = True) -> Manifest:
    """Make the corpus in `options.dir` unless it is there, and return its manifest. progress: a bar and a table on
    stderr.

    Raises DataError: E-PREP-02 the folder holds something else, 03 it is damaged.
    """
    return build_once(
        Path(options.dir), lambda: existing(options), lambda folder: _build(folder, options, progress), progress
    )


def ensure(dir: str) -> Manifest:
    """Make the corpus with its defaults unless there is one, of whatever sizes, in `dir`; return its manifest."""
    found = find_corpus(Path(dir), NAME, _other_version)
    return make(DiagnosticsConfig(dir=dir)) if found is None else found


def existing(options: DiagnosticsConfig) -> Manifest | None:
    """Return the manifest of a corpus already in `options.dir`; None when there is nothing yet."""

    def wrong(manifest: Manifest) -> str:
        has, asked = manifest["settings"]["corpus"], _settings(options)
        different = [f"{name}={has.get(name)}, not {value}" for name, value in asked.items() if has.get(name) != value]
        return f"holds other diagnostics ({', '.join(different)})" if different else ""

    return find_corpus(Path(options.dir), NAME, wrong)


def _other_version(manifest: Manifest) -> str:
    has = manifest["settings"]["corpus"].get("version")
    return "" if has == VERSION else f"holds other diagnostics (version={has}, not {VERSION})"


def _settings(options: DiagnosticsConfig) -> dict[str, object]:
    return {**{name: value for name, value in asdict(options).items() if name != "dir"}, "version": VERSION}


def _build(folder: Path, options: DiagnosticsConfig, progress: bool) -> Manifest:
    """Make everything in `folder`; the manifest is written last."""
    say(f"diagnostics: drawing {options.n_documents:,} examples of each of {len(TASKS)} tasks", progress)
    write_tokenizer(folder / TOKENIZER)
    tokenizer = Tokenizer(folder / TOKENIZER)
    token_ids = {symbol: tokenizer.encode(symbol)[0] for symbol in vocabulary()}
    datasets: dict[str, DatasetRecord] = {}
    files: dict[str, FileRecord] = {
        TOKENIZER: {"bytes": (folder / TOKENIZER).stat().st_size, "sha256": tokenizer.digest}
    }
    sources: dict[str, SourceRecord] = {}
    counts = {"train": options.n_documents, "valid": options.n_valid_documents}
    with bar("drawing", len(TASKS) * sum(counts.values()), progress, unit=" examples") as done:
        for task in TASKS:
            for split in SPLITS:
                drawn = _drawn(task, split, counts[split], options)
                dtype = np.dtype(best_dtype(tokenizer.vocab_size))
                with DatasetWriter(folder, f"{task}_{split}", dtype, counts[split]) as writer:
                    _write(writer, drawn, token_ids, tokenizer.eod, done.update)
                datasets[f"{task}_{split}"] = writer.counts
                files |= writer.files
            n = sum(counts.values())
            sources[task] = {
                "group": NAME, "licence": "made here", "about": TASKS[task].meaning, "inputs": [{"name": task}],
                "counts": {"read": n, "kept": n},
            }  # fmt: skip
    settings: Settings = {"corpus": _settings(options), "sources": {}}
    return write_manifest(folder, build(NAME, folder, tokenizer, settings, sources, datasets, files))


def _drawn(task: str, split: Split, n: int, options: DiagnosticsConfig) -> Iterator[Example]:
    for number in range(n):
        draw = random.Random(f"{task} {split} {options.seed} {number}")
        # Three in four are short: a model that has learned these learns longer ones within fewer steps.
        length = draw.randint(LEAST, options.longest if number % 4 == 0 else min(SHORT, options.longest))
        yield example(task, length, split, draw)


def _write(
    writer: DatasetWriter,
    drawn: Iterable[Example],
    token_ids: dict[str, int],
    eod: int,
    done: Callable[[int], object],
) -> None:
    """Write examples, each with the token that ends a document. Where one comes from is its number."""
    for number, each in enumerate(drawn):
        text, row = each.text, np.zeros(1, DOCS)
        ids = np.array([*(token_ids[symbol] for symbol in each.symbols), eod], writer.dtype.newbyteorder("<"))
        row["line"], row["tokens"], row["characters"] = number + 1, len(ids), len(text)
        row["bytes"], row["digest"] = len(text.encode()), np.void(digest_of(text))
        writer.write_tokens(ids.tobytes())
        writer.add(0, row)
        if (number + 1) % BATCH == 0:
            done(BATCH)
    done(writer.n_documents % BATCH)


def write_tokenizer(path: Path) -> None:
    """Write a SentencePiece model in which every symbol is a token, and </s> ends a document; always the same bytes."""
    import sentencepiece

    model, symbols = io.BytesIO(), vocabulary()
    # Words are numbered by how often they come: each once less than the one before.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join([symbol] * (len(symbols) - rank)) for rank, symbol in enumerate(symbols)),
        model_writer=model,
        model_type="word",
        vocab_size=len(symbols) + SPECIAL,
        normalization_rule_name="identity",
        character_coverage=1.0,
        max_sentence_length=16 * len(symbols),
        num_threads=1,
        minloglevel=2,
    )
    with storage(str(path)), open(path, "wb") as file:
        file.write(model.getvalue())
        flush_to_disk(file)
