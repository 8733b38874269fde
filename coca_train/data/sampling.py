"""Which window of which source a sample is: the orders `shuffled` and `stream` (data.order), computed and never stored.

shuffled: samples alternate between the sources by weight, each source's windows in a random order.
stream: row g of a batch goes on where row g of the batch before ended. What a model that remembers the previous segment
trains on (Transformer-XL, arXiv 1901.02860, section 3.2). Each row of the global batch belongs to one source for the
whole run. The windows of a source are cut into as many stretches as it has rows, one a row; at the end of its stretch a
row begins it again.
"""

import hashlib
import math
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import NamedTuple

import numpy as np

from coca_train.config.schema import SourceConfig
from coca_train.data.dataset import IndexedDataset
from coca_train.data.packing import Packing
from coca_train.data.proportions import Proportions
from coca_train.runtime.errors import DataError

ROUND_KEYS = struct.Struct("<8Q")  # eight rounds
_30, _27, _31 = np.array([30, 27, 31], np.uint64)
_FIRST, _SECOND = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def mix(x: np.ndarray) -> np.ndarray:
    """Mix the bits of each uint64: splitmix64's finaliser (Steele, Lea, Flood 2014); every bit reaches every bit."""
    x = (x ^ (x >> _30)) * _FIRST  # wraps
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


class Permutation:
    """A bijection of 0 .. n-1 chosen by `key` (any text): computed, never stored. `permute` applies it.

    An unbalanced Feistel network over a * b >= n places with cycle walking: O(1) memory.
    Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, sections 4 and 5.
    """

    def __init__(self, n: int, key: str) -> None:
        assert 0 < n < 1 << 62, n  # so that every number fits 64 bits in permute
        # a * b is the near-square grid that holds n places with fewer than a to spare, so walks are rare.
        self.n, self.a = n, math.isqrt(n - 1) + 1
        self.b = -(-n // self.a)
        material = hashlib.blake2b(key.encode(), digest_size=ROUND_KEYS.size, person=b"coca_train order").digest()
        self.round_keys = ROUND_KEYS.unpack(material)


def permute(permutations: Sequence[Permutation], which: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Apply permutations[which[s]] to places[s] for each s; int64 arrays of one length, places below their n."""
    numbers = np.array([(p.n, p.a, p.b, *p.round_keys) for p in permutations], np.uint64)[which].T
    out, todo = places.astype(np.uint64), np.arange(len(places))
    # One pass permutes the a * b places: left in 0 .. a-1 and right in 0 .. b-1 take turns. Those that land at n or
    # beyond, a handful, go again.
    while todo.size:
        n, a, b, *keys = numbers[:, todo]
        right, left = np.divmod(out[todo], a)
        for r, key in enumerate(keys):
            if r % 2:
                right = _add(right, mix(left ^ key) % b, b)
            else:
                left = _add(left, mix(right ^ key) % a, a)
        out[todo] = right * a + left
        todo = todo[out[todo] >= n]
    return out.astype(np.int64)


def _add(x: np.ndarray, y: np.ndarray, modulus: np.ndarray) -> np.ndarray:
    """Return (x + y) % modulus of uint64 below it, without the slow division: x + y - modulus wraps or is it."""
    return np.minimum(x + y, x + y - modulus)


class SamplePlace(NamedTuple):
    """Where a sample comes from.

    source: its number. epoch: how often its windows have been through. window: which window of the source.
    continues: whether the same row of the step before was the window before this one.
    """

    source: int
    epoch: int
    window: int
    continues: bool


@dataclass(frozen=True)
class PackedSource:
    """A dataset and how it is packed into windows."""

    name: str
    config: SourceConfig
    packing: Packing

    @property
    def dataset(self) -> IndexedDataset:
        return self.packing.dataset

    @property
    def n_windows(self) -> int:
        """Windows of an epoch."""
        return self.packing.n_windows

    @property
    def stops(self) -> bool:
        """Whether the run ends with this source."""
        return self.config.on_exhausted == "stop"

    def exhausted(self, windows: str) -> DataError:
        """Return the error for a sample beyond the end of a source that stops. windows: those that were drawn."""
        return DataError(
            f"E-MIX-01 data.sources.{self.name}: {windows} were drawn and on_exhausted is 'stop'; the run asks for "
            f"more. Fix: lower train.max_steps, or data.sources.{self.name}.on_exhausted=repeat"
        )


class Shuffled:
    """Sample i -> place, computed. Every epoch of a source has an order of its own.

    Weights are shares of the scored tokens, whatever `data.answers` leaves of them: a source whose windows hold fewer
    gets more windows.
    """

    def __init__(self, sources: Sequence[PackedSource], seed: int) -> None:
        self._sources, self._seed = sources, seed
        self._proportions = Proportions([source.config.weight / source.packing.fill for source in sources])
        self._permutations: list[dict[int, Permutation]] = [{} for _ in sources]
        self._n_windows = np.array([source.n_windows for source in sources])
        self._stops = np.array([source.stops for source in sources])

    def places(self, first: int, n: int) -> list[SamplePlace]:
        """Return the places of samples first .. first + n - 1.

        Raises DataError E-MIX-01 beyond the end of a source with on_exhausted=stop.
        """
        sources, numbers = np.array(self._proportions.locate(first, n), np.int64)
        epochs, at = np.divmod(numbers, self._n_windows[sources])
        over = np.flatnonzero((epochs > 0) & self._stops[sources])
        if over.size:
            source = self._sources[int(sources[over[0]])]
            raise source.exhausted(f"all {source.n_windows} windows")
        # One number for (epoch, source), so that each permutation is made once for all its samples.
        passes, which = np.unique(epochs * len(self._sources) + sources, return_inverse=True)
        permutations = [self._permutation(*divmod(key, len(self._sources))) for key in passes.tolist()]
        windows = permute(permutations, which, at)
        return list(map(SamplePlace, sources.tolist(), epochs.tolist(), windows.tolist(), repeat(False)))

    def _permutation(self, epoch: int, j: int) -> Permutation:
        # Kept for the two epochs a batch can touch: deriving round keys costs more than using them.
        permutations, source = self._permutations[j], self._sources[j]
        if epoch not in permutations:
            if len(permutations) > 1:
                del permutations[min(permutations)]
            permutations[epoch] = Permutation(source.n_windows, f"{self._seed}/{source.name}/{epoch}")
        return permutations[epoch]

    def counts(self, n: int) -> list[int]:
        """Return how many of the first n samples come from each source."""
        return self._proportions.counts(n)

    def max_samples(self) -> int | None:
        """Return the number of samples before the first source that stops runs out; None = no end."""
        ends = [self._proportions.longest(j, s.n_windows) for j, s in enumerate(self._sources) if s.stops]
        return min(ends, default=None)

    def fingerprint(self) -> dict[str, object]:
        """Return what the order depends on besides the sources."""
        return {"kind": "shuffled"}


def share_rows(weights: Sequence[int], n_rows: int) -> list[int]:
    """Share rows by weight: the integer part of each share, and one more for the largest remainders.

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

    def __init__(self, sources: Sequence[PackedSource], global_batch_size: int) -> None:
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
                    f"one gets none. Fix: train.global_batch_size={enough} or more, or a larger weight"
                )
            if n_rows > source.n_windows:
                raise DataError(
                    f"E-MIX-03 data.sources.{source.name}: {source.n_windows} windows for {n_rows} rows of the batch; "
                    "with data.order=stream each row needs one of its own. Fix: lower train.seq_len or "
                    "train.global_batch_size, or give the source more text"
                )

    def _place(self, i: int) -> SamplePlace:
        step, row = divmod(i, self._global_batch_size)
        j = bisect_right(self._ends, row)
        source, n_rows = self._sources[j], self._rows[j]
        # Borders at multiples of n_windows / n_rows, rounded down: stretches differ by one window at most.
        number = row - (self._ends[j] - n_rows)
        first, end = number * source.n_windows // n_rows, (number + 1) * source.n_windows // n_rows
        epoch, at = divmod(step, end - first)
        if epoch and source.stops:
            raise source.exhausted(f"all {end - first} windows of row {row}")
        return SamplePlace(j, epoch, first + at, continues=at > 0)

    def places(self, first: int, n: int) -> list[SamplePlace]:
        """Return the places of samples first .. first + n - 1.

        Raises DataError E-MIX-01 beyond the end of a row whose source has on_exhausted=stop.
        """
        return [self._place(i) for i in range(first, first + n)]

    def counts(self, n: int) -> list[int]:
        """Return how many of the first n samples come from each source."""
        steps, begun = divmod(n, self._global_batch_size)
        return [
            steps * n_rows + min(max(begun - (end - n_rows), 0), n_rows)
            for n_rows, end in zip(self._rows, self._ends, strict=True)
        ]

    def max_samples(self) -> int | None:
        """Return the samples of all whole steps before the first row of a source that stops ends; None = no end."""
        steps = [s.n_windows // n_rows for s, n_rows in zip(self._sources, self._rows, strict=True) if s.stops]
        return min(steps) * self._global_batch_size if steps else None

    def fingerprint(self) -> dict[str, object]:
        """Return what the order depends on besides the sources."""
        return {"kind": "stream", "global_batch_size": self._global_batch_size}
