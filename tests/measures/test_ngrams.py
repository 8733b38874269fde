"""Frequencies of tokens and of pairs, against counting by hand."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from coca_train.evaluation.texts import TokenFrequencies
from coca_train.evaluation.verdict import untrained

TEXTS = [np.array([1, 2, 1, 2, 3, 1]), np.array([2, 2, 4])]
VOCAB = 6


def by_hand(a, b):
    """(p(b), p(b | a)) of Witten and Bell, from plain counts."""
    ones = Counter(int(token) for text in TEXTS for token in text)
    pairs = Counter((int(x), int(y)) for text in TEXTS for x, y in pairwise(text))
    of_one = (ones[b] + 1) / (sum(ones.values()) + VOCAB)
    n = sum(count for (first, _), count in pairs.items() if first == a)
    types = len({second for first, second in pairs if first == a})
    return of_one, (pairs[a, b] + types * of_one) / (n + types) if n else of_one


def test_probabilities_by_hand_and_their_sum():
    known = TokenFrequencies(TEXTS, VOCAB)
    for a in range(VOCAB):
        both = [known.nll(np.array([a, b])) for b in range(VOCAB)]
        assert both == [pytest.approx([-math.log(p) for p in by_hand(a, b)]) for b in range(VOCAB)]
        assert sum(math.exp(-of_pair) for _, of_pair in both) == pytest.approx(1)


def test_a_text_is_the_sum_of_its_predictions():
    known, text = TokenFrequencies(TEXTS, VOCAB), np.array([5, 1, 2, 4, 0])
    each = [known.nll(text[i : i + 2]) for i in range(4)]
    assert known.nll(text) == pytest.approx(np.sum(each, axis=0))
    assert TokenFrequencies([], VOCAB).nll(text)[0] == pytest.approx(4 * math.log(VOCAB))


def result(own, of_words, of_pairs, short=0.5, n=24):
    """Losses [nats per token] of 100 predictions in each document."""
    noise = np.random.default_rng(0).normal(0, 0.01, n)
    return {
        "by_document": [[100 * (own + each), 100] for each in noise],
        "token_frequencies": [[100 * of_words, 100 * of_pairs, 100] for _ in noise],
        "short": [[100 * short + each, 100] for each in noise],
    }


def test_who_is_too_little_trained():
    assert untrained(result(4.0, 6.5, 4.5)) == ""
    assert "a bigram model" in untrained(result(5.0, 6.5, 4.5))
    assert "a unigram model" in untrained(result(7.0, 6.5, 6.6))
    assert "32 tokens" in untrained(result(4.0, 6.5, 4.5, short=0.0))
    assert untrained({"by_document": [[1.0, 2]]}) == ""
    few = result(5.0, 6.5, 4.5, n=10)
    assert untrained(few) == ""  # too few documents to say so
