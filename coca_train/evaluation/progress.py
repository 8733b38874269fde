"""How far an evaluation is, on rank 0: one bar over the work of all cells, or lines where stderr is no terminal."""

import sys
import threading
import time
from typing import Any

from coca_train.runtime import dist
from coca_train.tracking.terminal import clock

FIRST_LINE_S = 5.0
LINE_EVERY_S = 15.0
TOLD_FROM = 0.03  # of all work: before, the time left would be a guess


class Progress:
    """Work is in any unit that is the same for all cells. shown: whether there is to be anything at all."""

    def __init__(self, shown: bool) -> None:
        from tqdm import tqdm  # on first use: --help and --cfg job come without it

        shown = shown and dist.is_main()
        form = "{desc} |{bar}|"
        self._bar: Any = tqdm(total=0, bar_format=form, disable=None if shown else True, leave=False)
        self._total, self._words = 0.0, ""
        self._before = self._work = self._done = 0.0
        self._began: float | None = None  # with the first cell: what comes before is no part of the work
        self._closed = threading.Event()
        # On a thread: a cell of long windows tells nothing for minutes on a busy machine, which looks like a hang.
        self._lines = threading.Thread(target=self._print_lines, name="progress", daemon=True)
        if shown and not sys.stderr.isatty():
            self._lines.start()

    def expect(self, work: float, n_models: int) -> None:
        """So much is left of the present model, and of each of the n_models - 1 after it, as far as one knows."""
        # A model is opened when its turn comes, so nobody knows yet what of the later ones is measured already.
        self._before, self._work = self._before + self._work, 0.0
        self._total = self._bar.total = self._before + work * n_models

    def cell(self, words: str, work: float) -> None:
        """A cell begins."""
        self._began = time.monotonic() if self._began is None else self._began
        self._words = words
        self._before, self._work = self._before + self._work, work
        self.share(0.0)

    def share(self, share: float) -> None:
        """So much of the present cell is done, 0 to 1."""
        self._done = min(self._before + share * self._work, self._total)
        self._bar.set_description_str(self.line(), refresh=False)
        self._bar.update(self._done - self._bar.n)

    def close(self) -> None:
        self._closed.set()
        if self._lines.is_alive():
            self._lines.join()
        self._bar.close()

    def _print_lines(self) -> None:
        wait_s = FIRST_LINE_S
        while not self._closed.wait(wait_s):
            wait_s = LINE_EVERY_S
            if self._words:
                print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """How much is done, of what, and the time left once there is a share to tell it by."""
        done = self._done / self._total if self._total else 0.0
        if self._began is None or done < TOLD_FROM:
            return f"{done:.0%}  {self._words}"
        return f"{done:.0%}  {self._words}  {clock((time.monotonic() - self._began) * (1 - done) / done)} left"
