"""What the trials say, in sentences: who keeps the most, and what separates rows in each task."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from coca_train.atlas.matrix import REFERENCE, Matrix
from coca_train.atlas.methods import title_of
from coca_train.atlas.trials import LEARNED
from coca_train.statistics.ranks import Ranked, common_spread, over_seeds, significant

FEW = 6  # rows that a sentence lists
FEWER = 3  # where it has more to say


def finding(matrix: Matrix, ranked: Mapping[str, Ranked], order: Sequence[str]) -> list[str]:
    """Return who keeps the most, and who might. order: the rows by rank."""
    first = order[0]
    if not math.isfinite(ranked[first].level):
        return [f"No method has learned most of the tasks at {matrix.lengths[0]} tokens."]
    if len(matrix.seeds) < 2:
        return [f"One seed of {len(matrix.rows)} rows: nothing is known of which differences outlast seeds."]
    others = [row for row in order if row != first and math.isfinite(ranked[row].level)]
    close = [row for row in others if ranked[row].on_these.best == 1]
    found = [f"{title_of(first)} has the highest mean score beyond the {matrix.lengths[0]} tokens of its training."]
    if close:
        found.append(f"Not significantly lower: {_listed(close, FEW)}.")
    n_open = sum(ranked[row].over_tasks.best == 1 for row in others)
    found.append(f"With the tasks as a sample of such tasks, {n_open} of the {len(others)} others might be as good.")
    return found


def by_task(matrix: Matrix) -> list[str]:
    """Return of each task how many rows are above chance beyond the training window, which of them the farthest, and
    which are significantly above or below the reference."""
    return [_of_task(matrix, k, task) for k, task in enumerate(matrix.tasks)]


def _of_task(matrix: Matrix, k: int, task: str) -> str:
    known = {row: matrix.cells[m][k] for m, row in enumerate(matrix.rows) if matrix.cells[m][k].n}
    if not known:
        return f"{task}: no row has learned it with half of its seeds."
    keeping, at = [row for row, each in known.items() if each.low > 0], matrix.lengths[1]
    best = max(keeping or known, key=lambda row: known[row].estimate)
    shares = {row: matrix.share(row, task, at) for row in dict.fromkeys((best, REFERENCE)) if row in known}
    works = matrix.works_to(best, task)
    some = f"{len(keeping)} of {len(known)} rows are above chance"
    none = f"none of {len(known)} rows is significantly above chance beyond {matrix.lengths[0]} tokens"
    said = [
        f"{task}: {some if keeping else none}; right answers at {at:,} tokens: "
        + ", ".join(f"{title_of(row)} {share.text}" for row, share in shares.items())
    ]
    if works > matrix.lengths[0]:
        said.append(f"{title_of(best)} has at least {LEARNED:.0%} right up to {works:,} tokens")
    if REFERENCE in known:
        above, below = _apart(matrix, k)
        if above:
            said.append(f"Significantly above {title_of(REFERENCE)}: {_listed(above, FEWER)}")
        if below:
            said.append(f"Significantly below: {_listed(below, FEWER)}")
    return "".join(f"{each}. " for each in said).rstrip()


def _apart(matrix: Matrix, k: int) -> tuple[list[str], list[str]]:
    """Return the rows significantly above the reference in a task, and those below, all of the task judged together;
    the farthest first."""
    scores = dict(zip(matrix.rows, matrix.scores_MSK[:, :, k], strict=True))
    spread = common_spread(matrix.scores_MSK[:, :, k : k + 1]).on_these
    differences = {row: each - scores[REFERENCE] for row, each in scores.items() if row != REFERENCE}
    differences = {row: each for row, each in differences.items() if np.isfinite(each).sum() > 1}
    judged = significant([partial(over_seeds, each, common=spread) for each in differences.values()])
    found = {row: bounds.estimate for row, bounds in zip(differences, judged, strict=True) if bounds is not None}
    order = sorted(found, key=lambda row: -abs(found[row]))
    return [row for row in order if found[row] > 0], [row for row in order if found[row] < 0]


def _listed(rows: Sequence[str], n: int) -> str:
    """Return the titles of the first n rows, and how many more there are."""
    titles = [title_of(row) for row in rows]
    return ", ".join(titles) if len(titles) <= n else f"{', '.join(titles[:n])} and {len(titles) - n} more"
