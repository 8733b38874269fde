"""The order `shuffled`: samples alternate between the sources by weight, each source's windows in a random order."""

from collections.abc import Sequence
from typing import Any

from coca_train.data.order import Permutation
from coca_train.data.proportions import Proportions
from coca_train.data.source import Place, Source


class Shuffled:
    """Sample i -> place, computed. Every epoch of a source has an order of its own."""

    def __init__(self, sources: Sequence[Source], seed: int) -> None:
        self._sources, self._seed = sources, seed
        self._proportions = Proportions([source.config.weight for source in sources])
        self._permutations: list[dict[int, Permutation]] = [{} for _ in sources]

    def place(self, i: int) -> Place:
        """Raises DataError E-MIX-01 beyond the end of a source with on_exhausted=stop."""
        j, k = self._proportions.locate(i)
        source = self._sources[j]
        epoch, at = divmod(k, source.n_windows)
        if epoch and source.stops:
            raise source.exhausted(f"all {source.n_windows} windows")
        return Place(j, epoch, self._permutation(j, epoch)(at), continues=False)

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
        """Nothing beyond what every order depends on: fingerprints of runs older than `stream` stay what they were."""
        return {}
