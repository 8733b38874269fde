"""The terminal output of a training: a progress bar (plain lines where there is no terminal), and a line a
validation."""

import shutil
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from coca_train.runtime import dist
from coca_train.tracking.trackers import Record, Sink

if TYPE_CHECKING:
    from tqdm import tqdm

RECENT_S = 60.0  # of which the rate gives the time left
SHOWN_FROM = 0.05  # share of the steps: before, the time left would be a guess
VALIDATION = "valid/"


class ProgressSink(Sink):
    """A bar on stderr; where that is not a terminal, plain lines, at most one in `every_s` seconds.

    The time left follows from the last minute, so that it reacts when a machine becomes slower, and from the steps
    after the first, which includes set-up.
    """

    SHOWN = (
        ("loss", "loss", "{:.4f}"),
        ("tokens_per_s", "tok/s", "{:,.0f}"),
        ("lr", "lr", "{:.2e}"),
        ("mfu", "MFU", "{:.1%}"),
    )
    NARROWEST_BAR = 5  # columns

    def __init__(self, max_steps: int, every_s: float = 5.0) -> None:
        self._max_steps = max_steps
        self._every_s = every_s
        self._first: int | None = None  # step of the first record
        self._recent: deque[tuple[int, float]] = deque()  # step and time of records
        self._last_line = float("-inf")
        self._bar: tqdm | None = None

    def write(self, step: int, record: Record) -> None:
        if said := validation(record):
            dist.log(f"step {step} {said}")
        if "loss" not in record:
            return
        now = time.monotonic()
        left = self._left(step, now)
        figures = [
            f"{name} {form.format(record[key])}" for key, name, form in self.SHOWN if record.get(key) is not None
        ]
        count = f"step {step}/{self._max_steps} ({step / self._max_steps:.0%})"
        if sys.stderr.isatty():
            self._draw(step, count, figures, left)
        elif now - self._last_line >= self._every_s or step == self._max_steps:
            self._last_line = now
            print("  ".join([count, *figures, *left]), file=sys.stderr, flush=True)

    def _left(self, step: int, now: float) -> list[str]:
        self._first = step if self._first is None else self._first
        self._recent.append((step, now))
        # Of two that are older than a minute the younger is enough, however rare records are.
        while len(self._recent) > 2 and now - self._recent[1][1] >= RECENT_S:
            self._recent.popleft()
        begin, since = self._recent[0]
        if step == begin or step - self._first < SHOWN_FROM * (self._max_steps - self._first):
            return []
        return [f"left {clock((now - since) / (step - begin) * (self._max_steps - step))}"]

    def _draw(self, step: int, count: str, figures: list[str], left: list[str]) -> None:
        from tqdm import tqdm

        # Made with the first record, so that it appears below what the run prints before its first step.
        if self._bar is None:
            self._bar = tqdm(total=self._max_steps, bar_format="{desc} |{bar}|", dynamic_ncols=True)
        # A narrow terminal drops the less important figures: tqdm would cut the end of the line.
        columns = shutil.get_terminal_size().columns
        while figures and len("  ".join([count, *figures, *left])) + self.NARROWEST_BAR + 3 > columns:
            figures = figures[:-1]
        self._bar.set_description_str("  ".join([count, *figures, *left]), refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def validation(record: Record) -> str:
    """Write "valid loss 4.02 (mean of text 3.90, code 4.14)"; "" for a record without a validation."""
    losses = {
        key.removeprefix(VALIDATION): loss
        for key, loss in record.items()
        if key.startswith(VALIDATION) and isinstance(loss, int | float)
    }
    if not losses:
        return ""
    if len(losses) == 1:
        ((source, loss),) = losses.items()
        return f"valid loss {loss:.4f} ({source})"
    each = ", ".join(f"{source} {loss:.4f}" for source, loss in losses.items())
    return f"valid loss {sum(losses.values()) / len(losses):.4f} (mean of {each})"


def clock(seconds: float) -> str:
    """Write h:mm:ss, or m:ss under an hour."""
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
