"""A text encoded word by word, with the words remembered: what SentencePiece gives for the whole text, much sooner.

SentencePiece merges a whole document through one queue, which outgrows the caches of a processor after some thousand
characters. Where no piece reaches over the border of two words, the words can as well be encoded alone, and most of
them have been seen before.
"""

import re
from array import array
from collections.abc import Callable, Collection
from itertools import islice
from operator import itemgetter

import numpy as np

SPACES = " \u2581"  # pieces have U+2581 for a space
SIGNS = {c for c in map(chr, range(128)) if not c.isalpha() and c not in " \n"}
REACHES_OVER = re.compile(f"[^{SPACES}][{SPACES}]|\n.|.\n", re.DOTALL)
LONGEST_KEPT = 32  # longer words hardly come twice [characters]
MOST_KEPT = 1 << 17  # about 25 MB
LONG_TEXT = 1 << 18  # from here on words are not listed all at once: that takes thirty times the text [characters]
WORDS_AT_A_TIME = 1 << 16


def word_pattern(pieces: Collection[str]) -> re.Pattern[str] | None:
    """What a word is, so that no piece reaches over the border of two; None when a piece joins words or lines.

    A word is a run of spaces and the letters, or the signs, that follow; a new line ends it. Signs are what is no
    ASCII letter, and whatever a piece joins to a sign (in most vocabularies pieces do not mix scripts).
    """
    if any(map(REACHES_OVER.search, pieces)):
        return None
    signs, new = set(SIGNS), set(SIGNS)
    while new:
        new = {c for piece in pieces if not signs.isdisjoint(piece) for c in piece} - signs - set(SPACES)
        signs |= new
    those = "".join(map(re.escape, sorted(signs - {"\n"})))
    return re.compile(f"[{SPACES}]*(?:[{those}]+\n?|[^{SPACES}{those}\n]+|\n)|[{SPACES}]+")


class Words(dict[str, bytes]):
    """word -> its ids; encodes what is not there yet. Begun anew when full, so memory stays bounded.

    Gives the ids of the whole text where pieces are found by merges (BPE), which depend on nothing outside of the
    word. Unigram adds up rounded scores from the beginning of a text, so there some ids would differ.
    """

    def __init__(self, encode: Callable[[str], list[int]], pattern: re.Pattern[str], dtype: np.dtype) -> None:
        super().__init__()
        self._encode, self._pattern, self._dtype = encode, pattern, dtype

    def __missing__(self, word: str) -> bytes:
        ids = array(self._dtype.char, self._encode(word)).tobytes()
        if len(word) <= LONGEST_KEPT:
            if len(self) >= MOST_KEPT:
                self.clear()
            self[word] = ids
        return ids

    def encode_text(self, text: str) -> np.ndarray:
        """Ids of a text, int[tokens], read-only."""
        if len(text) < LONG_TEXT:
            return np.frombuffer(b"".join(map(self.__getitem__, self._pattern.findall(text))), self._dtype)
        parts, words = [], map(itemgetter(0), self._pattern.finditer(text))
        while some := list(islice(words, WORDS_AT_A_TIME)):
            parts.append(b"".join(map(self.__getitem__, some)))
        return np.frombuffer(b"".join(parts), self._dtype)
