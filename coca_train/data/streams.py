"""The order `stream`: row g of a batch goes on where row g of the batch before ended.

What a model that remembers the previous segment trains on (Transformer-XL, arXiv 1901.02860, section 3.2). Each row
of the global batch belongs to one source for the whole run. The windows of a source are cut into as many stretches
as it has rows, one a row; at the end of its stretch a row begins it again. Computed, O(sources) memory.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from coca_train.data.proportions import Proportions
from coca_train.data.source import Place, Source
from coca_train.runtime.errors import DataError


def share_rows(weights: Sequence[int], n_rows: int) -> list[int]:
    """Rows of each source, by weight: the integer part of its share, and one more for the largest remainders.

    A source may end up with none. Of equal remainders the first counts as larger.
    """
    whole = sum(weights)
    rows = [n_rows * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda j: -(n_rows * weights[j] % whole))
    for j in by_remainder[: n_rows - sum(rows)]:
        rows[j] += 1
    return rows


class Streams:
    """Sample i = step * global_batch_size + row -> place.

    Raises DataError: E-MIX-02 when a source gets no row, E-MIX-03 when it has fewer windows than rows.
    """

    def __init__(self, sources: Sequence[Source], global_batch_size: int) -> None:
        self._sources, self._global_batch_size = sources, global_batch_size
        weights = Proportions([source.config.weight for source in sources]).weights
        self._rows = share_rows(weights, global_batch_size)
        self._ends = list(accumulate(self._rows))  # the rows of source j end before row ends[j]
        for source, n_rows in zip(sources, self._rows, strict=True):
            if n_rows == 0:
                enough = -(-sum(weights) // min(weights))  # so that the smallest share is a whole row
                raise DataError(
                    f"E-MIX-02 data.sources.{source.name}.weight={source.config.weight:g}: with data.order=stream each "
                    f"row of the batch reads one source, and of train.global_batch_size={global_batch_size} rows this "
                    f"one gets none; every source needs one. Fix: train.global_batch_size={enough} or more, or a "
                    "larger weight"
                )
            if n_rows > source.n_windows:
                raise DataError(
                    f"E-MIX-03 data.sources.{source.name}: {source.n_windows} windows for {n_rows} rows of the batch; "
                    "with data.order=stream each row needs one of its own. Fix: lower train.seq_len or "
                    "train.global_batch_size, or give the source more text"
                )

    def _stretch(self, row: int) -> tuple[int, int, int]:
        """Row -> (source, first window, windows of its stretch); the stretches of a source differ by one at most."""
        j = bisect_right(self._ends, row)
        n_windows, n_rows = self._sources[j].n_windows, self._rows[j]
        at = row - (self._ends[j] - n_rows)
        first = at * n_windows // n_rows
        return j, first, (at + 1) * n_windows // n_rows - first

    def place(self, i: int) -> Place:
        """The definition. Raises DataError E-MIX-01 beyond the end of a row whose source has on_exhausted=stop."""
        step, row = divmod(i, self._global_batch_size)
        j, first, length = self._stretch(row)
        epoch, at = divmod(step, length)
        if epoch and self._sources[j].stops:
            raise self._sources[j].exhausted(f"all {length} windows of row {row}")
        return Place(j, epoch, first + at, continues=at > 0)

    def places(self, first: int, n: int) -> list[Place]:
        """`place` of samples first .. first + n - 1."""
        return [self.place(i) for i in range(first, first + n)]

    def counts(self, n: int) -> list[int]:
        """How many of the first n samples come from each source."""
        steps, begun = divmod(n, self._global_batch_size)
        return [
            steps * n_rows + min(max(begun - (end - n_rows), 0), n_rows)
            for n_rows, end in zip(self._rows, self._ends, strict=True)
        ]

    def max_samples(self) -> int | None:
        """Samples of the whole steps there are before the first row of a source that stops ends; None = no end."""
        steps = [s.n_windows // n_rows for s, n_rows in zip(self._sources, self._rows, strict=True) if s.stops]
        return min(steps) * self._global_batch_size if steps else None

    def fingerprint(self) -> dict[str, Any]:
        """What the order depends on besides the sources."""
        return {"kind": "stream", "global_batch_size": self._global_batch_size}
