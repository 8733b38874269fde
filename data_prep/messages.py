"""What verbs say while they work and when settings differ: bars and lines on stderr, changes in words."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tqdm import tqdm


def bar(what: str | None, total: int | None, enabled: bool, unit: str = "B", smoothing: float = 0.3) -> "tqdm":
    """Return tqdm's bar over `total` bytes, or over another unit; hidden where stderr is no terminal."""
    from tqdm import tqdm  # on first use: --help comes without it

    hidden = None if enabled else True
    return tqdm(total=total, desc=what, disable=hidden, unit=unit, unit_scale=True, smoothing=smoothing)


def say(message: str, enabled: bool = True) -> None:
    """Print a line on stderr."""
    if enabled:
        print(message, file=sys.stderr, flush=True)


def differences(before: object, now: object, name: str = "") -> list[str]:
    """Describe what differs between two trees of settings: "source.text_field was 'text', is 'content'".

    name: of the root, in front of every key. A section that one tree lacks is one difference.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        pairs = (
            (key, before.get(key, "nothing"), now.get(key, "nothing")) for key in sorted(before.keys() | now.keys())
        )
        return [line for key, old, new in pairs for line in differences(old, new, f"{name}.{key}" if name else key)]
    return [] if before == now else [f"{name} was {repr(before)[:80]}, is {repr(now)[:80]}"]


def join_first(changes: list[str]) -> str:
    """Join the first three changes into a sentence, and count the others."""
    return "; ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
