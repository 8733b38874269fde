"""Which of the tokenizer files of a folder is read: tokenizer.model, or tokenizer.json where that knows more tokens."""

import os
from pathlib import Path

from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime import outside
from coca_train.runtime.errors import DataError
from coca_train.settings import TOKENIZERS

# Words, digits, letters of other scripts, and what follows a space: what two writings of one vocabulary would split
# differently first.
TEXT = "Mr. Utterson the lawyer was a man; 1 234,56 €, naïve façade, 北京, def main(argv): return 0"


def main_file(folder: Path) -> Path | None:
    """The file to read; None where there is none.

    Tokens that were added after training are in tokenizer.json alone, so that is taken where it has more of them and
    encodes as tokenizer.model does. Raises DataError E-TKN-15 where it does not or is damaged, and what `Tokenizer`
    raises.
    """
    files = [folder / name for name in TOKENIZERS if (folder / name).is_file()]
    if len(files) < 2:
        return files[0] if files else None
    model, fuller = files
    if _n_tokens(fuller) <= (ours := Tokenizer(model)).vocab_size:
        return model
    theirs = Tokenizer(fuller)
    if theirs.vocab_size <= ours.vocab_size:
        return model
    if (one := ours.encode(TEXT)) != (other := theirs.encode(TEXT)):
        at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
        raise DataError(
            f"E-TKN-15 {folder}: {TOKENIZERS[1]} has {theirs.vocab_size - ours.vocab_size} tokens more than "
            f"{TOKENIZERS[0]} and encodes a text in another way (token {at} is {other[at : at + 1]}, not "
            f"{one[at : at + 1]}); one of them is not the model's. Fix: name the right one: tokenizer={fuller} "
            f"(import), tokenizer.import_from={fuller} (data_prep)"
        )
    return fuller


def main_name(file: Path) -> str:
    """tokenizer.model or tokenizer.json, by what a file is. Raises OSError."""
    with os.fdopen(outside.open_file(file), "rb") as opened:
        return TOKENIZERS[opened.read(1) == b"{"]


def _n_tokens(path: Path) -> int:
    """The highest id in a tokenizer.json + 1, read without the library for it; 0 where the file says something else.

    Raises DataError E-TKN-15 where it is damaged, as it may be the one that the model goes with, and what `Tokenizer`
    raises.
    """
    try:
        data = outside.read_bytes(path)
        values = outside.from_json(data) if data[:1] == b"{" else None
    except (OSError, ValueError) as error:
        raise DataError(
            f"E-TKN-15 {path}: cannot be read ({getattr(error, 'strerror', None) or error}), and it may have "
            f"tokens that {TOKENIZERS[0]} has not. Fix: download it again, or name the right one: "
            f"tokenizer={(other := path.with_name(TOKENIZERS[0]))} (import), tokenizer.import_from={other} (data_prep)"
        ) from error
    if values is None:  # a tokenizer of another kind, whatever its name is
        return Tokenizer(path).vocab_size
    try:
        vocabulary = values["model"]["vocab"]
        added = [token["id"] for token in values.get("added_tokens") or ()]
        ids = [*(vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))), *added]
        return max(ids, default=-1) + 1
    except (KeyError, TypeError):
        return 0
