"""How far an evaluation is, on rank 0: one bar over the work of all cells, or lines where stderr is no terminal."""

import sys
import time
from typing import Any

from coca_train.runtime import dist
from coca_train.tracking.writers import clock

LINE_EVERY_S = 30.0


class Progress:
    """Work is in any unit that is the same for all cells. shown: whether there is to be anything at all."""

    def __init__(self, shown: bool) -> None:
        from tqdm import tqdm  # on first use: --help and --cfg job come without it

        shown = shown and dist.is_main()
        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        self._bar: Any = tqdm(total=0, bar_format=form, disable=None if shown else True, leave=False)
        self._lines = shown and not sys.stderr.isatty()
        self._total, self._words = 0.0, ""
        self._before = self._work = 0.0
        self._began = self._last_line = time.monotonic()

    def expect(self, work: float, n_models: int) -> None:
        """So much is left of the present model, and of each of the n_models - 1 after it, as far as one knows."""
        # A model is opened when its turn comes, so nobody knows yet what of the later ones is measured already.
        self._before, self._work = self._before + self._work, 0.0
        self._total = self._bar.total = self._before + work * n_models

    def cell(self, words: str, work: float) -> None:
        """A cell begins."""
        self._bar.set_description_str(words, refresh=False)
        self._words = words
        self._before, self._work = self._before + self._work, work
        self.share(0.0)

    def share(self, share: float) -> None:
        """So much of the present cell is done, 0 to 1."""
        done = min(self._before + share * self._work, self._total)
        self._bar.update(done - self._bar.n)
        now = time.monotonic()
        if self._lines and done and now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            left = (now - self._began) * (self._total - done) / done
            print(f"{done / self._total:.0%}  {self._words}  {clock(left)} left", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
