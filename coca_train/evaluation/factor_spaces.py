"""What a search for the factors of RoPE's pairs may choose (LongRoPE, arXiv 2402.13753; LongRoPE2, arXiv 2502.20082).

A candidate has a critical pair d, and a factor λ_i for it and for every slower pair: in steps of 0.01, within bounds,
none below the one before. The faster pairs follow from it, NTK-aware: λ_i = λ_d^(i/d), from 1 up to λ_d. With J pairs,
the trained window L and the extension s:

              critical pair                              its factor and slower pairs'   first candidates
    LongRoPE  0, so every factor is free                 1 to 1 + s                     PI, NTK-aware, YaRN and children
    LongRoPE2 ⌈J·log_θ(L/20π)⌉ to ⌈J·log_θ(L/2π)⌉        s to 2s                        all s, for each d; others drawn

In theory ⌈J·log_θ(L/2π)⌉ is critical, the first pair that does not turn once within L, so that training never shows it
all angles. LongRoPE2 supposes that pairs that turn a few times only are not trained well either: its authors find 25
instead of 31 for Phi-3 mini, and 30 instead of 35 for LLaMA 3 8B.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coca_train.evaluation.configuration import Method
from coca_train.positions import ROPE_SCALINGS
from coca_train.positions.rope_scaling import base_inv_freq, ntk_theta

STEP = 100  # factors are whole numbers of hundredths
DIGITS = 6  # of a bound, before it is rounded to a whole number: 100 · 1.1 is more than 110
MUTATED, TRIES = 0.3, 20
MOST_TURNS = 10  # of a critical pair within the trained window


class Candidate(NamedTuple):
    """The critical pair, and the factors of it and of all slower pairs [hundredths]."""

    critical: int
    factors: tuple[int, ...]

    def stretches(self) -> list[float]:
        """Return the factor of every pair, the fastest first."""
        slow = [each / STEP for each in self.factors]
        return [slow[0] ** (pair / self.critical) for pair in range(self.critical)] + slow


@dataclass(frozen=True)
class Space(ABC):
    """Factors of J pairs that bring a window of L tokens to s times as many.

    criticals: pairs that may be critical. low, high: bounds of the factors [hundredths].
    """

    n_pairs: int
    theta: float
    original_seq_len: int
    factor: float

    @property
    @abstractmethod
    def criticals(self) -> Sequence[int]: ...

    @property
    @abstractmethod
    def low(self) -> int: ...

    @property
    @abstractmethod
    def high(self) -> int: ...

    @abstractmethod
    def seeds(self) -> dict[str, Candidate]:
        """Return the candidates that a search begins from, by name."""

    @abstractmethod
    def drawn(self, number: int, seeds: Sequence[Candidate], draw: random.Random) -> Candidate:
        """Return a candidate of the first population that is no seed; number: its place."""

    def start(self, n: int, draw: random.Random) -> list[Candidate]:
        """Return the first population: the seeds, and others up to n."""
        seeds = list(dict.fromkeys(self.seeds().values()))
        return [*seeds, *_new(n - len(seeds), set(seeds), lambda number: self.drawn(number, seeds, draw))]

    def children(
        self, parents: Sequence[Candidate], n: int, known: set[Candidate], draw: random.Random
    ) -> list[Candidate]:
        """Return up to n new candidates, half of them mutations and half crossovers, and add them to those known."""
        return _new(n, known, lambda number: self.child(number, parents, draw))

    def child(self, number: int, parents: Sequence[Candidate], draw: random.Random) -> Candidate:
        """Return a mutation of a parent, or of an odd number a crossover of two."""
        if number % 2 and len(parents) > 1:
            one, other = draw.sample(parents, 2)
            return self.crossed(one, other, draw)
        return self.mutated(draw.choice(parents), draw)

    def mutated(self, parent: Candidate, draw: random.Random) -> Candidate:
        """Draw some factors again, and the critical pair as often as one of them; pairs that have no factor in the
        parent get one."""
        critical = parent.critical
        if len(self.criticals) > 1 and draw.random() < MUTATED:
            critical = draw.choice(self.criticals)
        kept = [_factor(parent, pair) for pair in range(critical, self.n_pairs)]
        return self.valid(critical, [self.any(draw) if not each or draw.random() < MUTATED else each for each in kept])

    def crossed(self, one: Candidate, other: Candidate, draw: random.Random) -> Candidate:
        """Take the critical pair, and every factor, from one of two parents that have it."""
        criticals = sorted({one.critical, other.critical})
        critical = draw.choice(criticals) if len(criticals) > 1 else criticals[0]
        both = [[_factor(one, pair), _factor(other, pair)] for pair in range(critical, self.n_pairs)]
        return self.valid(critical, [draw.choice([each for each in pair if each]) for pair in both])

    def valid(self, critical: int, factors: Iterable[int]) -> Candidate:
        """Return the nearest candidate: within bounds, none below the one before."""
        return Candidate(critical, tuple(sorted(min(max(self.low, each), self.high) for each in factors)))

    def any(self, draw: random.Random) -> int:
        """Draw a factor, all equally likely."""
        return draw.randint(self.low, self.high)

    def options(self, candidate: Candidate) -> dict[str, object]:
        """Return the options of the scaling `longrope` with these factors beyond the trained window, and 1 within."""
        return {
            "factor": self.factor, "original_seq_len": self.original_seq_len, "short_factor": None,
            "long_factor": candidate.stretches(), "temperature": None,
        }  # fmt: skip


class LongRope(Space):
    """A factor for every pair, on from PI, NTK-aware and YaRN."""

    @property
    def criticals(self) -> Sequence[int]:
        """Return the fastest pair alone: none follows from another one."""
        return (0,)

    @property
    def low(self) -> int:
        return STEP

    @property
    def high(self) -> int:
        return round(STEP * (1 + self.factor))

    def seeds(self) -> dict[str, Candidate]:
        """Return PI, NTK-aware and YaRN as lists of factors."""
        width = 2 * self.n_pairs
        theta_J = base_inv_freq(self.theta, width)
        ntk_J = base_inv_freq(ntk_theta(self.theta, self.factor, width), width)
        yarn = ROPE_SCALINGS.settings(
            {
                "name": "yarn", "theta": self.theta, "factor": self.factor, "original_seq_len": self.original_seq_len,
                "beta_fast": 32.0, "beta_slow": 1.0, "convention": "code", "temperature": None,
            }
        )  # fmt: skip
        yarn_J = yarn.spectrum(width, 1).inv_freq_J.double()
        stretches = {"PI": [self.factor] * self.n_pairs, "NTK": theta_J / ntk_J, "YaRN": theta_J / yarn_J}
        return {name: self.valid(0, (round(STEP * float(x)) for x in each)) for name, each in stretches.items()}

    def drawn(self, number: int, seeds: Sequence[Candidate], draw: random.Random) -> Candidate:
        """Return a child of the seeds."""
        return self.child(number, seeds, draw)


class LongRope2(Space):
    """A critical pair, and a factor from s to 2s for it and each slower pair."""

    @property
    def criticals(self) -> Sequence[int]:
        """Return the pairs from the first that turns less than MOST_TURNS times within the window to the first that
        turns less than once."""
        first, last = (self._turning(turns) for turns in (MOST_TURNS, 1))
        return range(first, last + 1)

    @property
    def low(self) -> int:
        return math.ceil(round(STEP * self.factor, DIGITS))

    @property
    def high(self) -> int:
        return math.floor(round(2 * STEP * self.factor, DIGITS))

    def seeds(self) -> dict[str, Candidate]:
        """Return factors s from each critical pair on."""
        return {f"s from pair {each}": self.valid(each, [0] * (self.n_pairs - each)) for each in self.criticals}

    def drawn(self, number: int, seeds: Sequence[Candidate], draw: random.Random) -> Candidate:
        """Draw all factors of one seed's critical pair; the pairs take turns."""
        critical = seeds[number % len(seeds)].critical
        return self.valid(critical, [self.any(draw) for _ in range(critical, self.n_pairs)])

    def _turning(self, turns: int) -> int:
        """Return the first pair that turns less than so many times within the window: at least the second, as the
        fastest one keeps its frequency, at most the last."""
        exact = self.n_pairs * math.log(self.original_seq_len / (turns * 2 * math.pi), self.theta)
        return min(max(1, math.ceil(exact)), self.n_pairs - 1)


SPACES: dict[Method, type[Space]] = {"longrope": LongRope, "longrope2": LongRope2}


def _factor(candidate: Candidate, pair: int) -> int | None:
    """Return the factor of a pair; None: it follows from the critical pair's."""
    return candidate.factors[pair - candidate.critical] if pair >= candidate.critical else None


def _new(n: int, known: set[Candidate], make: Callable[[int], Candidate]) -> list[Candidate]:
    """Return up to n candidates that are not known, each tried a few times, and add them to those known."""
    found: list[Candidate] = []
    for number in range(n):
        for _ in range(TRIES):
            if (child := make(number)) not in known:
                known.add(child)
                found.append(child)
                break
    return found
