"""Claims of papers: they are about rows and tasks that there are; and what is found of scores with a known answer."""

import numpy as np
import pytest

from coca_train.atlas.claims import CLAIMS, Claim, tried
from coca_train.atlas.methods import METHODS, VARIANTS
from coca_train.data.diagnostics import TASKS

N_SEEDS, N_TASKS = 5, 8
NAMES = tuple(f"task {k}" for k in range(N_TASKS))
AGAINST = Claim("one is better", "", ("one",), ("other",))


def scores(rng: np.random.Generator, levels: dict[str, float], by_task: float = 0.05) -> dict[str, np.ndarray]:
    """Rows that differ in their level, by task as far as by_task says, and by training."""
    of_tasks = rng.uniform(0.1, 0.6, N_TASKS)
    return {
        row: level + of_tasks + rng.normal(0, by_task, N_TASKS) + rng.normal(0, 0.05, (N_SEEDS, N_TASKS))
        for row, level in levels.items()
    }


def test_claims_are_about_rows_and_tasks_of_the_atlas() -> None:
    rows = {each.name for each in (*METHODS, *VARIANTS)}
    for claim in CLAIMS:
        assert set(claim.rows) <= rows, claim.words
        assert set(claim.tasks) <= set(TASKS), claim.words
        assert claim.source
    assert len({claim.words for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize(("level", "verdict"), [(0.3, "holds"), (-0.3, "the opposite")])
def test_a_planted_difference_is_found(level: float, verdict: str) -> None:
    rng = np.random.default_rng(0)
    found = [tried(scores(rng, {"one": level, "other": 0.0}), NAMES, [AGAINST])[0] for _ in range(200)]
    assert np.mean([each.verdict == verdict for each in found]) > 0.9
    assert np.mean([len(each.better if level > 0 else each.worse) for each in found]) > N_TASKS / 2


@pytest.mark.parametrize(("n_seeds", "missing"), [(5, 0.0), (2, 0.3), (4, 0.2)])
def test_equal_rows_are_called_equal(n_seeds: int, missing: float) -> None:
    """Of eight claims of equal rows, any is called held or contradicted in at most 5 % of draws, also where seeds have
    not learned every task."""
    rng = np.random.default_rng(1)
    claims = [Claim(f"{i}", "", (f"row {i}",), ("other",)) for i in range(8)]
    levels = dict.fromkeys((*(f"row {i}" for i in range(8)), "other"), 0.0)
    wrong = 0
    for _ in range(300):
        made = {row: each[:n_seeds] for row, each in scores(rng, levels, by_task=0.0).items()}
        for each in made.values():
            each[rng.random(each.shape) < missing] = np.nan
        found = tried(made, NAMES, claims)
        wrong += any(each.verdict != "undecided" for each in found)
    assert wrong / 300 < 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


def test_rows_that_are_equal_on_average_hold_no_claim() -> None:
    """They differ by task: on these tasks there may be a difference, over tasks like these there is none."""
    rng = np.random.default_rng(5)
    found = [tried(scores(rng, {"one": 0.0, "other": 0.0}), NAMES, [AGAINST])[0].bounds for _ in range(400)]
    assert np.mean([each.excludes(0) for each in found]) < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_a_difference_of_differences() -> None:
    """NTK adds 0.4 to one row and 0.1 to the other, which is higher."""
    rng = np.random.default_rng(2)
    made = scores(rng, {"one": 0.0, "one_ntk": 0.4, "other": 0.5, "other_ntk": 0.6})
    claim = Claim("more for one", "", ("one_ntk",), ("one",), than=(("other_ntk",), ("other",)))
    (found,) = tried(made, NAMES, [claim])
    direct = (made["one_ntk"] - made["one"]) - (made["other_ntk"] - made["other"])
    assert found.bounds.estimate == pytest.approx(direct.mean())
    assert found.bounds.estimate == pytest.approx(0.3, abs=0.15)


def test_rows_of_one_side_are_averaged_and_tasks_chosen() -> None:
    made = scores(np.random.default_rng(3), {"a": 0.0, "b": 0.2, "c": 0.0})
    claim = Claim("", "", ("a", "b"), ("c",), tasks=NAMES[1:4])
    (found,) = tried(made, NAMES, [claim])
    direct = ((made["a"] + made["b"]) / 2 - made["c"])[:, 1:4]
    assert found.bounds.estimate == pytest.approx(direct.mean())
    assert found.bounds.n == 3


def test_what_holds_on_these_tasks_alone() -> None:
    """Every seed sees the same, but tasks differ: other tasks might have shown something else."""
    rng = np.random.default_rng(4)
    by_task = np.array([0.9, -0.5, 0.8, -0.4, 0.7, -0.3, 0.6, -0.2])
    one = by_task + rng.normal(0, 0.005, (N_SEEDS, N_TASKS))
    (found,) = tried({"one": one, "other": np.zeros((N_SEEDS, N_TASKS))}, NAMES, [AGAINST])
    assert found.verdict == "holds on these tasks"
    assert (found.better, found.worse) == (NAMES[::2], NAMES[1::2])
    (found,) = tried({"one": -one, "other": np.zeros((N_SEEDS, N_TASKS))}, NAMES, [AGAINST])
    assert found.verdict == "the opposite on these tasks"


def test_what_is_missing_is_not_tried_and_one_seed_says_nothing() -> None:
    assert tried({"one": np.zeros((2, 3))}, NAMES[:3], [AGAINST]) == []
    rows = {"one": np.full((1, 3), 0.9), "other": np.array([[0.1, 0.2, 0.3]])}
    (found,) = tried(rows, NAMES[:3], [AGAINST])
    assert found.on_these.low == -np.inf and found.better == ()
    assert found.verdict == "undecided"
    nothing = dict.fromkeys(("one", "other"), np.full((2, 3), np.nan))
    (found,) = tried(nothing, NAMES[:3], [AGAINST])
    assert found.verdict == "undecided"


def test_what_is_worse_on_these_tasks_does_not_hold_by_others() -> None:
    """One task that every seed has learned, in which it is worse, and seven that one seed each has not, in which it is
    better."""
    one, other = np.full((N_SEEDS, N_TASKS), 0.9), np.full((N_SEEDS, N_TASKS), 0.5)
    one[:, 0] = 0.4
    one += np.random.default_rng(6).normal(0, 0.005, one.shape)
    for k in range(1, N_TASKS):
        one[k % N_SEEDS, k] = np.nan
    (found,) = tried({"one": one, "other": other}, NAMES, [AGAINST])
    assert found.bounds.estimate > 0
    assert found.verdict == "the opposite on these tasks"


def test_what_nobody_has_learned_says_so() -> None:
    nothing = dict.fromkeys(("one", "other"), np.full((3, 3), np.nan))
    (found,) = tried(nothing, NAMES[:3], [AGAINST])
    assert np.isnan(found.on_these.estimate)
    assert found.verdict == "undecided"
