"""What the text decides where the configuration does not: the size of the vocabulary, and how much is held out.

A report needs LEAST documents to say anything at all and WANTED to say it well, long ones among them; training needs
the text. So documents are held out in the order of their hash, which is the order in which a growing share takes them,
until there are enough or their share of the text is too large. From a few long texts, stretches are held out: a single
book would otherwise be all of it.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coca_train.config.corpus_schema import CorpusSourceConfig, PrepareConfig
from coca_train.data.readers import all_inputs, chunks, documents, inputs
from coca_train.data.readers.base import Document, Reject
from coca_train.data.readers.files import text_bytes
from coca_train.runtime import printing
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import percent
from data_prep import manifest
from data_prep.messages import bar, say
from data_prep.selection import Rules, digest_of, selected, stretches

LEAST = 20  # documents that a report needs to say anything (statistics.answers.LEAST)
WANTED = 60  # documents
SHARE = 0.005  # of the documents: enough of a large corpus
LONG = LEAST + LEAST // 5  # of them long: some more than the least, as a copy among them is dropped
MAX_SHARE_WANTED, MAX_SHARE_LEAST = 0.08, 0.1  # of the text: to hold out WANTED documents, and to hold out LEAST
CHARACTERS = (32_000, 16_000, 8_000, 4_000, 2_000, 1_000, 500)  # of a stretch: the longest of which there are enough
VOCABULARY = range(600, 32_000)  # [token ids]


class Documents(NamedTuple):
    """By document (or stretch of a long one): the hash that decides over it, uint64; its length [characters]."""

    places: np.ndarray
    lengths: np.ndarray


class HeldOut(NamedTuple):
    """What a share takes. text: share of the characters; long: how many of the documents are."""

    share: float
    documents: int
    text: float
    long: int


def vocabulary_for(n_bytes: int) -> int:
    """Choose a vocabulary for a text [bytes]: so small that each id occurs some hundred times in a small text, too."""
    return min(max(200 * round(math.sqrt(n_bytes) / 100), VOCABULARY.start), VOCABULARY.stop)


def stretch_for(n_bytes: int) -> int:
    """Choose the length of held-out stretches of a text [bytes], in characters, where a share of it is given."""
    return next((length for length in CHARACTERS if length * LONG <= MAX_SHARE_WANTED * n_bytes), CHARACTERS[-1])


def fit_vocab_size(config: PrepareConfig) -> PrepareConfig:
    """Fill in the size of the vocabulary, and say so, where it is open."""
    tokenizer = config.tokenizer
    if tokenizer.vocab_size is not None:
        return config
    n_bytes = _text_bytes(config)
    size = vocabulary_for(n_bytes) if n_bytes else VOCABULARY.stop
    if not Path(tokenizer.path).exists():
        say(vocabulary(size, n_bytes, "tokenizer.vocab_size"), config.work.progress_bar)
    return replace(config, tokenizer=replace(tokenizer, vocab_size=size))


def vocabulary(size: int, n_bytes: int, option: str) -> str:
    """Describe the size of a vocabulary. n_bytes: of the text; 0: not known."""
    text = f"{printing.n_bytes(n_bytes)} of text" if n_bytes else "a text of unknown size"
    return f"vocabulary: {size:,} token ids for {text} ({option}={size})"


def fit_valid_share(config: PrepareConfig, option: str = "corpus.valid_share") -> PrepareConfig:
    """Fill in the held-out share, and say so, where it is open. option: what sets it, for people.

    Reads the text for it, but not that of a finished corpus, and of a large one no more than is needed. Raises what
    readers raise, and the first bad document under work.on_error=stop.
    """
    corpus = config.corpus
    if corpus.valid_share is not None:
        return config
    if not any(source.hold_out == "hash" for source in corpus.sources.values()):
        return replace(config, corpus=replace(corpus, valid_share=0.0))
    try:  # what an existing corpus was made with
        settings = next(iter(manifest.read(corpus.dir)["settings"]["sources"].values()))
        length = corpus.valid_characters or settings["valid_characters"]
        return replace(config, corpus=replace(corpus, valid_share=settings["valid_share"], valid_characters=length))
    except (DataError, StopIteration, KeyError):
        pass  # there is none, or the code that needs it reports it
    lengths = (corpus.valid_characters,) if corpus.valid_characters else CHARACTERS
    by_length = {length: choose(found, length) for length, found in _documents(config, lengths).items()}
    length = next((each for each, taken in by_length.items() if taken.long >= LONG), lengths[-1])
    taken = by_length[length]
    say(
        f"held out: {taken.documents:,} documents, {percent(taken.text)} of the text; of texts beyond {2 * length:,} "
        f"characters, stretches of {length:,} ({option}={taken.share:g})",
        config.work.progress_bar,
    )
    return replace(config, corpus=replace(corpus, valid_share=taken.share, valid_characters=length))


def choose(documents: Documents, long: int) -> HeldOut:
    """Choose the share of documents to hold out. long: length from which on a document is long [characters]."""
    order = np.argsort(documents.places)
    places, lengths = documents.places[order], documents.lengths[order].astype(np.int64)
    text = np.cumsum(lengths) / max(1, int(lengths.sum()))
    longs = np.cumsum(lengths >= long)
    enough = np.flatnonzero((np.arange(1, len(lengths) + 1) >= WANTED) & (longs >= LONG))
    wanted = int(enough[0]) + 1 if len(enough) else len(lengths)
    within, at_most = int((text <= MAX_SHARE_WANTED).sum()), int((text <= MAX_SHARE_LEAST).sum())
    of_many = int((places < SHARE * 2.0**64).sum())
    n = max(min(wanted, max(within, min(at_most, LEAST))), min(at_most, of_many), 1)
    if n >= len(places):
        return HeldOut(0.0, 0, 0.0, 0)
    last, following = int(places[n - 1]), int(places[n])
    share = following / 2.0**64
    for digits in range(3, 17):  # the shortest decimal that takes the one place and not the other
        shorter = (math.floor(last / 2.0**64 * 10**digits) + 1) / 10**digits
        if last < shorter * 2.0**64 <= following:
            share = shorter
            break
    return HeldOut(share, n, float(text[n - 1]), int(longs[n - 1]))


def _documents(config: PrepareConfig, lengths: tuple[int, ...]) -> dict[int, Documents]:
    """Return for each length of stretches, the longest first, the documents there would be."""
    whole: list[tuple[int, int]] = []
    cut: dict[int, list[tuple[int, int]]] = {length: [] for length in lengths}
    n_taken = n_long = 0

    def entry(text: str) -> tuple[int, int]:
        return int.from_bytes(digest_of(text)[:8], "big"), len(text)

    with bar("looking at the text", _text_bytes(config) or None, config.work.progress_bar) as progress:
        for n_bytes, source, texts in _by_chunk(config):
            progress.update(n_bytes)
            for text in texts:
                whole.append(entry(text))
                for length in lengths:
                    if len(text) > 2 * length:
                        cut[length] += map(entry, stretches(text, source, length))
                taken = whole[-1][0] < SHARE * 2.0**64
                n_taken, n_long = n_taken + taken, n_long + (taken and len(text) >= lengths[0])
            if n_taken >= WANTED and n_long >= LONG:  # more text adds some, whatever it is
                break
    found = {}
    for length, pieces in cut.items():
        places, sizes = (
            zip(*(*(one for one in whole if one[1] <= 2 * length), *pieces), strict=True) if whole else ((), ())
        )
        found[length] = Documents(np.array(places, np.uint64), np.array(sizes, np.uint32))
    return found


def _by_chunk(config: PrepareConfig) -> Iterator[tuple[int, CorpusSourceConfig, list[str]]]:
    """Yield bytes, source and texts of the chunks that a share is taken from."""
    for name, source in sorted(config.corpus.sources.items()):
        if source.hold_out != "hash":
            continue
        rules = Rules(source.filter)
        for input in inputs(name, source):
            for chunk in chunks(input, source, config.work, None):
                texts = []
                for item in selected(documents(input.path, source, config.work, chunk), source, rules):
                    if isinstance(item, Document):
                        texts.append(item.text)
                    elif isinstance(item, Reject) and config.work.on_error == "stop":
                        raise item.error(input.path)
                yield chunk.n_bytes, source, texts


def _text_bytes(config: PrepareConfig) -> int:
    """Estimate the size of what is trained on [bytes]; 0: the hub's, not known before it is read."""
    every = all_inputs({name: one for name, one in config.corpus.sources.items() if one.hold_out != "all"})
    return 0 if any(input.hub for input in every) else sum(text_bytes(input.path, input.size) for input in every)
