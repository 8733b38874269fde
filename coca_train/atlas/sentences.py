"""What the trials say, in sentences: who keeps the most, and what separates rows in each task."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from coca_train.atlas.groups import levels_of, of_reader
from coca_train.atlas.matrix import Matrix
from coca_train.atlas.methods import title_of
from coca_train.atlas.trials import LEARNED
from coca_train.atlas.window_reader import share
from coca_train.data.diagnostics import TASKS
from coca_train.statistics.moderated import Prior, fit_prior
from coca_train.statistics.ranks import Ranked, TaskDifference, fit_priors, over_seeds, significant

FEW = 6  # rows that a sentence lists
FEWER = 3  # where it has more to say


def finding(matrix: Matrix, ranked: Mapping[str, Ranked], order: Sequence[str]) -> list[str]:
    """Return which row has the highest score, and which ones might have. order: the rows by rank."""
    known = [row for row in order if math.isfinite(ranked[row].level)]
    if not known:
        return [f"No method has learned most of the tasks at {matrix.lengths[0]} tokens."]
    if len(order) == 1:
        return [f"{title_of(order[0])} is the only row of this protocol: there is nothing to compare it with."]
    judged = _judged_rows(matrix, known)
    first, single = judged[0], [row for row in known if row not in judged]
    found = [
        f"{'Of the rows with several seeds ' if single else ''}{title_of(first)} has the highest mean score beyond the "
        f"{matrix.lengths[0]} tokens of its training."
    ]
    if single:
        found.append(f"With one seed so far, and not judged: {_listed(single, FEW)}.")
    scores, number = dict(zip(matrix.rows, matrix.scores_MSK, strict=True)), matrix.rows.index(first)
    differences = {row: TaskDifference(scores[first], scores[row], matrix.priors) for row in judged if row != first}
    differences = {row: each for row, each in differences.items() if math.isfinite(each.on_these_tasks().low)}
    if not differences:
        return [*found, "Nothing can be separated from seed noise: no two rows have two seeds and a task in common."]
    if close := [row for row in differences if number not in ranked[row].above]:
        found.append(f"Not significantly lower: {_listed(close, FEW)}.")
    n_lower = sum(each is not None for each in significant([each.interval for each in differences.values()]))
    found.append(
        "If the tasks are taken as a random sample of such tasks, "
        + (f"{n_lower} of the {len(differences)} others are significantly lower." if n_lower else "no row is.")
    )
    return [*found, *_by_group(matrix)]


def _judged_rows(matrix: Matrix, rows: Sequence[str]) -> list[str]:
    """Return those with several seeds, or all where none has."""
    return [row for row in rows if len(list(matrix.of(row))) > 1] or list(rows)


def _by_group(matrix: Matrix) -> list[str]:
    """Return who has the highest score where what the answers need is far back, and where it is near."""
    where = {"far": "Where what the answers need is far back", "near": "Where it is near"}
    found = []
    for group, tasks in matrix.groups.items():
        level = {row: each for row, each in levels_of(matrix, group).items() if math.isfinite(each)}
        if level:
            first = max(_judged_rows(matrix, list(level)), key=lambda row: level[row])
            named = [
                f"{title_of(row)} {level[row]:.2f}" for row in dict.fromkeys((first, matrix.reference)) if row in level
            ]
            named.append(f"a reader of the last {matrix.lengths[0]} tokens alone {of_reader(matrix, tasks):.2f}")
            found.append(f"{where[group]} ({', '.join(tasks)}): {', '.join(named)}.")
    return found


def by_task(matrix: Matrix) -> list[str]:
    """Return of each task how many rows are above chance beyond the training window, which row scores highest, and
    which are significantly above or below the reference; in each task the familywise error is 5 %."""
    return [_of_task(matrix, k, task) for k, task in enumerate(matrix.tasks)]


def _of_task(matrix: Matrix, k: int, task: str) -> str:
    if task not in matrix.scored:
        chances = [f"{matrix.chances(task)[at]:.0%} at {matrix.lengths[at]:,} tokens" for at in (1, -1)]
        return f"{task}: no score, as {TASKS[task].guess} is right in {' and '.join(chances)}."
    known = {row: matrix.cells[m][k] for m, row in enumerate(matrix.rows) if matrix.cells[m][k].n}
    if not known:
        return f"{task}: no row has learned it with half of its seeds."
    keeping, lengths = _above_chance(matrix, k), matrix.lengths[1:]
    best = max(_judged_rows(matrix, list(known)), key=lambda row: known[row].estimate)
    shares = {
        row: ", ".join(matrix.share(row, task, at).text for at in lengths)
        for row in dict.fromkeys((best, matrix.reference))
        if row in known
    }
    seen = ", ".join(f"{share(task, at, matrix.lengths[0]):.0%}" for at in lengths)
    works = matrix.works_to(best, task)
    n = len(keeping) or "none"
    said = [
        f"{task}: of {len(known)} rows with a score {n} significantly above chance; right answers at "
        f"{', '.join(f'{at:,}' for at in lengths)} tokens: "
        + "; ".join(f"{title_of(row)} {each}" for row, each in shares.items())
        + f"; a reader of the last {matrix.lengths[0]} tokens {seen}"
    ]
    if works > matrix.lengths[0]:
        said.append(f"The median seed of {title_of(best)} has at least {LEARNED:.0%} right up to {works:,} tokens")
    if matrix.reference in known:
        above, below = _apart(matrix, k)
        if above:
            said.append(f"Significantly above {title_of(matrix.reference)}: {_listed(above, FEWER)}")
        if below:
            said.append(f"Significantly below: {_listed(below, FEWER)}")
    return "".join(f"{each}. " for each in said).rstrip()


def _above_chance(matrix: Matrix, k: int) -> list[str]:
    """Return the rows significantly above chance in a task, all of the task judged together."""
    prior = fit_prior(each_S[np.isfinite(each_S)] for each_S in matrix.scores_MSK[:, :, k])
    judged = _judged(dict(zip(matrix.rows, matrix.scores_MSK[:, :, k], strict=True)), prior)
    return [row for row, estimate in judged.items() if estimate > 0]


def _apart(matrix: Matrix, k: int) -> tuple[list[str], list[str]]:
    """Return the rows significantly above the reference in a task, and those below, all of the task judged together;
    the farthest first."""
    scores = dict(zip(matrix.rows, matrix.scores_MSK[:, :, k], strict=True))
    differences = {row: each - scores[matrix.reference] for row, each in scores.items() if row != matrix.reference}
    judged = _judged(differences, fit_priors(matrix.scores_MSK[:, :, k : k + 1]).on_these)
    order = sorted(judged, key=lambda row: -abs(judged[row]))
    return [row for row in order if judged[row] > 0], [row for row in order if judged[row] < 0]


def _judged(rows: Mapping[str, np.ndarray], prior: Prior) -> dict[str, float]:
    """Return the means over seeds that differ significantly from 0, all judged together."""
    known = {row: each_S for row, each_S in rows.items() if np.isfinite(each_S).sum() > 1}
    bounds = significant([partial(over_seeds, each_S, prior=prior) for each_S in known.values()])
    return {row: each.estimate for row, each in zip(known, bounds, strict=True) if each is not None}


def _listed(rows: Sequence[str], n: int) -> str:
    """Return the titles of the first n rows, and how many more there are."""
    titles = [title_of(row) for row in rows]
    return ", ".join(titles) if len(titles) <= n else f"{', '.join(titles[:n])} and {len(titles) - n} more"
