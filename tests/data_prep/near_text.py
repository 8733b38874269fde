"""Texts that nearly repeat each other, how alike two texts are by the plain definition, and corpora of them."""

import functools
import json
import random
from pathlib import Path

import numpy as np

from coca_train.config.corpus_schema import NearDuplicatesConfig, PrepareConfig
from coca_train.data.corpus_config import load

CONFIG = NearDuplicatesConfig(ngram=5, buckets=14, hashes_per_bucket=8, language="words")
RANDOM = random.Random(20)
WORDS = ["".join(RANDOM.choice("abcdefghijklmnop") for _ in range(RANDOM.randint(2, 9))) for _ in range(2000)]


def text(n_words: int, seed: int) -> str:
    """Words with sentences and lines, so that there is something to simplify."""
    chosen = random.Random(seed).choices(WORDS, k=n_words)
    return " ".join(word.capitalize() + ("," if i % 7 else ".\n") for i, word in enumerate(chosen))


def edited(original: str, changes: int, seed: int) -> str:
    """Other words in some places, as a second edition or another web site has them."""
    words, source = original.split(" "), random.Random(seed)
    for _ in range(changes):
        words[source.randrange(len(words))] = source.choice(WORDS)
    return " ".join(words)


@functools.cache
def grams(text: str) -> frozenset[tuple[str, ...]]:
    """The 5-grams of the lower-case words, by the plain definition."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return frozenset(tuple(words[i : i + 5]) for i in range(len(words) - 4))


def jaccard(a: str, b: str) -> float:
    return len(grams(a) & grams(b)) / len(grams(a) | grams(b))


def corpus(folder: Path, sources: dict[str, list[str]], *words: str) -> PrepareConfig:
    """A configuration over one .jsonl a source; `words` are overrides."""
    overrides = [f"corpus.dir={folder / 'out'}", "work.workers=1", *words]
    for name, texts in sources.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        overrides.append(f"+corpus.sources.{name}.files=[{path}]")
    return load(overrides)


def lists(config: PrepareConfig) -> dict[str, list[tuple[int, int]]]:
    folder = Path(config.corpus.dir) / "near_duplicates"
    values = {}
    for name in config.corpus.sources:
        array = np.load(folder / f"{name}.npy", allow_pickle=False)
        assert array.dtype == np.dtype([("input", "<u4"), ("line", "<u8")])
        values[name] = array.tolist()
    return values
