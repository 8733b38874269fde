"""What frequencies of tokens and of pairs of tokens predict: the least that a trained model is better than.

Counted from the training text. A pair is as likely as Witten and Bell (1991) have it,

    p(b | a) = (n(a, b) + t(a) p(b)) / (n(a) + t(a))

with t(a) the number of different tokens seen after a; p(b) is the share of b, one added to each count.
"""

from collections.abc import Iterable

import numpy as np


class Frequencies:
    """texts: stretches of token ids, int64. vocab_size: ids are below it."""

    def __init__(self, texts: Iterable[np.ndarray], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.of_one_V, pairs = np.ones(vocab_size), list[np.ndarray]()
        for tokens in texts:
            self.of_one_V += np.bincount(tokens, minlength=vocab_size)
            pairs.append(tokens[:-1] * vocab_size + tokens[1:])
        self.of_one_V /= self.of_one_V.sum()
        # Sorted keys a V + b, to be searched: a table of V x V would be gigabytes.
        self.pairs, self.counts = np.unique(np.concatenate(pairs or [np.empty(0, int)]), return_counts=True)
        first = self.pairs // vocab_size
        self.n_V = np.bincount(first, weights=self.counts, minlength=vocab_size)
        self.types_V = np.bincount(first, minlength=vocab_size)

    def nll(self, tokens: np.ndarray) -> tuple[float, float]:
        """NLL [nats] of all tokens but the first one: of each by itself, and of each after the one before it."""
        a, b = tokens[:-1], tokens[1:]
        of_one = self.of_one_V[b]
        key = a * self.vocab_size + b
        at = np.minimum(np.searchsorted(self.pairs, key), len(self.pairs) - 1)
        count = np.where(self.pairs[at] == key, self.counts[at], 0) if len(self.pairs) else np.zeros(len(key))
        n, types = self.n_V[a], self.types_V[a]
        seen = n + types > 0
        of_pair = np.where(seen, (count + types * of_one) / np.where(seen, n + types, 1), of_one)
        return float(-np.log(of_one).sum()), float(-np.log(of_pair).sum())
