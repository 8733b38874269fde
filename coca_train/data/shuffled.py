"""The order `shuffled`: samples alternate between the sources by weight, each source's windows in a random order."""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from coca_train.data.order import Permutation, permute_all
from coca_train.data.proportions import Proportions
from coca_train.data.source import Place, Source


class Shuffled:
    """Sample i -> place, computed. Every epoch of a source has an order of its own.

    Weights are shares of the scored tokens: a source whose windows hold fewer of them gets more windows.
    """

    def __init__(self, sources: Sequence[Source], seed: int) -> None:
        self._sources, self._seed = sources, seed
        self._proportions = Proportions([source.config.weight / source.packing.fill for source in sources])
        self._permutations: list[dict[int, Permutation]] = [{} for _ in sources]
        self._n_windows = np.array([source.n_windows for source in sources])
        self._stops = np.array([source.stops for source in sources])

    def place(self, i: int) -> Place:
        """The definition. Raises DataError E-MIX-01 beyond the end of a source with on_exhausted=stop."""
        j, k = self._proportions.locate(i)
        source = self._sources[j]
        epoch, at = divmod(k, source.n_windows)
        if epoch and source.stops:
            raise self._end(source)
        return Place(j, epoch, self._permutation(j, epoch)(at), continues=False)

    def places(self, first: int, n: int) -> list[Place]:
        """`place` of samples first .. first + n - 1, quicker than one by one."""
        sources, numbers = np.array(self._proportions.locate_all(first, n), np.int64)
        epochs, at = np.divmod(numbers, self._n_windows[sources])
        over = np.flatnonzero((epochs > 0) & self._stops[sources])
        if over.size:
            raise self._end(self._sources[int(sources[over[0]])])
        passes, which = np.unique(epochs * len(self._sources) + sources, return_inverse=True)
        permutations = [
            self._permutation(key % len(self._sources), key // len(self._sources)) for key in passes.tolist()
        ]
        windows = permute_all(permutations, which, at)
        return list(map(Place, sources.tolist(), epochs.tolist(), windows.tolist(), repeat(False)))

    def _end(self, source: Source) -> Exception:
        return source.exhausted(f"all {source.n_windows} windows")

    def _permutation(self, j: int, epoch: int) -> Permutation:
        made, source = self._permutations[j], self._sources[j]
        if epoch not in made:
            if len(made) > 1:  # a batch may touch two epochs
                del made[min(made)]
            made[epoch] = Permutation(source.n_windows, f"{self._seed}/{source.name}/{epoch}")
        return made[epoch]

    def counts(self, n: int) -> list[int]:
        """How many of the first n samples come from each source."""
        return self._proportions.counts(n)

    def max_samples(self) -> int | None:
        """Samples there are before the first source that stops runs out; None = no end."""
        ends = [self._proportions.longest(j, s.n_windows) for j, s in enumerate(self._sources) if s.stops]
        return min(ends, default=None)

    def fingerprint(self) -> dict[str, Any]:
        """Beyond what every order depends on: nothing where nothing has changed since the first runs."""
        return {} if self._proportions.is_chain else {"interleaving": "huffman"}
