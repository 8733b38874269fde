"""How SQuAD compares answers (Rajpurkar et al., arXiv 1606.05250), under the names of transformers 4.

Tasks of lm-evaluation-harness (SCROLLS, CoQA, ReCoRD) import transformers.data.metrics.squad_metrics, which
transformers 5 has no more; they get this module in its place (harness_sources.py).
"""

import re
import string
from collections import Counter


def normalize_answer(text: str) -> str:
    """In small letters, without punctuation and articles, single spaces."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def compute_exact(expected: str, answer: str) -> int:
    """1 when both are the same, normalized."""
    return int(normalize_answer(expected) == normalize_answer(answer))


def compute_f1(expected: str, answer: str) -> float:
    """Harmonic mean of the share of the answer's words that are expected and of the expected ones that it has; where
    either has no words, 1 when neither has."""
    theirs, ours = normalize_answer(expected).split(), normalize_answer(answer).split()
    if not theirs or not ours:
        return float(theirs == ours)
    n_same = (Counter(theirs) & Counter(ours)).total()
    return 2 * n_same / (len(theirs) + len(ours))
