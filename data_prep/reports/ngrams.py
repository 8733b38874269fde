"""Runs of n words as 64-bit numbers, vectorised: the same words in a row give the same number, wherever they stand.

A word is a run of letters, marks and digits (Unicode categories L, M, N) of the lower-cased text; everything else,
the underscore too, parts words and is not looked at. So "Don't stop" is the three words don, t, stop. Two different
runs get the same number with probability 2^-64.
"""

import unicodedata
from collections.abc import Iterator
from functools import cache

import numpy as np

from coca_train.data.tokenizer import Tokenizer

BASE = np.uint64(0x9E3779B97F4A7C55)  # odd, so that no power of it vanishes modulo 2^64
STEP = np.uint64(0xD6E8FEB86659FD93)
PIECE = 1 << 18  # tokens decoded at a time, of one document


@cache
def _word_table() -> np.ndarray:
    """bool (0x110000,): whether a code point belongs to a word."""
    return np.array([unicodedata.category(chr(point))[0] in "LMN" for point in range(0x110000)])


def _mixed(values: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of the value (splitmix64's finaliser)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def words(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The words of all texts in a row: uint64 (w,) hashes, and int64 (len(texts),) how many each text has.

    A word is hashed as a polynomial in BASE over its code points, modulo 2^64, then mixed.
    """
    lowered = [text.lower() for text in texts]
    chars = np.frombuffer("\n".join(lowered).encode("utf-32-le"), "<u4")
    inside = _word_table()[chars]
    edges = np.diff(inside.astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    bounds = np.cumsum([len(text) + 1 for text in lowered])
    counts = np.diff(np.searchsorted(starts, bounds), prepend=0)
    if not len(starts):
        return np.empty(0, np.uint64), counts
    lengths = stops - starts
    firsts = np.cumsum(lengths) - lengths  # of each word among the characters of words
    places = np.arange(lengths.sum()) - np.repeat(firsts, lengths)
    powers = np.multiply.accumulate(np.full(int(lengths.max()), BASE))
    return _mixed(np.add.reduceat(chars[inside] * powers[places], firsts)), counts


def ngrams(hashes: np.ndarray, n: int) -> np.ndarray:
    """uint64 (max(0, w - n + 1),): a number for each n words in a row, from the first word on."""
    size = max(0, len(hashes) - n + 1)
    numbers = np.zeros(size, np.uint64)
    for k in range(n):
        numbers = numbers * STEP + hashes[k : k + size]
    return numbers


def of_documents(texts: list[str], n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-grams of each text, none across two: uint64 (g,) numbers and int64 (g,) which text each is of, rising."""
    hashes, counts = words(texts)
    text_of_word = np.repeat(np.arange(len(texts)), counts)
    whole = text_of_word[: max(0, len(hashes) - n + 1)] == text_of_word[n - 1 :]
    return ngrams(hashes, n)[whole], text_of_word[: len(whole)][whole]


def of_long_document(ids: np.ndarray, tokenizer: Tokenizer, n: int) -> np.ndarray:
    """uint64 (g,): the n-grams of one document of any length, decoded piece by piece. ids: int64 (tokens,)."""
    return ngrams(np.concatenate([words([text])[0] for text in pieces(ids, tokenizer)]), n)


def pieces(ids: np.ndarray, tokenizer: Tokenizer) -> Iterator[str]:
    """The text of a document in pieces of at most PIECE tokens, parted where a token begins with white space.

    So no word is cut, unless PIECE tokens in a row have no white space.
    """
    start = 0
    while len(ids) - start > PIECE:
        stop = start + PIECE
        stop = next((at for at in range(stop, start, -1) if _begins_with_space(int(ids[at]), tokenizer)), stop)
        yield tokenizer.decode(ids[start:stop].tolist())
        start = stop
    yield tokenizer.decode(ids[start:].tolist())


def _begins_with_space(token: int, tokenizer: Tokenizer) -> bool:
    """Some tokenizers drop white space where a text begins, so it is looked for between two of the same."""
    return tokenizer.decode([token, token])[len(tokenizer.decode([token])) :][:1].isspace()
