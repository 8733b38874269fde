"""Text to token ids and back, with a SentencePiece model or a Hugging Face tokenizer.json."""

import errno
import hashlib
import os
from array import array
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from coca_train.data import special_tokens
from coca_train.data.dataset import best_dtype
from coca_train.data.storage import FULL_DIGEST_BYTES
from coca_train.data.tokenizer_backends import HuggingFace, SentencePiece
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import DataError, UserError
from coca_train.settings import TOKENIZERS

END_PIECES = ("</s>", "<|endoftext|>", "<eod>", "<|end_of_text|>", "<eos>")
BEGIN_PIECES = ("<s>", "<|begin_of_text|>", "<bos>")
UNKNOWN_PIECE = "<unk>"
SpecialTokensInText = Literal["text", "tokens"]
NOTHING: Mapping[str, int | str | None] = MappingProxyType({})
MAX_BYTES = FULL_DIGEST_BYTES - 1  # up to here the digest in a run's record is that of the whole file


class Tokenizer:
    """A SentencePiece model file, or a tokenizer.json (it begins with `{`).

    given: the tokens of roles (eod, bos, pad), an id or a piece, where the caller knows better than the files.

    Attributes: kind, "sentencepiece" or "huggingface"; vocab_size, the highest id + 1; eod, the id that ends every
    document; bos, the id that begins a text, None where there is none; pad; special, these with who said each; digest,
    SHA-256 of the file; identity, the same with the end of document where the file alone says another one.
    Raises DataError: E-TKN-01 missing, E-TKN-02 not a tokenizer, E-TKN-03 no end-of-document piece,
    E-TKN-12 an end that a text can spell, E-TKN-13 and 14 (special tokens); UserError E-TKN-04 a package is missing.
    """

    def __init__(self, path: str | Path, given: Mapping[str, int | str | None] = NOTHING) -> None:
        self.path = str(path)
        model = self._read()
        self.digest = hashlib.sha256(model).hexdigest()
        self.kind = "huggingface" if model[:1] == b"{" else "sentencepiece"
        try:
            self._backend = HuggingFace(model, self.path) if self.kind == "huggingface" else SentencePiece(model)
        except UserError:
            raise  # it is a ValueError too
        except ValueError as error:
            raise self._no_tokenizer(f"{error} ({len(model)} bytes, begins with {model[:8]!r})") from error
        self.vocab_size: int = self._backend.vocab_size
        self._dtype = np.dtype(best_dtype(self.vocab_size))
        own = {"eod": self._backend.eos, "bos": self._backend.bos}
        guess = {"eod": self._first(END_PIECES), "bos": self._first(BEGIN_PIECES)}
        self.special = special_tokens.read(Path(path), self._backend.id_of, own, guess, given, self._is_text)
        self.bos, self.pad = self.special.bos, self.special.pad
        self._backend.make_special({token for token in (self.special.eod, self.bos, self.pad) if token is not None})
        self.eod = self._check_eod(self.special.eod)
        alone = guess["eod"] if own["eod"] is None else own["eod"]
        self.identity = self.digest if self.eod == alone else f"{self.digest} that ends documents with {self.eod}"

    def _read(self) -> bytes:
        try:
            return untrusted_io.read_bytes(self.path, MAX_BYTES)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or str(error)
            if isinstance(error, OSError) and error.errno == errno.EFBIG:
                raise self._no_tokenizer(reason) from None
            raise DataError(
                f"E-TKN-01 {self.path}: {reason}; a SentencePiece model or a tokenizer.json is needed. Fix: check this "
                "path, or make one: python -m data_prep tokenizer (or embedded, for the quickstart)"
            ) from None

    def _no_tokenizer(self, what: str) -> DataError:
        return DataError(
            f"E-TKN-02 {self.path}: {what}; a SentencePiece model or a tokenizer.json is needed. Fix: check this path, "
            "or make one: python -m data_prep tokenizer"
        )

    def _first(self, pieces: tuple[str, ...]) -> int | None:
        tokens = (self._backend.id_of(piece) for piece in pieces)
        return next((i for i in tokens if i is not None), None)

    def _is_text(self, token: int) -> bool:
        return token >= self.vocab_size or not self._backend.may_be_special(token)

    def knows(self, tokens: object) -> bool:
        """Return whether an id, or each of a list, is one of its special tokens; null is none."""
        each = tokens if isinstance(tokens, list) else [tokens]
        return not any(isinstance(token, int) and token >= 0 and self._is_text(token) for token in each)

    def _check_eod(self, eod: int | None) -> int:
        if eod is None or eod >= self.vocab_size:
            what = "no piece that ends a document" if eod is None else f"{eod} as its end of document, which it has not"
            raise DataError(
                f"E-TKN-03 {self.path}: has {what} (known are {', '.join(END_PIECES)}). "
                "Fix: say which one does (tokenizer.eod=<piece>, in data_prep), or train the tokenizer with an eos id"
            )
        # A text that can spell the end would let its author cut a document in two.
        if (text := self._backend.spelled(eod)) is not None:
            raise DataError(
                f"E-TKN-12 {self.path}: a text with {text!r} in it is encoded as the end of a document; no text may "
                "hold it. Fix: make it a control piece (SentencePiece), or a special token (tokenizer.json)"
            )
        return eod

    @cached_property
    def control(self) -> frozenset[int]:
        """The ids that stand for no text (<s>, </s>, <pad>)."""
        return self._backend.control | {self.eod} | ({self.bos} if self.bos is not None else set())

    @property
    def begins(self) -> tuple[int, ...]:
        """The tokens that the file puts in front of a text: as its post-processor has it, in SentencePiece bos."""
        if isinstance(self._backend, HuggingFace):
            return self._backend.begins
        return () if self.bos is None else (self.bos,)

    def id_of(self, piece: str) -> int | None:
        """Return the id of a piece, of the unknown one too; None: there is no such piece."""
        token = self._backend.id_of(piece)
        return self._backend.unknown if token is None and piece == UNKNOWN_PIECE else token

    @property
    def unused_unknown(self) -> int | None:
        """The id of the unknown piece, where no text is encoded as it; None where there is none, or a text may be."""
        return self._backend.unknown if self._backend.has_all_bytes else None

    @property
    def lossless(self) -> bool:
        """Whether decode(encode(x)) == x for any text."""
        return self._backend.lossless

    def encode(self, text: str, special_tokens: SpecialTokensInText = "text") -> list[int]:
        """Encode a text, nothing added.

        special_tokens: what </s> and the like become where they are written out in the text. text: plain text, so that
        no document ends another; tokens: the tokens they name, in a prompt that follows a chat template.
        """
        return self._backend.encode(text) if special_tokens == "text" else self._backend.encode_special(text)

    def encode_batch(self, texts: list[str], num_threads: int) -> list[list[int]]:
        """Encode each text, by at most about num_threads threads."""
        return self._backend.encode_batch(texts, num_threads)

    def encode_array(self, text: str) -> np.ndarray:
        """Encode to an array of best_dtype(vocab_size), perhaps read-only; the fastest way to many ids."""
        ids = self._backend.encode_array(text)
        return np.frombuffer(array(self._dtype.char, self.encode(text)), self._dtype) if ids is None else ids

    def decode(self, ids: list[int]) -> str:
        """Decode ids; control ids and ids beyond the vocabulary (a padded embedding) give nothing."""
        return self._backend.decode([i for i in ids if 0 <= i < self.vocab_size and i not in self.control])


# Words, digits, letters of other scripts, and what follows a space: what two writings of one vocabulary would split
# differently first.
TEXT = "Mr. Utterson the lawyer was a man; 1 234,56 €, naïve façade, 北京, def main(argv): return 0"


def main_file(folder: Path) -> Path | None:
    """Return the tokenizer file of a folder to read, tokenizer.model or tokenizer.json; None where there is neither.

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
    """Return tokenizer.model or tokenizer.json, by what a file is. Raises OSError."""
    with os.fdopen(untrusted_io.open_file(file), "rb") as opened:
        return TOKENIZERS[opened.read(1) == b"{"]


def _n_tokens(path: Path) -> int:
    """Return the highest id in a tokenizer.json + 1, read without its library; 0 where the file says something else.

    Raises DataError E-TKN-15 where it is damaged, as it may be the one that the model goes with, and what `Tokenizer`
    raises.
    """
    try:
        data = untrusted_io.read_bytes(path)
        values = untrusted_io.from_json(data) if data[:1] == b"{" else None
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
