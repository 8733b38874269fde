"""How soon rows learn: their held-out losses during a training, at the trained lengths."""

import itertools
import math
import statistics

import numpy as np

from coca_train.atlas.matrix import Matrix
from coca_train.atlas.methods import title_of
from coca_train.report.blocks import Row, Table, Value
from coca_train.statistics.answers import WRONG
from coca_train.statistics.moderated import fit_prior
from coca_train.statistics.ranks import over_seeds


def losses_by_step(matrix: Matrix) -> Table:
    """Return held-out losses over the steps of a training, and how they compare with the reference's."""
    rows, steps, reference = matrix.trained, matrix.steps, title_of(matrix.reference)
    compared = dict.fromkeys((steps[0], steps[-1])) if matrix.reference in rows else {}
    confidence = 1 - WRONG / max(1, len(compared) * (len(rows) - 1))

    def losses(row: str, step: int) -> dict[int, float]:
        return {seed: matrix.mean_loss(row, seed, step) for seed in matrix.seeds if (row, seed) in matrix.trials}

    def loss(row: str, step: int) -> Value:
        bounds = over_seeds(list(losses(row, step).values()))
        if not math.isfinite(bounds.estimate):
            return Value.of(None, missing="a loss was not finite")
        low, high = (max(0.0, bounds.low), bounds.high) if bounds.n > 1 else (None, None)
        return Value.of(bounds.estimate, "{:.3f}", n=bounds.n, low=low, high=high)

    def logs(row: str, other: str, step: int) -> np.ndarray:
        """Return the logarithms of the ratios by seed; not finite where a loss is not."""
        one, two = losses(row, step), losses(other, step)
        losses_S2 = np.array([(one[seed], two[seed]) for seed in sorted(one.keys() & two.keys())]).reshape(-1, 2)
        return np.subtract(*np.where(np.isfinite(losses_S2), np.log(losses_S2), np.nan).T)

    pairs = list(itertools.combinations(rows, 2))
    each = {step: [logs(*pair, step) for pair in pairs] for step in compared}
    priors = {step: fit_prior(log_S for log_S in each[step] if np.isfinite(log_S).all()) for step in compared}

    def ratio(row: str, step: int) -> Value:
        if row == matrix.reference:
            return Value.of(None, missing="itself")
        log_S = logs(row, matrix.reference, step)
        if len(log_S) < 2 or not np.isfinite(log_S).all():
            return Value.of(None, missing="fewer than two seeds, or a loss was not finite")
        bounds = over_seeds(log_S, confidence, priors[step])
        low, high = math.exp(bounds.low), math.exp(bounds.high)
        return Value.of(math.exp(bounds.estimate), "{:.2f}×", low=low, high=high, n=bounds.n)

    return Table(
        name="learning",
        title="Held-out loss at the trained lengths, by the steps of the training [nats per token]",
        label_columns=("method",),
        columns=(*(f"{step:,}" for step in steps), *(f"of {reference}'s at {step:,}" for step in compared)),
        rows=tuple(
            Row(
                label=(title_of(row),),
                values=(*(loss(row, step) for step in steps), *(ratio(row, step) for step in compared)),
            )
            for row in sorted(rows, key=lambda row: loss(row, steps[0]).number or math.inf)
        ),
        interval="95 % interval over seeds; of a ratio, for all ratios together",
        note="The mean over tasks, each row at its own rate. "
        f"Of {reference}'s: the geometric mean over seeds of the ratio.",
    )


def first_losses(matrix: Matrix) -> Table:
    """Return the held-out loss of each task where the training is youngest."""
    step = matrix.steps[0]

    def cell(row: str, task: str) -> Value:
        each = [trial.valid_losses[step][task] for trial in matrix.of(row)]
        known = sorted(loss for loss in each if loss is not None)
        if len(known) < len(each):
            return Value.of(None, missing="a loss was not finite")
        return Value(
            f"{statistics.median(known):.2f}", statistics.median(known), range=f"{known[0]:.2f} to {known[-1]:.2f}"
        )

    return Table(
        name="first-losses",
        title=f"Held-out loss of each task after {step:,} steps [nats per token]",
        label_columns=("method",),
        columns=tuple(matrix.tasks),
        rows=tuple(
            Row(label=(title_of(row),), values=tuple(cell(row, task) for task in matrix.tasks))
            for row in matrix.trained
        ),
        interval="lowest and highest seed",
        note="The median of the seeds.",
    )
