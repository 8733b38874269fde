"""SentencePiece, wrapped: text to token ids and back."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from coca_train.config.errors import DataError

END_PIECES = ("</s>", "<|endoftext|>", "<eod>", "<|end_of_text|>")


class Tokenizer:
    """A SentencePiece model file.

    Attributes: vocab_size; eod, the id that ends every document (the model's </s>); digest, SHA-256 of the file.
    Raises DataError: E-TKN-01 missing, E-TKN-02 not a SentencePiece model, E-TKN-03 no end-of-document piece.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        try:
            model = Path(path).read_bytes()
        except OSError as error:
            raise DataError(
                f"E-TKN-01 {path}: {error.strerror}; a SentencePiece model file is needed. "
                "Fix: check data.tokenizer, or run: python -m data_prep embedded"
            ) from error
        self.digest = hashlib.sha256(model).hexdigest()
        self._model = self._parse(model)
        self.vocab_size: int = self._model.get_piece_size()
        self.eod = self._find_eod()

    def _parse(self, model: bytes) -> Any:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(model) and processor.LoadFromSerializedProto(model) and processor.get_piece_size() > 0
        except (RuntimeError, ValueError, OSError):
            loaded = False
        if not loaded:
            raise DataError(
                f"E-TKN-02 {self.path}: not a SentencePiece model ({len(model)} bytes, begins with {model[:8]!r}); "
                "a *.model file is needed. Fix: check data.tokenizer, or train one: python -m data_prep embedded"
            )
        return processor

    def _find_eod(self) -> int:
        if self._model.eos_id() >= 0:
            return self._model.eos_id()
        for piece in END_PIECES:
            if self._model.piece_to_id(piece) != self._model.unk_id():
                return self._model.piece_to_id(piece)
        raise DataError(
            f"E-TKN-03 {self.path}: has no piece that ends a document ({', '.join(END_PIECES)}); one is needed. "
            "Fix: train the tokenizer with an eos id"
        )

    @cached_property
    def control(self) -> frozenset[int]:
        """Ids that stand for no text (<s>, </s>, <pad>)."""
        return frozenset(i for i in range(self.vocab_size) if self._model.is_control(i))

    def encode(self, text: str) -> list[int]:
        """Text to ids, nothing added. Pieces like </s> written out in the text are encoded as plain text."""
        return self._model.encode(text)

    def encode_batch(self, texts: list[str], num_threads: int) -> list[list[int]]:
        return self._model.encode(texts, num_threads=num_threads)

    def decode(self, ids: list[int]) -> str:
        """Ids to text; control ids and ids beyond the vocabulary (a padded embedding) give nothing."""
        return self._model.decode([i for i in ids if 0 <= i < self.vocab_size and i not in self.control])
