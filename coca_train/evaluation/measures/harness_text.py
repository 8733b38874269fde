"""How the tasks of lm-evaluation-harness become tokens and answers become text: as its class `HFLM` does it (lm_eval
0.4.13, models/huggingface.py).

A Hugging Face folder is read by transformers' own tokenizer, which decides whether a text begins with the token for it;
`add_bos_token` says otherwise, as `lm_eval --model hf --model_args add_bos_token=...` does. A text that already begins
with that token, spelled out, gets no second one. A run is read by its own tokenizer (data/tokenizer.py).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import transformers_side
from coca_train.runtime.errors import DataError

GENERATION, CONFIG = "generation_config.json", "config.json"
PROBE = "a text, and 12 of them"


@dataclass(frozen=True)
class OwnText:
    """Text to tokens and back, of a run. begin: in front of every text, nothing or one token.

    prefix: the token in front of what has no context. ends: tokens that end a generation. stops: texts that do.
    counter: as much of a tokenizer of transformers as tasks use to count tokens. identity: differs where texts are read
    in another way.
    """

    tokenizer: Tokenizer
    begin: tuple[int, ...] = ()

    @property
    def prefix(self) -> int:
        return self.begin[0] if self.begin else self.tokenizer.eod

    @property
    def ends(self) -> frozenset[int]:
        return frozenset((self.tokenizer.eod,))

    @property
    def stops(self) -> tuple[str, ...]:
        return ()

    @property
    def counter(self) -> Callable[[str], object]:
        return lambda text: SimpleNamespace(input_ids=self.tokenizer.encode(text))

    @property
    def identity(self) -> str:
        return f"{self.tokenizer.digest} {self.begin}"

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """special: whether the token that begins a text is put in front; None: as this text is read by itself."""
        return [*(() if special is False else self.begin), *self.tokenizer.encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))


@dataclass(frozen=True)
class FolderText:
    """Of a Hugging Face folder, by transformers' tokenizer, as lm_eval reads it. Raises what `tokenizer` raises."""

    folder: Path
    add_bos_token: bool | None = None

    @cached_property
    def _tokenizer(self) -> Any:
        options = {} if self.add_bos_token is None else {"add_bos_token": self.add_bos_token}
        return transformers_side.load_tokenizer(self.folder, **options)

    @property
    def prefix(self) -> int:
        begin, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        found = end if begin is None else begin
        if found is None:
            raise DataError(
                f"E-EVAL-32 {self.folder}: its tokenizer has neither bos_token nor eos_token; one of them is needed in "
                "front of what has no context. Fix: name them in tokenizer_config.json"
            )
        return found

    @cached_property
    def ends(self) -> frozenset[int]:
        """What transformers' generate stops at: generation_config.json's, where there is one, else config.json's."""
        file = next(self.folder / name for name in (GENERATION, CONFIG) if (self.folder / name).is_file())
        said = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        listed = said if isinstance(said, list) else [said]
        return frozenset(token for token in listed if isinstance(token, int))

    @property
    def stops(self) -> tuple[str, ...]:
        end = self._tokenizer.eos_token_id
        return () if end is None else (self._tokenizer.decode(end),)

    @property
    def counter(self) -> Callable[[str], object]:
        return self._tokenizer

    @property
    def identity(self) -> str:
        return f"{self.encode(PROBE)} {self.prefix} {sorted(self.ends)} {self.stops} {self.add_bos_token}"

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        if special is None:
            begun = text.startswith(self._tokenizer.decode(self.prefix))
            special = False if begun else self.add_bos_token
        options = {} if special is None else {"add_special_tokens": special}
        return self._tokenizer.encode(text, **options)

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


TaskText = OwnText | FolderText
