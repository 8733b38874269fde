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
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import numpy as np

from coca_train.config.schema import SourceConfig
from coca_train.data.dataset import IndexedDataset
from coca_train.data.packing import Packing
from coca_train.data.proportions import Proportions
from coca_train.runtime.errors import DataError

MASK = (1 << 64) - 1
ROUND_KEYS = struct.Struct("<8Q")  # eight rounds


def mix(x: int) -> int:
    """Mix the bits of x: splitmix64's finaliser (Steele, Lea, Flood 2014); every input bit reaches every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


_30, _27, _31 = np.array([30, 27, 31], np.uint64)
_FIRST, _SECOND = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def mix_all(x: np.ndarray) -> np.ndarray:
    """Apply `mix` to each element: uint64 to uint64."""
    x = (x ^ (x >> _30)) * _FIRST  # wraps, as & MASK does
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


class Permutation:
    """A bijection of 0 .. n-1 chosen by `key` (any text): computed, never stored.

    An unbalanced Feistel network over a * b >= n places with cycle walking: O(1) memory, about 10 microseconds a place.
    Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, sections 4 and 5.
    """

    def __init__(self, n: int, key: str) -> None:
        assert 0 < n < 1 << 62, n  # so that every number below fits 64 bits in permute_all
        self.n = n
        # a * b is the near-square grid that holds n places with fewer than a to spare, so walks are rare.
        self.a = math.isqrt(n - 1) + 1
        self.b = -(-n // self.a)
        material = hashlib.blake2b(key.encode(), digest_size=ROUND_KEYS.size, person=b"coca_train order").digest()
        self.round_keys = ROUND_KEYS.unpack(material)

    def _encrypt(self, x: int) -> int:
        """Permute the a * b places once: left in 0 .. a-1 and right in 0 .. b-1 take turns."""
        right, left = divmod(x, self.a)
        for r, key in enumerate(self.round_keys):
            if r % 2:
                right = (right + mix(left ^ key)) % self.b
            else:
                left = (left + mix(right ^ key)) % self.a
        return right * self.a + left

    def __call__(self, i: int) -> int:
        assert 0 <= i < self.n, (i, self.n)
        i = self._encrypt(i)
        while i >= self.n:  # a * b < n + a, so this is rare
            i = self._encrypt(i)
        return i


def permute_all(permutations: Sequence[Permutation], which: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return permutations[which[s]](places[s]) for each s, all at once; int64 arrays of one length."""
    # Column by column for all samples still outside: after the first pass these are a handful (a * b < n + a).
    numbers = np.array([(p.n, p.a, p.b, *p.round_keys) for p in permutations], np.uint64)[which].T
    out, todo = places.astype(np.uint64), np.arange(len(places))
    while todo.size:
        n, a, b, *keys = numbers[:, todo]
        right, left = np.divmod(out[todo], a)
        for r, key in enumerate(keys):
            if r % 2:
                right = _add(right, mix_all(left ^ key) % b, b)
            else:
                left = _add(left, mix_all(right ^ key) % a, a)
        out[todo] = right * a + left
        todo = todo[out[todo] >= n]
    return out.astype(np.int64)


def _add(x: np.ndarray, y: np.ndarray, modulus: np.ndarray) -> np.ndarray:
    """Return (x + y) % modulus of uint64 below the modulus, without the slow division: below it, x + y - modulus
    wraps."""
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


class PackedSource:
    """A dataset and how it is packed into windows."""

    def __init__(self, name: str, config: SourceConfig, packing: Packing) -> None:
        self.name, self.config, self.packing = name, config, packing

    @property
    def dataset(self) -> IndexedDataset:
        return self.packing.dataset

    @property
    def n_windows(self) -> int:
        """Windows of an epoch."""
        return self.packing.n_windows

    @property
    def stops(self) -> bool:
        """Return whether the run ends with this source."""
        return self.config.on_exhausted == "stop"

    def exhausted(self, windows: str) -> DataError:
        """Return the error for a sample beyond the end of a source that stops. windows: those that were drawn, in
        words."""
        return DataError(
            f"E-MIX-01 data.sources.{self.name}: {windows} were drawn and on_exhausted is 'stop'; the run asks for "
            f"more. Fix: lower train.max_steps, or data.sources.{self.name}.on_exhausted=repeat"
        )


class Shuffled:
    """Sample i -> place, computed. Every epoch of a source has an order of its own.

    Weights are shares of the scored tokens: a source whose windows hold fewer of them gets more windows.
    """

    def __init__(self, sources: Sequence[PackedSource], seed: int) -> None:
        self._sources, self._seed = sources, seed
        self._proportions = Proportions([source.config.weight / source.packing.fill for source in sources])
        self._permutations: list[dict[int, Permutation]] = [{} for _ in sources]
        self._n_windows = np.array([source.n_windows for source in sources])
        self._stops = np.array([source.stops for source in sources])

    def place(self, i: int) -> SamplePlace:
        """Return the place of sample i: the definition. DataError E-MIX-01 beyond the end of a source with
        on_exhausted=stop."""
        j, k = self._proportions.locate(i)
        source = self._sources[j]
        epoch, at = divmod(k, source.n_windows)
        if epoch and source.stops:
            raise self._end(source)
        return SamplePlace(j, epoch, self._permutation(j, epoch)(at), continues=False)

    def places(self, first: int, n: int) -> list[SamplePlace]:
        """Return `place` of samples first .. first + n - 1, faster than one by one."""
        sources, numbers = np.array(self._proportions.locate_all(first, n), np.int64)
        epochs, at = np.divmod(numbers, self._n_windows[sources])
        over = np.flatnonzero((epochs > 0) & self._stops[sources])
        if over.size:
            raise self._end(self._sources[int(sources[over[0]])])
        # One number for (epoch, source), so that each permutation is made once for all its samples.
        passes, which = np.unique(epochs * len(self._sources) + sources, return_inverse=True)
        permutations = [
            self._permutation(key % len(self._sources), key // len(self._sources)) for key in passes.tolist()
        ]
        windows = permute_all(permutations, which, at)
        return list(map(SamplePlace, sources.tolist(), epochs.tolist(), windows.tolist(), repeat(False)))

    def _end(self, source: PackedSource) -> Exception:
        return source.exhausted(f"all {source.n_windows} windows")

    def _permutation(self, j: int, epoch: int) -> Permutation:
        # Kept for the two epochs a batch can touch: deriving round keys costs more than using them.
        permutations, source = self._permutations[j], self._sources[j]
        if epoch not in permutations:
            if len(permutations) > 1:  # a batch may touch two epochs
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

    def fingerprint(self) -> dict[str, Any]:
        """Return what the order depends on besides the sources: nothing for the chain."""
        return {} if self._proportions.is_chain else {"interleaving": "huffman"}


def share_rows(weights: Sequence[int], n_rows: int) -> list[int]:
    """Return the rows of each source, by weight: the integer part of its share, and one more for the largest
    remainders.

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
        """Return (source, first window, windows) of a row's stretch; the stretches of a source differ by one at
        most."""
        j = bisect_right(self._ends, row)
        n_windows, n_rows = self._sources[j].n_windows, self._rows[j]
        # Borders at multiples of n_windows / n_rows, rounded down: they differ by one window at most and need no table.
        at = row - (self._ends[j] - n_rows)
        first = at * n_windows // n_rows
        return j, first, (at + 1) * n_windows // n_rows - first

    def place(self, i: int) -> SamplePlace:
        """Return the place of sample i. DataError E-MIX-01 beyond the end of a row whose source has
        on_exhausted=stop."""
        step, row = divmod(i, self._global_batch_size)
        j, first, length = self._stretch(row)
        epoch, at = divmod(step, length)
        if epoch and self._sources[j].stops:
            raise self._sources[j].exhausted(f"all {length} windows of row {row}")
        return SamplePlace(j, epoch, first + at, continues=at > 0)

    def places(self, first: int, n: int) -> list[SamplePlace]:
        """Return `place` of samples first .. first + n - 1."""
        return [self.place(i) for i in range(first, first + n)]

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

    def fingerprint(self) -> dict[str, Any]:
        """Return what the order depends on besides the sources."""
        return {"kind": "stream", "global_batch_size": self._global_batch_size}
