"""How far a model's context reaches: what is asked at each length, and what counts as an answer.

* `holds`: the predictions with more than a training window of text before them lose at most HOLDS_WITHIN nats a token
  when they are read in windows of this length instead of windows of the training length with seven eighths of it to all
  of it before them: a longer window must be as good as the training window at its best. Within its training window a
  model holds by definition.
* `uses`: predictions with seven eighths of this length to all of it before them are better, by more than USES_GAIN nats
  a token, than the same predictions with their nearest half of it to five eighths, truncated and positions begun anew.
  A flat curve of perplexity is no reach: a model may ignore everything far away (ALiBi, arXiv 2108.12409, does), and
  then longer windows gain nothing.
* `finds`: what was hidden in a prompt of this length is found more often than FOUND_SHARE.
* `works with`: tasks that need more of the prompt than one place of it (arXiv 2404.06654) are done more often than
  that.

Each bound is the smallest effect that matters, and an option. At each length the answer is yes, no or open
(statistics/answers.py), by an interval over documents (paired: the same predictions in both windows) or over prompts. A
part is *sure* up to the last length before the first that is not answered yes, and *failed* from the first that is
answered no; what lies between is open. Of a model that is too little trained (`untrained`) nothing is said: it holds
any window, equally badly.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import numpy as np

from coca_train.statistics.answers import SURE, Answer, above, below, share_above
from coca_train.statistics.intervals import OverDocuments
from coca_train.statistics.shares import share_bounds

HOLDS_WITHIN = 0.01  # [nats per token]
USES_GAIN = 0.005  # [nats per token]
FOUND_SHARE = 0.8
ROUNDING = 1e-4  # [nats per token]: as much can be, since kernels are chosen by length (measures/windows.py)

Name = Literal["holds", "uses", "finds", "works with"]


class Evidence(NamedTuple):
    """What was seen at a length [tokens]."""

    length: int
    answer: Answer


class Part(NamedTuple):
    """One thing that was asked, at ascending lengths. of: what was counted, documents or prompts. granted: the length
    [tokens] up to which it is passed by definition. stopped: why no length beyond was measured although it was asked,
    because the model has no positions for it, say; "": nothing was asked. bound: what is asked. untrained: why nothing
    can be said of a model that has not learnt enough, in words; "": it has."""

    name: Name
    of: str
    evidence: tuple[Evidence, ...]
    granted: int = 0
    stopped: str = ""
    bound: float = 0.0
    untrained: str = ""

    @property
    def sure(self) -> int:
        """The length up to which it is answered yes at every length [tokens]; 0: not at the shortest."""
        passed = [seen.length for seen in takewhile(lambda seen: seen.answer.outcome == "yes", self.evidence)]
        return passed[-1] if passed else self.granted

    @property
    def failed(self) -> Evidence | None:
        """The first length that is answered no."""
        return next((seen for seen in self.evidence if seen.answer.outcome == "no"), None)

    @property
    def unsettled(self) -> tuple[Evidence, ...]:
        """What is open beyond `sure`, up to where it failed."""
        beyond = (seen for seen in self.evidence if seen.length > self.sure)
        return tuple(seen for seen in takewhile(lambda seen: seen is not self.failed, beyond))

    @property
    def known(self) -> bool:
        """Whether anything can be said of it."""
        return bool(self.sure or self.failed)


def holds(length: int, excess_D2: Sequence[Sequence[float]], within: float = HOLDS_WITHIN) -> Evidence:
    """excess_D2: of each document the NLL [nats] of its predictions in windows of `length` less that in windows of the
    training length, and how many predictions."""
    return Evidence(length, below(_over(excess_D2), within))


def uses(length: int, gain_D2: Sequence[Sequence[float]], gain: float = USES_GAIN) -> Evidence:
    """gain_D2: of each document the NLL [nats] of its predictions with the less of the two contexts less that with the
    more, and how many predictions."""
    return Evidence(length, above(_over(gain_D2), gain))


def untrained(result: Mapping[str, Any], gain: float = USES_GAIN) -> str:
    """Why a model is too little trained to judge, in words; "" of one that is not, or may not be.

    It must be better than the frequencies of tokens and of pairs of tokens in its training text, where that is known,
    and with 32 tokens of context than with 8: what is not holds any window, equally badly. result: of one text at the
    training window: `by_document`, NLL [nats] and predictions; `frequencies`, NLL of each of the two and predictions;
    `short`, NLL with 5 to 8 tokens of context less that of the same predictions with 29 to 32, and predictions.
    """
    if counted := result.get("frequencies"):
        sums_D3 = np.asarray(counted, dtype=float)
        kind = int(sums_D3[:, 1].sum() < sums_D3[:, 0].sum())
        own_D2 = np.asarray(result["by_document"], dtype=float)
        better = above(_over(np.stack((sums_D3[:, kind] - own_D2[:, 0], own_D2[:, 1]), 1)), gain)
        if better.outcome == "no":
            model = ("a unigram", "a bigram")[kind]
            return f"is too little trained to judge: it predicts no better than {model} model of its training text"
    if "short" in result:
        gained = above(_over(result["short"]), gain)
        if gained.outcome == "no":
            return "is too little trained to judge: it predicts no better with 32 tokens of context than with 8"
    return ""


def finds(length: int, n_found: int, n_prompts: int, share: float = FOUND_SHARE) -> Evidence:
    """So many of the prompts of this length were answered as they must be."""
    return Evidence(length, share_above(n_found, n_prompts, share, share_bounds))


def _over(sums_D2: Any) -> Any:
    return OverDocuments(sums_D2).interval(SURE)
