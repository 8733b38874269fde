"""What is asked at a length, and what a part concludes from the answers."""

import math

import numpy as np
import pytest

from coca_train.evaluation.verdict import FOUND_SHARE, HOLDS_WITHIN, USES_GAIN, Evidence, Part, finds, holds, uses
from coca_train.statistics.answers import LEAST, SURE, Answer, Outcome
from coca_train.statistics.intervals import Bounds

DRAWS = 1000
OUTCOMES: dict[str, Outcome] = {"y": "yes", "n": "no", "o": "open"}


def part(answers: str, granted: int = 0, stopped: str = "") -> Part:
    """One at 64, 128, 256 ... tokens: y, n or o each; a length that was not asked is a space."""
    seen = tuple(
        Evidence(64 << i, Answer(OUTCOMES[sign], Bounds(0.0, 0.0, 0.0, LEAST), 5 if sign == "o" else 0))
        for i, sign in enumerate(answers)
        if sign != " "
    )
    return Part("uses", "documents", seen, granted, stopped)


def documents(mean: float, spread: float = 0.001, n: int = 40) -> list[list[float]]:
    """Sums of 100 predictions each; means are spread evenly about `mean`."""
    return [[100 * (mean + spread * (2 * i / (n - 1) - 1)), 100.0] for i in range(n)]


@pytest.mark.parametrize(
    ("mean", "held", "used"),
    [
        (-0.02, "yes", "no"),  # a longer window is better: it holds; more context makes worse: it is not used
        (0.004, "yes", "no"),  # less than either bound
        (0.0075, "yes", "yes"),
        (0.02, "no", "yes"),
    ],
)
def test_what_is_asked_of_differences(mean: float, held: Outcome, used: Outcome) -> None:
    sums_D2 = documents(mean)
    assert (holds(256, sums_D2).answer.outcome, uses(256, sums_D2).answer.outcome) == (held, used)
    assert holds(256, sums_D2).length == uses(256, sums_D2).length == 256


def test_an_interval_that_meets_its_bound_is_open() -> None:
    assert holds(256, documents(HOLDS_WITHIN)).answer.outcome == "open"
    assert uses(256, documents(USES_GAIN)).answer.outcome == "open"
    assert finds(256, 8, 10, FOUND_SHARE).answer.outcome == "open"
    # Of less text than is asked, whatever it says.
    assert uses(256, documents(0.5, n=LEAST - 1)).answer[::2] == ("open", 1)


def test_bounds_are_options() -> None:
    assert holds(256, documents(0.02), within=0.05).answer.outcome == "yes"
    assert uses(256, documents(0.02), gain=0.05).answer.outcome == "no"
    assert finds(256, 100, 100, share=0.5).answer.outcome == "yes" and finds(256, 50, 100).answer.outcome == "no"


def test_a_document_weighs_as_much_as_it_has_predictions() -> None:
    """One long document that loses outweighs all the short ones that do not."""
    seen = holds(256, [[900.0, 900.0], *[[-0.01, 1.0]] * 30])
    assert seen.answer.bounds.estimate == pytest.approx(899.7 / 930)


def test_a_loss_that_flew_off_does_not_hold() -> None:
    assert holds(256, [[math.inf, 100.0], *documents(0.0)]).answer.outcome == "no"


@pytest.mark.parametrize(
    ("answers", "sure", "failed", "unsettled"),
    [
        ("yyny", 128, 256, ()),  # what passes behind a failure is no stepping stone
        ("ny", 0, 64, ()),
        ("yy", 128, None, ()),
        ("yoyn", 64, 512, (128, 256)),
        ("yoy", 64, None, (128, 256)),
        ("ooy", 0, None, (64, 128, 256)),
        ("on", 0, 128, (64,)),
        ("yno", 64, 128, ()),  # behind a failure nothing is asked any more
    ],
)
def test_a_part_is_sure_up_to_its_first_doubt(
    answers: str, sure: int, failed: int | None, unsettled: tuple[int, ...]
) -> None:
    asked = part(answers)
    assert asked.sure == sure
    assert (asked.failed.length if asked.failed else None) == failed
    assert tuple(seen.length for seen in asked.unsettled) == unsettled
    assert asked.known == bool(sure or failed)


def test_what_is_granted_is_sure_until_more_is() -> None:
    assert part("", granted=128).sure == part("  n", granted=128).sure == part("  o", granted=128).sure == 128
    assert part("  yn", granted=128).sure == 256
    assert not part("").known and part("", granted=128).known


@pytest.mark.parametrize("true_reach", [0, 2])
def test_more_is_said_falsely_in_hardly_any_draw(true_reach: int) -> None:
    """Four lengths; beyond the true reach the mean gain is the bound, and no more: of all that is said of them, less
    than one in a hundred draws says too much."""
    falsely, rng = 0, np.random.default_rng(7)
    for _ in range(DRAWS):
        evidence = []
        for length in (1, 2, 3, 4):
            gain = 0.05 if length <= true_reach else USES_GAIN
            count_D = rng.integers(300, 3000, 24).astype(float)
            sums_D2 = np.stack((count_D * (gain + 0.01 * rng.normal(size=24)), count_D), 1)
            evidence.append(uses(length, sums_D2.tolist()))
        falsely += Part("uses", "documents", tuple(evidence)).sure > true_reach
    assert SURE > 0.99 and falsely / DRAWS < 0.01
