"""What a long verb says while it works, on stderr: a bar, or a line."""

import sys
from typing import Any


def bar(what: str | None, total: int | None, shown: bool, **options: Any) -> Any:
    """tqdm's bar over `total` bytes, or over the unit in `options`; hidden where stderr is no terminal."""
    from tqdm import tqdm  # on first use: --help comes without it

    known = {"unit": "B", "unit_scale": True, **options}
    return tqdm(total=total, desc=what, disable=None if shown else True, **known)


def say(message: str, shown: bool = True) -> None:
    if shown:
        print(message, file=sys.stderr, flush=True)
