"""docs/atlas_results.md is what the stored trials say, and docs/results.md says no more than they do."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from coca_train.atlas.matrix import Matrix
from coca_train.statistics.answers import WRONG
from coca_train.statistics.intervals import Bounds
from coca_train.statistics.ranks import TaskDifference, fit_priors
from tests.house.atlas import matrix, short, text

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "atlas_results.md"
INTERVAL = re.compile(r"[+-]\d\.\d\d to [+-]\d\.\d\d")
ALL, PAIR = "all rows judged together", "this pair alone"
FAR = ("copy", "reverse", "nearest", "left")  # without flip_flop, in which RoPE is below guessing
NTK = "coca_ntk4"


@dataclass(frozen=True)
class Stated:
    """A difference of two rows that a finding states, and the page does not."""

    finding: int
    row: str
    other: str
    judged: str | int = PAIR  # or so many pairs together
    tasks: tuple[str, ...] = ()  # all
    first_seed: int = 1  # later ones than those that a row was selected on

    def bounds(self, stored: Matrix) -> Bounds:
        """Return it with its interval."""
        tasks = [stored.tasks.index(task) for task in self.tasks or stored.tasks]
        y_MSK = stored.scores_MSK[:, self.first_seed - 1 :, tasks]
        one, other = (y_MSK[stored.rows.index(row)] for row in (self.row, self.other))
        n_judged = {ALL: len(stored.rows) - 1, PAIR: 1}.get(self.judged, self.judged)
        return TaskDifference(one, other, fit_priors(y_MSK)).on_these_tasks(1 - WRONG / n_judged)


STATED = (
    *(Stated(2, row, "rope", ALL, FAR) for row in ("fox", "alibi")),
    *(Stated(3, row, "rope_window") for row in ("rope_rerope", "rope_self_extend", "rope_dual_chunk")),
    *(Stated(3, "rope_lambda_mask", "rope_window", judged) for judged in (PAIR, ALL)),
    *(Stated(3, row, "rope", ALL, FAR) for row in ("rope_rerope", "rope_dual_chunk", "rope_self_extend")),
    *(Stated(6, row, NTK, judged) for row in ("alibi", "fox") for judged in (PAIR, ALL)),
    *(Stated(6, row, NTK, ALL, (*FAR, "flip_flop")) for row in ("alibi", "fox")),
    *(Stated(6, row, NTK) for row in ("rope_window", "coca_strict_rerope", "rope_lambda_mask")),
    *(Stated(6, row, NTK, 2, first_seed=3) for row in ("coca_strict_rerope", "rope_lambda_mask")),
)


@pytest.fixture(scope="module")
def stored() -> Matrix:
    return matrix()


def findings() -> dict[int, str]:
    """Return the findings of docs/results.md by number."""
    said = (DOCS / "results.md").read_text().replace("−", "-")
    return {int(number): each for number, each in re.findall(r"^(\d)\. (.*)$", said, re.MULTILINE)}


def test_the_page_is_of_the_stored_trials() -> None:
    assert PAGE.read_text() == text(), "run: python -m tests.house.atlas > docs/atlas_results.md"


def test_the_table_of_the_results_is_of_the_stored_trials() -> None:
    said = (DOCS / "results.md").read_text()
    assert short() in said, "its table is what this prints: python -m tests.house.atlas --short"


@pytest.mark.parametrize("stated", STATED, ids=str)
def test_a_difference_is_as_stated(stored: Matrix, stated: Stated) -> None:
    assert _ends(stated.bounds(stored)) in findings()[stated.finding]


@pytest.mark.parametrize("number", range(1, 7))
def test_every_interval_of_a_finding_is_held(stored: Matrix, number: int) -> None:
    """By the page, or as one of those stated."""
    held = set(INTERVAL.findall(PAGE.read_text()))
    held |= {_ends(each.bounds(stored)) for each in STATED if each.finding == number}
    assert [each for each in INTERVAL.findall(findings()[number]) if each not in held] == []


@pytest.mark.parametrize("row", ["alibi", "fox", "rope_lambda_mask", "coca_strict_rerope"])
def test_what_is_above_coca_with_ntk_without_the_task_that_says_most(stored: Matrix, row: str) -> None:
    one, other = (stored.scores_MSK[stored.rows.index(name)] for name in (row, NTK))
    least = min(TaskDifference(one, other, fit_priors(stored.scores_MSK)).without_one_task().values())
    assert f"{least:+.2f}" in findings()[6]


def _ends(bounds: Bounds) -> str:
    return f"{bounds.low:+.2f} to {bounds.high:+.2f}"
