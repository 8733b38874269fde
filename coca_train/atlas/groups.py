"""Scores by where what the answers need is: far back, or near."""

from collections.abc import Sequence

import numpy as np

from coca_train.atlas.matrix import Matrix
from coca_train.atlas.methods import title_of
from coca_train.atlas.window_reader import score
from coca_train.report.blocks import Row, Table, Value
from coca_train.statistics.answers import WRONG
from coca_train.statistics.ranks import TaskDifference, fit_priors, levels, mean_over_seeds


def scores_of(matrix: Matrix, group: str) -> np.ndarray:
    """Return the scores (M, S, K) of the tasks of a group."""
    return matrix.scores_MSK[:, :, [matrix.tasks.index(task) for task in matrix.groups[group]]]


def levels_of(matrix: Matrix, group: str) -> dict[str, float]:
    """Return by row the least-squares mean over the tasks of a group; NaN of a row with no more than half of them."""
    return dict(zip(matrix.rows, levels(mean_over_seeds(scores_of(matrix, group))).tolist(), strict=True))


def far_and_near(matrix: Matrix, order: Sequence[str]) -> Table:
    """Return scores, and differences to the reference, by group."""
    reference, window = title_of(matrix.reference), matrix.lengths[0]
    nothing = Value.of(None, missing="not trained")
    reader = [
        value
        for tasks in matrix.groups.values()
        for value in (
            Value.of(of_reader(matrix, tasks) if tasks else None, "{:.2f}", missing="no task"),
            nothing,
            nothing,
        )
    ]
    columns = {group: _columns(matrix, group) for group in matrix.groups}
    far, near = (", ".join(tasks) or "none" for tasks in matrix.groups.values())
    return Table(
        name="groups",
        title="Where what the answers need is far back, and where it is near",
        label_columns=("method",),
        columns=tuple(
            f"{group}: {each}" for group in matrix.groups for each in ("score", f"Δ to {reference}", "tasks of Δ")
        ),
        rows=(
            Row(label=(reader_title(matrix),), values=tuple(reader)),
            *(
                Row(label=(title_of(row),), values=tuple(value for each in columns.values() for value in each[row]))
                for row in order
            ),
        ),
        interval="interval, all rows of a group judged together",
        note=f"Far: {far}; what an answer needs lies farther back, the longer the text. Near: {near}; it lies near, "
        f"at any length. A reader of the last {window} tokens has all answers right that follow from them and guesses "
        "the others: what it has shows nothing of reading farther. Scores: least-squares means over the tasks of a "
        f"group. Tasks of Δ: how many tasks it is over, those that every seed of the row and of {reference} has "
        "learned, of the seeds that both have any of.",
    )


def reader_title(matrix: Matrix) -> str:
    return f"(a reader of the last {matrix.lengths[0]} tokens)"


def of_reader(matrix: Matrix, tasks: Sequence[str]) -> float:
    """Return the mean score over tasks of a reader of the last tokens."""
    window, *lengths = matrix.lengths
    each = [score(task, lengths, matrix.chances(task)[1:], window) for task in tasks]
    return float(np.mean(each))


def _columns(matrix: Matrix, group: str) -> dict[str, tuple[Value, Value, Value]]:
    """Return by row its score, its difference to the reference, and the number of tasks that this is over."""
    y_MSK, level = scores_of(matrix, group), levels_of(matrix, group)
    priors, confidence = fit_priors(y_MSK), 1 - WRONG / max(1, len(matrix.rows) - 1)
    scores, found = dict(zip(matrix.rows, y_MSK, strict=True)), {}
    for row, score_SK in scores.items():
        score = Value.of(
            level[row] if np.isfinite(level[row]) else None, "{:.2f}", missing="half of the tasks or fewer"
        )
        apart, n_tasks = Value.of(None, missing="itself" if row == matrix.reference else "no task in common"), 0
        if row != matrix.reference and matrix.reference in scores:
            difference = TaskDifference(score_SK, scores[matrix.reference], priors)
            bounds, n_tasks = difference.on_these_tasks(confidence), int(difference.shared_K.sum())
            if np.isfinite(bounds.low):
                apart = Value.of(bounds.estimate, "{:+.2f}", low=bounds.low, high=bounds.high, n=bounds.n)
        found[row] = score, apart, Value.of(float(n_tasks) if n_tasks else None, "{:.0f}", missing="no Δ")
    return found
