"""docs/atlas_results.md is what the stored trials say, and docs/results.md says no more than they do."""

import re
from pathlib import Path

import pytest

from coca_train.atlas.matrix import Matrix
from coca_train.statistics.answers import WRONG
from coca_train.statistics.ranks import TaskDifference, fit_priors
from tests.house.atlas import matrix, short, text

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "atlas_results.md"
PAIRS = 6  # the finding on what is above CoCA with NTK
SELECTED, N_SELECTED = 2, 2  # seeds that rows of it were selected on, and how many rows were
INTERVAL = re.compile(r"[+-]\d\.\d\d to [+-]\d\.\d\d")


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
    assert short() in (DOCS / "results.md").read_text(), "its table is what this prints: python -m tests.house.atlas --short"


def far_without_flip_flop(stored: Matrix) -> set[str]:
    """Return the intervals of differences to RoPE in far tasks, without the one in which RoPE is below guessing."""
    tasks = [stored.tasks.index(task) for task in stored.groups["far"] if task != "flip_flop"]
    y_MSK = stored.scores_MSK[:, :, tasks]
    priors, rope = fit_priors(y_MSK), y_MSK[stored.rows.index("rope")]
    confidence = 1 - WRONG / (len(stored.rows) - 1)
    each = [TaskDifference(y_SK, rope, priors).on_these_tasks(confidence) for y_SK in y_MSK]
    return {f"{one.low:+.2f} to {one.high:+.2f}" for one in each}


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_intervals_of_a_finding_are_on_the_page(stored: Matrix, number: int) -> None:
    said = INTERVAL.findall(findings()[number])
    on_page = set(INTERVAL.findall(PAGE.read_text())) | far_without_flip_flop(stored)
    assert [each for each in said if each not in on_page] == []


@pytest.mark.parametrize(
    ("row", "selected"),
    [("alibi", False), ("fox", False), ("rope_lambda_mask", True), ("coca_strict_rerope", True)],
)
def test_what_is_said_to_be_above_coca_with_ntk(stored: Matrix, row: str, selected: bool) -> None:
    """Over all seeds, over those that it was not selected on, and without the task that says most."""

    def difference(seeds: slice) -> TaskDifference:
        y_MSK = stored.scores_MSK[:, seeds]
        one, other = (y_MSK[stored.rows.index(name)] for name in (row, "coca_ntk4"))
        return TaskDifference(one, other, fit_priors(y_MSK))

    whole, rest = difference(slice(None)), difference(slice(SELECTED, None))
    judged = [whole.on_these_tasks(), rest.on_these_tasks(1 - WRONG / N_SELECTED) if selected else None]
    if not selected:  # judged with all rows as candidates, too
        judged.append(whole.on_these_tasks(1 - WRONG / (len(stored.rows) - 1)))
    for each in filter(None, judged):
        assert f"{each.low:+.2f} to {each.high:+.2f}" in findings()[PAIRS]
    assert f"{min(whole.without_one_task().values()):+.2f}" in findings()[PAIRS]
