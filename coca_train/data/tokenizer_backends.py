"""SentencePiece model files: text to token ids and back, word by word with the words remembered where that is the same.

SentencePiece merges a whole document through one queue, which outgrows the caches of a processor after some thousand
characters. Where no piece reaches over the border of two words, the words can as well be encoded alone, and most of
them have been seen before.
"""

import json
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from operator import itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from coca_train.data.dataset import best_dtype
from coca_train.runtime.errors import UserError

if TYPE_CHECKING:
    import tokenizers

SPACES = " \u2581"  # pieces have U+2581 for a space
SIGNS = {c for c in map(chr, range(128)) if not c.isalpha() and c not in " \n"}
REACHES_OVER = re.compile(f"[^{SPACES}][{SPACES}]|\n.|.\n", re.DOTALL)
LONGEST_KEPT = 32  # longer words hardly come twice [characters]
MOST_KEPT = 1 << 17  # about 25 MB
LONG_TEXT = 1 << 18  # from here on words are not listed all at once: that takes thirty times the text [characters]
WORDS_AT_A_TIME = 1 << 16
BPE = 2
SPACE = "\u2581"  # how SentencePiece writes a space; in a text it would be taken for one


def word_pattern(pieces: Collection[str]) -> re.Pattern[str] | None:
    """Return what a word is, so that no piece reaches over the border of two; None when a piece joins words or lines.

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


class WordCache(dict[str, bytes]):
    """word -> its ids; encodes what is not there yet. Emptied when full, so memory stays bounded.

    Gives the ids of the whole text where pieces are found by merges (BPE), which depend on nothing outside of the
    word. Unigram adds up rounded scores from the beginning of a text, so there some ids would differ.
    """

    def __init__(self, encode: Callable[[str], list[int]], pattern: re.Pattern[str], dtype: np.dtype) -> None:
        super().__init__()
        self._encode, self._pattern, self._dtype = encode, pattern, dtype

    def __missing__(self, word: str) -> bytes:
        ids = array(self._dtype.char, self._encode(word)).tobytes()
        if len(word) <= LONGEST_KEPT:
            if len(self) >= MOST_KEPT:  # all at once: the common words are back after a page of text
                self.clear()
            self[word] = ids
        return ids

    def encode_text(self, text: str) -> np.ndarray:
        """Return the ids of a text, int[tokens], read-only."""
        if len(text) < LONG_TEXT:
            return np.frombuffer(b"".join(map(self.__getitem__, self._pattern.findall(text))), self._dtype)
        parts, words = [], map(itemgetter(0), self._pattern.finditer(text))
        while some := list(islice(words, WORDS_AT_A_TIME)):
            parts.append(b"".join(map(self.__getitem__, some)))
        return np.frombuffer(b"".join(parts), self._dtype)


class SentencePiece:
    """A SentencePiece model. Raises ValueError when the bytes are none.

    Attributes: vocab_size; eos, bos: ids of the model's own end and beginning of text, None where it has none.
    """

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._model = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(model) and self._model.LoadFromSerializedProto(model) and self._model.get_piece_size() > 0
        except (RuntimeError, ValueError, OSError):
            loaded = False
        if not loaded:
            raise ValueError(f"not a SentencePiece model{_looks_like(model)}")
        self.vocab_size: int = self._model.get_piece_size()
        self.eos, self.bos = (i if i >= 0 else None for i in (self._model.eos_id(), self._model.bos_id()))

    def id_of(self, piece: str) -> int | None:
        token = self._model.piece_to_id(piece)
        return None if token == self._model.unk_id() else token

    @property
    def unknown(self) -> int:
        return self._model.unk_id()

    @property
    def has_all_bytes(self) -> bool:
        """Whether any text can be encoded without the unknown token."""
        return self.facts.byte_fallback

    def spelled(self, token: int) -> str | None:
        """Return the text that is encoded as this token, if its piece is one."""
        piece = self._model.id_to_piece(token)
        return piece if token in self._model.encode(piece) else None

    def may_be_special(self, token: int) -> bool:
        """Return whether a token can stand for no text: no text is encoded as it."""
        return self.spelled(token) is None

    def make_special(self, tokens: Collection[int]) -> None:
        """Do nothing: what `may_be_special` allows is special."""

    @cached_property
    def control(self) -> frozenset[int]:
        return frozenset(i for i in range(self.vocab_size) if self._model.is_control(i))

    @cached_property
    def facts(self) -> "ModelFacts":
        return ModelFacts.of(self._model.serialized_model_proto())

    @property
    def lossless(self) -> bool:
        return self.facts.byte_fallback and self.facts.changes_nothing

    @cached_property
    def words(self) -> WordCache | None:
        """The cache, where it gives the ids of the whole text: merges, each character known or bytes, nothing
        changed."""
        if not (self.facts.algorithm == BPE and self.facts.byte_fallback and self.facts.changes_nothing):
            return None
        model = self._model
        ids = [
            i for i in range(self.vocab_size) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))
        ]
        pattern = word_pattern([piece for piece in model.id_to_piece(ids) if piece != "\n"])
        return None if pattern is None else WordCache(self._whole, pattern, np.dtype(best_dtype(self.vocab_size)))

    def _whole(self, text: str) -> list[int]:
        """Encode with the library; where no text may be lost, U+2581 is encoded as its bytes, not as a space."""
        if SPACE not in text or not self.lossless:
            return self._model.encode(text)
        bytes_of_it = [self._model.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]
        first, *others = (self._model.encode(part) for part in text.split(SPACE))
        return first + [i for ids in others for i in (*bytes_of_it, *ids)]

    def encode(self, text: str) -> list[int]:
        return self._whole(text) if self.words is None else self.words.encode_text(text).tolist()

    def encode_special(self, text: str) -> list[int]:
        """Encode a text in which control pieces that are written out are these; what is between them alone."""
        pieces = {self._model.id_to_piece(token): token for token in self.control}
        parts = re.split(f"({'|'.join(map(re.escape, pieces))})", text) if pieces else [text]
        return [id for part in parts if part for id in ([pieces[part]] if part in pieces else self.encode(part))]

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        """num_threads: only where texts are encoded as a whole; words that are remembered need no threads."""
        if self.words is None and not (self.lossless and any(SPACE in text for text in texts)):
            return self._model.encode(list(texts), num_threads=num_threads)
        return [self.encode(text) for text in texts]

    def encode_array(self, text: str) -> np.ndarray | None:
        """Return the ids as an array, where they are not made as a list first."""
        return None if self.words is None else self.words.encode_text(text)

    def decode(self, ids: list[int]) -> str:
        return self._model.decode(ids)


def _looks_like(model: bytes) -> str:
    """Say what a file that is no model may be instead."""
    word, space, number = model[:100].split(b"\n")[0].partition(b" ")
    if space and number.isdigit() and word.isascii():
        return " but, it seems, one of tiktoken, which is not read; the same tokenizer as tokenizer.json is"
    return ""


@dataclass(frozen=True)
class ModelFacts:
    """What a model says about itself.

    algorithm: 1 unigram, 2 BPE, 3 word, 4 character; byte_fallback: characters without a piece become bytes;
    changes_nothing: no normalisation either way, no space added in front, none removed.
    """

    algorithm: int
    byte_fallback: bool
    changes_nothing: bool

    @staticmethod
    def of(model: bytes) -> "ModelFacts":
        """Read a serialised ModelProto (sentencepiece_model.proto; the numbers of its fields are fixed for good)."""
        sections = {number: value for number, value in fields(model) if isinstance(value, bytes)}
        trainer, normalizer, denormalizer = (dict(fields(sections.get(n, b""))) for n in (2, 3, 5))
        untouched = not normalizer.get(2) and not normalizer.get(3, 1) and not normalizer.get(4, 1)
        return ModelFacts(int(trainer.get(3, 1)), bool(trainer.get(35, 0)), untouched and not denormalizer.get(2))


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a protocol buffer message: whole numbers, or raw bytes.

    Enough for what the library itself has serialised; protobuf is no dependency of ours.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
        else:
            size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1


MOST_IDS = 1 << 22  # a single absurd id in the file would otherwise become as many rows of an embedding
ANY_TEXT = "a é 漢 \U0001f642 \u0378\n"


class Pipeline(Protocol):
    """A part of a pipeline of `tokenizers`."""

    def __getstate__(self) -> bytes: ...


class HuggingFace:
    """A tokenizer.json. Raises ValueError when it is none; UserError E-TKN-04 without the library.

    What the file asks for besides is switched off: truncation, padding, dropout, added special tokens.
    """

    eos = bos = None  # the file does not say which tokens these are

    def __init__(self, model: bytes, path: str) -> None:
        tokenizers = _library(path)
        try:
            self._model = tokenizers.Tokenizer.from_str(model.decode("utf-8"))
            self._model.no_truncation()
            self._model.no_padding()
            self._model.encode_special_tokens = True
            if getattr(self._model.model, "dropout", None) is not None:
                self._model.model.dropout = None
            ids = self._model.get_vocab(with_added_tokens=True).values()
            self._model.encode(ANY_TEXT, add_special_tokens=False)
        except UnicodeDecodeError as error:
            raise ValueError(f"not a tokenizer.json: no UTF-8 at byte {error.start}") from error
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library's errors are plain Exception, its panics not even that
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"not a tokenizer.json that `tokenizers` {tokenizers.__version__} uses: {reason}"
            ) from error
        self.vocab_size = max(ids, default=-1) + 1
        if not 0 < self.vocab_size <= MOST_IDS:
            raise ValueError(
                f"a tokenizer.json whose highest id is {self.vocab_size - 1}; 0 .. {MOST_IDS - 1} is possible"
            )

    def id_of(self, piece: str) -> int | None:
        return self._model.token_to_id(piece)

    @property
    def unknown(self) -> int | None:
        piece = getattr(self._model.model, "unk_token", None)
        return None if piece is None else self.id_of(piece)

    @property
    def has_all_bytes(self) -> bool:
        """Whether any text can be encoded without the unknown token."""
        in_bytes = getattr(self._model.model, "byte_fallback", False)
        return self.lossless or (in_bytes and all(self.id_of(f"<0x{byte:02X}>") is not None for byte in range(256)))

    def spelled(self, token: int) -> str | None:
        """Return the text that is encoded as this token, if its piece is one."""
        piece = self._model.id_to_token(token)
        return piece if token in self.encode(piece) else None

    def may_be_special(self, token: int) -> bool:
        """Return whether a token can stand for no text: it was added, or no text is encoded as it."""
        return token in self._model.get_added_tokens_decoder() or self.spelled(token) is None

    def make_special(self, tokens: Collection[int]) -> None:
        """Encode the texts of added tokens as text though the file does not call them special.

        Some files call the token that ends a text of theirs an ordinary one, and name it as eos_token all the same.
        """
        record = json.loads(self._model.to_str())
        changed = [token for token in record["added_tokens"] if token["id"] in tokens and not token["special"]]
        if changed:
            for token in changed:
                token["special"] = True
            self._model = type(self._model).from_str(json.dumps(record))
            self._model.encode_special_tokens = True

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """The tokens that the file's post-processor puts in front of a text."""
        encoding = self._model.encode("a")
        marked = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        return tuple(id for id, _ in takewhile(itemgetter(1), marked))

    @cached_property
    def control(self) -> frozenset[int]:
        return frozenset(i for i, token in self._model.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def lossless(self) -> bool:
        """Byte level (every byte has a token), no normaliser, nothing stripped, nothing added."""
        from tokenizers import pre_tokenizers

        steps = _steps(self._model.pre_tokenizer)
        byte_level = [step for step in steps if step["type"] == "ByteLevel"]
        keeps_all = all(
            step["type"] in ("ByteLevel", "Digits") or (step["type"] == "Split" and step["behavior"] != "Removed")
            for step in steps
        )
        tokens = self._model.get_added_tokens_decoder().values()
        return (
            self._model.normalizer is None
            and keeps_all
            and len(byte_level) == 1
            and not byte_level[0]["add_prefix_space"]
            and [step["type"] for step in _steps(self._model.decoder)] == ["ByteLevel"]
            and not any(token.lstrip or token.rstrip for token in tokens if not token.special)
            and all(self._model.token_to_id(c) is not None for c in pre_tokenizers.ByteLevel.alphabet())
        )

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text, add_special_tokens=False).ids

    def encode_special(self, text: str) -> list[int]:
        """Encode a text in which special tokens that are written out are these."""
        return self._with_special_tokens.encode(text, add_special_tokens=False).ids

    @cached_property
    def _with_special_tokens(self) -> "tokenizers.Tokenizer":
        copy = type(self._model).from_str(self._model.to_str())
        copy.encode_special_tokens = False
        return copy

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        """num_threads: 1, or more for as many as the library likes."""
        if num_threads == 1:
            return [self.encode(text) for text in texts]
        return [encoding.ids for encoding in self._model.encode_batch(list(texts), add_special_tokens=False)]

    def encode_array(self, text: str) -> None:
        """Return None: the library makes lists only."""

    def decode(self, ids: list[int]) -> str:
        return self._model.decode(ids, skip_special_tokens=False)


def _library(path: str) -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            f"E-TKN-04 {path}: a Hugging Face tokenizer.json needs `tokenizers`, which cannot be imported ({error}). "
            "Fix: pip install 'coca-train[hf]'"
        ) from error
    return tokenizers


def _steps(part: Pipeline | None) -> list[dict[str, object]]:
    """Return a part of the pipeline as records, sequences taken apart."""
    if part is None:
        return []
    record = json.loads(part.__getstate__())
    return record.get("pretokenizers") or record.get("decoders") or [record]
