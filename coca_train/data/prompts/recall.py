"""The words of key-value recall (arXiv 2307.03172): a JSON object of random pairs, then one of its keys."""

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Literal

from coca_train.data.prompts.words import EVERYDAY, common, word

Form = Literal["words", "common", "digits", "hex", "uuid"]
FORMS: dict[Form, Callable[[random.Random], str]] = {
    "words": word,
    "common": common,
    "digits": lambda draw: f"{draw.randrange(10**6):06}",
    "hex": lambda draw: f"{draw.getrandbits(32):08x}",
    "uuid": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}
HOW_MANY: dict[Form, int] = {"common": len(EVERYDAY)}  # of forms that a long prompt could run out of


def text(keys: Sequence[str], values: Sequence[str], asked: str) -> str:
    """The prompt."""
    return f'{before(keys, values, len(keys))}\n}}\n"{asked}":'


def before(keys: Sequence[str], values: Sequence[str], n: int) -> str:
    """What stands before pair n."""
    lines = ",\n".join(f'"{key}": "{value}"' for key, value in zip(keys[:n], values[:n], strict=True))
    return "{\n" + lines + (",\n" if 0 < n < len(keys) else "")


def right(value: str) -> str:
    """What is to be generated."""
    return f' "{value}"'
