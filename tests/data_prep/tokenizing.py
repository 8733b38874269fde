"""What the tests of tokenizing share: a small tokenizer, inputs, configurations, and what lies on the disk after it."""

import atexit
import functools
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data.corpus_config import load
from coca_train.data.readers import all_inputs
from coca_train.runtime import machine
from coca_train.runtime.errors import UserError
from data_prep import parts, workers
from data_prep.verbs.tokenize import tokenize
from tests.data.vocabularies import trained

WORDS = [word for path in sorted(Path(parts.__file__).parent.glob("*.py")) for word in path.read_text().split()]


@functools.cache
def model() -> Path:
    """A tokenizer of 520 pieces, trained once a session."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return trained(folder / "tokenizer.model", 520)


def texts(n: int, seed: int = 0) -> list[str]:
    """Documents of 1 to 60 words, no two alike."""
    drawn = random.Random(seed)
    return [f"{seed}/{i} " + " ".join(drawn.choices(WORDS, k=drawn.randrange(60))) for i in range(n)]


def write_jsonl(path: Path, documents: Iterable[Any]) -> Path:
    """Texts become {"text": ...}; bytes are lines as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [item if isinstance(item, bytes) else json.dumps({"text": item}).encode() for item in documents]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def write_inputs(folder: Path, n_inputs: int = 3, n_documents: int = 40) -> Path:
    for number in range(n_inputs):
        write_jsonl(folder / "raw" / f"{number}.jsonl", texts(n_documents, number))
    return folder / "raw"


def overrides(raw: Path, dir: Path, **more: Any) -> list[str]:
    """Words of the command line. more: work_workers=2 for work.workers=2, text_id_field=... for the source's."""
    values = {
        "corpus.dir": dir,
        "corpus.valid_share": 0.2,
        "tokenizer.path": model(),
        "work.workers": 1,
        "work.chunk_bytes": 1000,
        "work.part_bytes": 4000,
        "work.progress_bar": "false",
        "corpus.sources.text.files": f"[{raw}/*.jsonl]",
    }
    places = {"work": "work", "corpus": "corpus", "tokenizer": "tokenizer", "text": "corpus.sources.text"}
    for name, value in more.items():
        section, _, key = name.partition("_")
        values[f"{places[section]}.{key}"] = value
    return [f"{key}={value}" for key, value in values.items()]


@functools.cache
def _loaded(*words: str) -> PrepareConfig:
    return load(words)


def configured(raw: Path, dir: Path, **more: Any) -> PrepareConfig:
    """Composing takes a third of a second, so it is done once for each set of other settings."""
    config = _loaded(*overrides(Path("RAW"), Path("DIR"), **more))
    (name, source), *_ = config.corpus.sources.items()
    if source.files == ["RAW/*.jsonl"]:
        source = replace(source, files=[f"{raw}/*.jsonl"])
    corpus = replace(config.corpus, dir=str(dir), sources={name: source})
    return replace(config, corpus=corpus)


def run(raw: Path, dir: Path, **more: Any) -> PrepareConfig:
    """Tokenize to parts, here."""
    config = configured(raw, dir, **more)
    tokenize(config, all_inputs(config.corpus.sources))
    return config


def message(raw: Path, dir: Path, **more: object) -> str:
    """What a run ends with; nothing half-published is left."""
    with pytest.raises(UserError) as caught:
        run(raw, dir, **more)
    text = str(caught.value)
    assert text.isprintable() and "Fix: " in text and not list(dir.rglob("*.tmp"))
    return text


def bytes_of(dir: Path) -> dict[str, str]:
    """Digest of every file below a folder, locks left out."""
    paths = (path for path in sorted(dir.rglob("*")) if path.is_file() and "lock" not in path.name)
    return {str(path.relative_to(dir)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def records(dir: Path, input: int = 0, source: str = "text") -> list[dict[str, Any]]:
    """The .json files of an input's parts."""
    paths = sorted((dir / "parts" / source / f"{input:05d}").glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


def documents(dir: Path, input: int = 0, source: str = "text") -> np.ndarray:
    """DOCS of all parts of an input."""
    paths = sorted((dir / "parts" / source / f"{input:05d}").glob("*.docs.npy"))
    return np.concatenate([np.load(path, allow_pickle=False) for path in paths])


def ids(dir: Path, split: str, input: int = 0, source: str = "text", dtype: str = "<u2") -> np.ndarray:
    paths = sorted((dir / "parts" / source / f"{input:05d}").glob(f"*.{split}.bin"))
    return np.concatenate([np.fromfile(path, dtype) for path in paths])


def forked(action: Callable[[], Any]) -> int:
    """Call it in a child process; its exit code, or minus the signal."""
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join(60)
    assert process.exitcode is not None, "the child hangs"
    return process.exitcode


def counted(monkeypatch: pytest.MonkeyPatch, most: int) -> list[object]:
    """Each worker that is started; one too many is an error before it is. What is lowered is said again."""
    machine._lowered.cache_clear()
    started: list[object] = []

    def start(*arguments: object, real: Callable[..., object] = workers._Worker) -> object:
        assert len(started) < most
        started.append(real(*arguments))
        return started[-1]

    monkeypatch.setattr(workers, "_Worker", start)
    return started


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
