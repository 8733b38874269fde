"""Tables of configurations that are refused, and what is said of them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coca_train.config.messages import ConfigError
from coca_train.settings import load

LINE = re.compile(r"^E-[A-Z]{3}-\d\d .+: .+\. Fix: .+$")


def table(text: str) -> Any:
    """Cases of `words | code | text | text …`; words that hold a blank stand between backquotes, and a line that begins
    with blanks belongs to the one above."""
    cases = []
    for line in text.strip().replace("\n  ", " ").splitlines():
        words, code, *texts = (part.strip() for part in line.split(" | "))
        cases.append(([bare or quoted for quoted, bare in re.findall(r"`([^`]*)`|(\S+)", words)], code, texts))
    ids = lambda value: " ".join(value) if isinstance(value, list) else None  # noqa: E731
    return pytest.mark.parametrize(("words", "code", "texts"), cases, ids=ids)


def refused(words: list[str], dirs: tuple[Path, ...] = (), load: Callable[..., Any] = load) -> list[str]:
    """The lines of the error, each checked for its form. load: of the configuration."""
    with pytest.raises(ConfigError) as caught:
        load(words, *([dirs] if dirs else []))
    assert caught.value.exit_code == 2
    for line in caught.value.lines:
        assert LINE.match(line), line
        assert "\n" not in line
    return caught.value.lines


def has(lines: list[str], code: str, texts: list[str]) -> None:
    """One of the lines has this code and all of these texts."""
    fitting = [line for line in lines if line.startswith(f"{code} ") and all(text in line for text in texts)]
    assert fitting, "\n".join(lines)
