"""What is held out.

Of a corpus: documents, by a hash of the text. Of the embedded corpus: files, by a hash of the path, plus enough long
ones to measure long contexts on.
"""

import hashlib
from collections.abc import Sequence

from data_prep.quickstart.gather import Document
from data_prep.schema import CorpusSourceConfig

SHARE = 0.03
LONG_CHARACTERS = range(28_000, 60_000)  # more than 8 192 tokens; not so long that one file is the held-out set
N_LONG = 7


def place(file: str) -> float:
    """A number in [0, 1) that depends on nothing but the file's name."""
    return int.from_bytes(hashlib.sha256(file.encode()).digest()[:6], "big") / (1 << 48)


def held_out_files(documents: Sequence[Document]) -> set[str]:
    """Files whose place is below SHARE, and in each part the first N_LONG long documents by place.

    A source file is held out as a whole: its code and its docstrings never end up on different sides.
    """
    eligible = sorted((d for d in documents if d.may_be_held_out), key=lambda d: (place(d.file), d.file))
    held_out = {d.file for d in eligible if place(d.file) < SHARE}
    for part in sorted({d.part for d in eligible}):
        long = [d.file for d in eligible if d.part == part and len(d.text) in LONG_CHARACTERS]
        held_out |= set(long[:N_LONG])
    return held_out


def digest_of(text: str) -> bytes:
    """BLAKE2b-128 of a text as UTF-8: what two documents with the same text share."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def split_of(digest: bytes, source: CorpusSourceConfig, valid_share: float) -> int:
    """0: trained on, 1: held out. Nothing but the text decides under hold_out=hash, so no document ever moves.

    digest: `digest_of` the text. A larger valid_share holds out all that a smaller one does, and more.
    """
    if source.hold_out != "hash":
        return int(source.hold_out == "all")
    return int(int.from_bytes(digest[:8], "big") < valid_share * 2.0**64)
