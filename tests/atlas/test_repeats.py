"""Stored trainings done again: the same bits, another processor, another result."""

import math
from dataclasses import replace

import pytest

from coca_train.atlas.repeats import Repeat, difference, verdict
from coca_train.atlas.trials import Answers
from tests.atlas.trials import trial

HERE, THERE = {"processor": "here"}, {"processor": "there"}
LESS = {"copy": (100, 40, 10), "left": (95, 82, 0)}


def repeat(seed=1, shares=None, made_with=HERE, **again):
    stored = trial(seed=seed, made_with=made_with)
    return Repeat({"rope": stored}, {"rope": trial(seed=seed, shares=shares, **again)})


def test_the_same_bits_are_as_stored_wherever_they_were_made():
    said, as_stored = verdict([repeat(), repeat(2, made_with=THERE)], "here")
    assert said == ["2 of 2 trainings came out with the same bits."] and as_stored
    assert str(repeat(made_at="later", seconds=1)) == "the same bits in 1 row"


def test_other_weights_are_not_the_same_bits_though_the_answers_are():
    other = repeat(weights="others")
    assert not other.same and str(other) == "other bits; mean score 0.311, stored 0.311"


def test_another_result_on_the_same_processor_is_refused():
    """Whatever its scores are."""
    said, as_stored = verdict([repeat(), repeat(2, weights="others")], "here")
    assert not as_stored
    assert said[0] == "1 of 2 trainings came out with the same bits."
    assert said[1] == "1 did not, though this is the processor that they were stored on: here."
    assert said[-1].endswith("less the stored one: +0.000.")  # one training has no interval


def test_on_another_processor_the_scores_decide():
    """By the mean over trainings; (40 − 50 and 82 − 92) / 90 of two lengths and two tasks is −0.056."""
    lower = [repeat(seed, LESS, THERE) for seed in (1, 2, 3)]
    assert difference(lower).estimate == pytest.approx(-1 / 18)
    said, as_stored = verdict(lower, "here")
    assert not as_stored and said[-1].endswith("-0.056 (-0.056 to -0.056).")
    higher = {"copy": (100, 60, 10), "left": (95, 100, 0)}
    mixed = [repeat(seed, shares, THERE) for seed, shares in enumerate((LESS, higher, LESS, higher), 1)]
    said, as_stored = verdict(mixed, "here")
    assert as_stored and "stored on another processor (there; this is here)" in said[1]


def test_a_training_of_which_nothing_was_learned_twice_says_nothing():
    nothing = repeat(shares={"copy": (50, 50, 10), "left": (50, 92, 0)}, made_with=THERE)
    assert math.isnan(nothing.scores[0])
    assert difference([nothing, repeat(2, LESS, THERE)]).n == 1


def test_a_task_that_is_guessed_has_no_part_in_it():
    """Nine tenths of it are guessed; what is over would be ten times what the others say."""

    def guessed(one):
        sort = Answers(right=[95, 10, 10], asked=[100] * 3, chance=[0.4, 0.6, 0.9])
        return replace(one, tasks={**one.tasks, "sort": sort}, learned=[*one.learned, "sort"])

    plain = repeat(weights="others")
    each = Repeat({"rope": guessed(plain.stored["rope"])}, {"rope": guessed(plain.again["rope"])})
    assert each.scores == plain.scores


def test_a_trial_that_does_not_say_its_processor():
    assert trial().processor == "unknown"
