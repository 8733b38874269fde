"""How often answers contradict each other and winners are wrong, by simulation: `python -m benchmarks.answers`.

Seven lengths of one model whose true gains lie about the bound (0.005 nats a token), in a population of documents of
which 10 to 200 are read. Contradicted: two draws of which, at any length, one answers yes and the other no. Wrong: an
answer that is not the truth of the population, at any length. Covered: 95 % intervals of paired differences. Wrong
winner: of four models in five columns, of which two are the same, a pair that is told and is no difference, or one told
the wrong way round.
"""

import math
from collections.abc import Callable

import numpy as np

from coca_train.runtime.printing import markdown
from coca_train.statistics.answers import SURE, above
from coca_train.statistics.intervals import OverDocuments
from coca_train.statistics.pairs import Sample, differences

GAINS = (0.04, 0.02, 0.01, 0.006, 0.005, 0.004, 0.0)  # nats a token
BOUND, POPULATION, N_PAIRS, N_TABLES = 0.005, 2000, 1000, 300
SIZES = (10, 20, 40, 100, 200)
SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {  # between documents: mean 0, deviation 1
    "normal": lambda rng, n: rng.normal(size=n),
    "skewed": lambda rng, n: rng.gamma(2.0, size=n) / math.sqrt(2) - math.sqrt(2),
    "heavy tails": lambda rng, n: rng.standard_t(4, n) / math.sqrt(2),
}


class Population:
    """Documents of 300 to 3,000 predictions whose mean gains by length are GAINS, to the last digit."""

    def __init__(self, shape: str, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        own_D = 0.02 * SHAPES[shape](self.rng, POPULATION)
        gains_DL = own_D[:, None] + 0.01 * self.rng.normal(size=(POPULATION, len(GAINS)))
        self.count_D = self.rng.integers(300, 3000, POPULATION).astype(float)
        mean_L = (gains_DL * self.count_D[:, None]).sum(0) / self.count_D.sum()
        self.gains_DL = gains_DL - mean_L + np.array(GAINS)

    def read(self, n: int) -> list[OverDocuments]:
        """Of each length, n documents."""
        drawn = self.rng.choice(POPULATION, n, replace=False)
        counts = self.count_D[drawn]
        return [OverDocuments(np.stack((gains * counts, counts), 1)) for gains in self.gains_DL[drawn].T]


def answers(shape: str) -> list[str]:
    population, contradicted, wrong, covered = Population(shape, 5), 0, 0, list[bool]()
    for _ in range(N_PAIRS):
        drawn = [population.read(int(n)) for n in population.rng.choice(SIZES, 2)]
        said = [[above(each.interval(SURE), BOUND).outcome for each in one] for one in drawn]
        contradicted += any({a, b} == {"yes", "no"} for a, b in zip(*said, strict=True))
        truth = ["yes" if gain > BOUND else "no" for gain in GAINS]
        wrong += any(a not in (true, "open") for one in said for a, true in zip(one, truth, strict=True))
        for each, gain in zip(drawn[0], GAINS, strict=True):
            low, high = each.interval()[1:3]
            covered += [low <= gain <= high] if each.n >= 20 else []
    return [shape, f"{contradicted / N_PAIRS:.1%}", f"{wrong / 2 / N_PAIRS:.1%}", f"{np.mean(covered):.1%}"]


class Level:
    """A figure of a table: its sample decides."""

    text, n = "", None

    def __init__(self, losses_D: np.ndarray) -> None:
        sums_SU2 = np.stack((losses_D, np.ones_like(losses_D)), -1)[None]
        self.number, self.sample = float(losses_D.mean()), Sample(sums_SU2=sums_SU2, units="books")
        self.interval = (self.number - 1, self.number + 1)


def winners(shape: str, n: int) -> list[str]:
    """Models 0 and 1 are the same, 2 is 0.01 nats worse, 3 is 0.2."""
    rng, worse, wrong, told = np.random.default_rng(7), (0.0, 0.0, 0.01, 0.2), 0, 0
    for _ in range(N_TABLES):
        hard_D = 4 + SHAPES[shape](rng, n)
        table = [[Level(hard_D + w + 0.05 * SHAPES[shape](rng, n)) for w in worse] for _ in range(5)]
        found = [pair for column in differences(table) for pair in column.items()]
        wrong += any(d.significant and not (d.bounds.estimate < 0 and worse[i] < worse[j]) for (i, j), d in found)
        told += sum(d.significant for (_, j), d in found if j == 3)
    return [shape, f"{n}", f"{wrong / N_TABLES:.1%}", f"{told / N_TABLES / 15:.1%}"]


if __name__ == "__main__":
    print(markdown(["documents", "contradicted", "wrong", "covered"], [answers(shape) for shape in SHAPES], n_left=1))
    rows = [winners(shape, n) for shape in SHAPES for n in (20, 60)]
    print(markdown(["documents", "read", "wrong winner", "0.2 nats told"], rows, n_left=1))
