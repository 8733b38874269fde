"""How far an evaluation is: one bar over the work of all cells, on rank 0."""

from typing import Any

from coca_train import dist


class Progress:
    """total: work of all cells, in any unit that is the same for all. shown: whether there is to be a bar at all."""

    def __init__(self, total: float, shown: bool) -> None:
        from tqdm import tqdm

        off = True if not (dist.is_main() and shown) else None  # None: off when stderr is no terminal
        form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
        self._bar: Any = tqdm(total=total, bar_format=form, disable=off, leave=False)
        self._before = self._work = 0.0

    def cell(self, words: str, work: float) -> None:
        """A cell begins."""
        self._bar.set_description_str(words, refresh=False)
        self._before, self._work = self._before + self._work, work
        self.share(0.0)

    def share(self, share: float) -> None:
        """So much of the present cell is done, 0 to 1."""
        self._bar.update(min(self._before + share * self._work, self._bar.total or 0) - self._bar.n)

    def close(self) -> None:
        self._bar.close()
