"""The trials of one protocol by row, seed and task: what the tables of the page read."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coca_train.atlas.methods import METHODS, REFERENCE, VARIANTS
from coca_train.atlas.trials import Trial, chances, scored
from coca_train.report.blocks import Value
from coca_train.statistics.intervals import Bounds
from coca_train.statistics.moderated import fit_prior
from coca_train.statistics.ranks import Priors, fit_priors, over_seeds

SHARE = "{:.0%}"
# Tasks whose answers follow from tokens near them, at any length (window_reader); those of all others lie farther back,
# the longer the text.
NEAR = ("right", "running", "brackets")


@dataclass(frozen=True)
class Matrix:
    """Trials by row, seed and task. reference: the row that others are compared with."""

    trials: Mapping[tuple[str, int], Trial]
    reference: str = REFERENCE

    @cached_property
    def rows(self) -> list[str]:
        """The rows in the order of the tables, then those of one's own."""
        known = [each.name for each in (*METHODS, *VARIANTS)]
        there = dict.fromkeys(row for row, _ in self.trials)
        return sorted(there, key=lambda row: known.index(row) if row in known else len(known))

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.trials})

    @cached_property
    def tasks(self) -> list[str]:
        return list(next(iter(self.trials.values())).tasks)

    @cached_property
    def scored(self) -> list[str]:
        return scored(self.trials.values())

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The tasks in which a row has a score, by where what their answers need is."""
        scores_MSK = self.scores_MSK
        known = [task for k, task in enumerate(self.tasks) if np.isfinite(scores_MSK[:, :, k]).any()]
        return {
            "far": [task for task in known if task not in NEAR],
            "near": [task for task in known if task in NEAR],
        }

    def chances(self, task: str) -> Sequence[float]:
        return chances(self.trials.values(), task)

    @cached_property
    def lengths(self) -> list[int]:
        return list(next(iter(self.trials.values())).lengths)

    @cached_property
    def trained(self) -> list[str]:
        """The rows that were trained, which are not tried on another's weights."""
        return [row for row in self.rows if next(self.of(row)).method == row]

    @cached_property
    def steps(self) -> list[int]:
        """The steps of a training at which all have held-out losses."""
        return sorted(set.intersection(*(set(trial.valid_losses) for trial in self.trials.values())))

    def mean_loss(self, row: str, seed: int, step: int) -> float:
        """Return the mean over tasks of held-out losses [nats per token]; infinite where one was not finite."""
        return statistics.fmean(
            math.inf if loss is None else loss for loss in self.trials[row, seed].valid_losses[step].values()
        )

    @cached_property
    def scores_MSK(self) -> np.ndarray:
        """By row, seed and task; NaN where it is not learned or has no score, or there is no trial."""
        return np.array([[[self._score(row, seed, k) for k in self.tasks] for seed in self.seeds] for row in self.rows])

    def _score(self, row: str, seed: int, task: str) -> float:
        trial, (n, of) = self.trials.get((row, seed)), self.n_learned(row, task)
        return math.nan if trial is None or 2 * n < of or task not in self.scored else trial.score(task)

    @cached_property
    def priors(self) -> Priors:
        """Of the differences of two rows."""
        return fit_priors(self.scores_MSK)

    @cached_property
    def cells(self) -> list[list[Bounds]]:
        """By row and task the mean score of its seeds, with its interval."""
        cells_MKS = np.moveaxis(self.scores_MSK, 1, -1)
        prior = fit_prior(cell_S[np.isfinite(cell_S)] for cell_KS in cells_MKS for cell_S in cell_KS)
        return [[over_seeds(cell_S, prior=prior) for cell_S in cell_KS] for cell_KS in cells_MKS]

    def of(self, row: str) -> Iterator[Trial]:
        return (self.trials[row, seed] for seed in self.seeds if (row, seed) in self.trials)

    def n_learned(self, row: str, task: str) -> tuple[int, int]:
        """Return how many trials of a row have learned a task, and how many there are."""
        each = [trial.has_learned(task) for trial in self.of(row)]
        return sum(each), len(each)

    def works_to(self, row: str, task: str) -> int:
        """Return the (lower) median over the seeds that have learned a task of the longest length it still works at."""
        return statistics.median_low(trial.works_to(task) for trial in self.of(row) if trial.has_learned(task))

    def share(self, row: str, task: str, length: int) -> Value:
        """Return the mean share of right answers over the seeds that have learned a task."""
        known = [trial.share(task, length) for trial in self.of(row) if trial.has_learned(task)]
        bounds = over_seeds(known)
        if not known:
            return Value.of(None, missing="not learned")
        low, high = (max(0.0, bounds.low), min(1.0, bounds.high)) if len(known) > 1 else (None, None)
        return Value.of(bounds.estimate, SHARE, low=low, high=high, n=len(known))
