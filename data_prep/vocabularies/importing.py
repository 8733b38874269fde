"""An existing tokenizer, brought along: one file is read, checked and copied; nothing beside it is looked at or run."""

import hashlib
from pathlib import Path

from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, UserError
from data_prep.readers.base import shown
from data_prep.vocabularies.tokenizer_file import publish, refusal

NAMES = ("tokenizer.model", "tokenizer.json")
SUFFIX = {"sentencepiece": ".model", "huggingface": ".json"}
TEXT = "def f(x):\n\treturn x  # é, 漢字, \U0001f642\r\n\n  </s> <|endoftext|> 1234.5"


def bring(origin: Path, path: Path) -> bool:
    """Copy a tokenizer to `path`; False when the very same is there already.

    origin: a SentencePiece model, a tokenizer.json, or a folder with one (the model is preferred).
    Raises DataError: E-TKN-01 nothing there, 02 not a tokenizer, 03 no end of document, 05 another is there already,
    08 it does not give back a text as it should; UserError: 04 a package is missing, 06 `path` has another ending.
    """
    origin = found_in(origin)
    tokenizer = Tokenizer(origin)
    if path.suffix != SUFFIX[tokenizer.kind]:
        fix = f"write tokenizer.path={path.with_name('tokenizer')}{SUFFIX[tokenizer.kind]}"
        raise UserError(
            f"E-TKN-06 tokenizer.path={path}: {origin} is a {tokenizer.kind} file; the name of its copy has to end in "
            f"{SUFFIX[tokenizer.kind]}, as other programs expect. Fix: {fix}, for every verb"
        )
    back = tokenizer.decode(tokenizer.encode(TEXT))
    if tokenizer.lossless and back != TEXT:
        raise DataError(
            f"E-TKN-08 {origin}: makes {back!r} of {TEXT!r}, although nothing in the file says so; data made with it "
            "could not be verified. Fix: take the file from its authors again, or use another tokenizer"
        )
    model = origin.read_bytes()
    if hashlib.sha256(model).hexdigest() != tokenizer.digest:
        raise DataError(f"E-TKN-02 {origin}: changed while it was read. Fix: run the same command again")
    if path.exists():
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == tokenizer.digest:
            return False
        raise refusal(path, f"is not {origin}")
    publish(path, model, None)
    return True


def found_in(origin: Path) -> Path:
    """The tokenizer's file: `origin` itself, or the one in that folder. DataError E-TKN-01 when it holds none."""
    if not origin.is_dir():
        return origin
    for name in NAMES:
        if (origin / name).is_file():
            return origin / name
    there = ", ".join(sorted(shown(entry.name) for entry in origin.iterdir())[:8]) or "nothing"
    raise DataError(
        f"E-TKN-01 {origin}: holds neither {NAMES[0]} nor {NAMES[1]} (it holds {there}); one of them is needed. "
        "Fix: give the file itself, or save the tokenizer with save_pretrained of `transformers`"
    )
