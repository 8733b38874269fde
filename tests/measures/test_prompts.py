"""Prompts of a length: found with few tries, drawn the same at every size, words that are made up."""

import random
import re

from coca_train.data.prompts import words
from coca_train.evaluation.suites._prompts import choose_place, fill_prompts, fit_prompt


class Squares:
    """A prompt whose units cost little at first and much later."""

    def __init__(self, size, case=0):
        self.size, self.case, self.tokens = size, case, range(size**2 + 10)


def test_a_unit_costs_what_it_costs():
    """Few prompts are tried on the way."""
    tried = []

    def at(size):
        tried.append(size)
        return Squares(size)

    assert 704 <= fit_prompt(at, 500_000, 0).size <= 707  # 704² + 10 = 495626, 707² + 10 = 499859
    assert fit_prompt(at, 11, 0).size == 1
    assert len(tried) < 40


def test_a_length_has_all_its_cases_or_none():
    whole = fill_prompts(lambda case, size: Squares(size, case), 3, 11, 0)
    assert [(prompt.case, prompt.size) for prompt in whole] == [(0, 1), (1, 1), (2, 1)]
    assert fill_prompts(lambda case, size: Squares(size + 2 * (case == 2)), 3, 11, 0) == []  # the third has no room


def test_places():
    assert [choose_place(0.0, case, 6, "even", 3) for case in range(6)] == [0, 3, 6, 0, 3, 6]
    assert [choose_place(0.0, case, 6, "even", 1) for case in range(2)] == [0, 0]
    assert [choose_place(share, 0, 3, "uniform", 3) for share in (0, 0.24, 0.26, 0.51, 0.999)] == [0, 0, 1, 2, 3]


def test_words_are_made_up_and_different():
    vocabulary = words(5000, random.Random(1))
    assert len(set(vocabulary)) == 5000
    assert all(re.fullmatch("([bdfgklmnprstvz][aeiou]){3}", word) for word in vocabulary)
    assert vocabulary[:7] == words(7, random.Random(1))
