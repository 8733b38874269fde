"""Which files are held out: by a hash of the path, plus enough long ones to measure long contexts on."""

import hashlib
from collections.abc import Sequence

from data_prep.gather import Document

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
