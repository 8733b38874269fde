"""tokenizer.json files of the Hugging Face `tokenizers` library: text to token ids and back.

Only this one file is read; no tokenizer_config.json, and never Python code that lies beside it.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from coca_train.runtime.errors import UserError

MOST_IDS = 1 << 22  # a single absurd id in the file would otherwise become as many rows of an embedding
ANY_TEXT = "a é 漢 \U0001f642 \u0378\n"


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

    def spelled(self, token: int) -> str | None:
        """The text that is encoded as this token, if its piece is one."""
        piece = self._model.id_to_token(token)
        return piece if token in self.encode(piece) else None

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

    def encode_batch(self, texts: Sequence[str], num_threads: int) -> list[list[int]]:
        """num_threads: 1, or more for as many as the library likes."""
        if num_threads == 1:
            return [self.encode(text) for text in texts]
        return [encoding.ids for encoding in self._model.encode_batch(list(texts), add_special_tokens=False)]

    def encode_array(self, text: str) -> None:
        """The library makes lists only."""

    def decode(self, ids: list[int]) -> str:
        return self._model.decode(ids, skip_special_tokens=False)


def _library(path: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            f"E-TKN-04 {path}: a Hugging Face tokenizer.json needs `tokenizers`, which cannot be imported ({error}). "
            "Fix: pip install 'coca-train[hf]'"
        ) from error
    return tokenizers


def _steps(part: Any) -> list[dict[str, Any]]:
    """A part of the pipeline as records, sequences taken apart."""
    if part is None:
        return []
    record = json.loads(part.__getstate__())
    return record.get("pretokenizers") or record.get("decoders") or [record]
