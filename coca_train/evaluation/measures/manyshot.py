"""Many-shot learning in context: labels that can only be known from the shots before (cf. arXiv 2404.11018).

Agarwal et al. (Many-Shot In-Context Learning) find that models go on learning from hundreds and thousands of shots.
Here the task is made so that a base model of any size can do nothing without reading the shots, and that what it can do
by reading them is known: made-up words have labels, which word has which is drawn anew for each case, and no rule
tells.

* A rule would be guessed from a few shots, wherever they stand, and says little about length; words with a meaning are
  labelled out of what was read in training; and no small model guesses rules.
* Were every asked word among the shots, this would be recall with few values (recall.py), and its best result the same
  at every length. Here a case has a fixed number of words, more than short prompts hold shots: each shot more teaches a
  word more, until all have been seen. A model that reads the last m shots only stops getting better at m shots.

Definition. A prompt is k shots and the asked word with its colon, a line each:

    bamilo: B
    tufage: A
    kirado: A
    bamilo:

* Words and labels: a case has n words, all different, and c labels; as many words have one label as another (one more
  at most). The shots take all n words in an order that is drawn, then all of them in another order, and so on.
* Length: as many shots, at least one, as fit into L tokens (prompts.py; a token that begins texts counted).
* The asked word is drawn from all n, equally likely, so it is among the shots (`seen`) with probability min(k, n) / n.
* Found: of all labels, its label is the most probable behind the prompt, by the log-likelihood of the label's tokens
  (likelihood.py); where labels are equally probable, the first of them. Dynamic frequencies see the length of the
  prompt.
* Chance is 1 / c. Of a word that was not seen no more can be known; of one that was, all. So the ceiling of cases of
  which a share s is seen is s + (1 - s) / c. An accuracy a is that of a model that has read (a - 1 / c) / (1 - 1 / c)
  of the words, on average: what was learnt.
* Words, labels, orders and the asked word come from (seed, L, number of the case) alone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from coca_train.data.prompts import words
from coca_train.evaluation.measures.likelihood import Request
from coca_train.evaluation.measures.prompts import Encode, filled

LEAST = 1  # shots


@dataclass(frozen=True, kw_only=True)
class Case:
    """One prompt. label: index of the right one. n_shots: k. distance: from the last shot of the asked word to the end
    [tokens]; None: it is not among them. requests: the prompt and each label. tokens: the longest that is read."""

    word: str
    label: int
    n_shots: int
    distance: int | None
    requests: tuple[Request, ...]
    tokens: tuple[int, ...]

    @property
    def seen(self) -> bool:
        """Whether the asked word is among the shots."""
        return self.distance is not None


def cases(
    encode: Encode,
    length: int,
    n_cases: int,
    *,
    n_words: int,
    labels: Sequence[str],
    seed: int,
    begin: Sequence[int] = (),
) -> list[Case]:
    """The prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt."""

    def build(case: int, size: int) -> Case:
        draw = random.Random(f"manyshot {seed} {length} {case}")
        known = words(n_words, draw)
        right = [index % len(labels) for index in range(n_words)]
        draw.shuffle(right)
        asked = draw.randrange(n_words)
        order = shots(n_words, size, draw)
        lines = [f"{known[index]}: {labels[right[index]]}\n" for index in order]
        prompt = f"{''.join(lines)}{known[asked]}:"
        requests = choices(encode, prompt, labels, begin)
        last = max((turn for turn, index in enumerate(order) if index == asked), default=None)
        return Case(
            word=known[asked],
            label=right[asked],
            n_shots=size,
            distance=None if last is None else len(encode(prompt)) - len(encode("".join(lines[:last]))),
            requests=requests,
            tokens=max((request.row for request in requests), key=len),
        )

    return filled(build, n_cases, length, LEAST)


def shots(n_words: int, n: int, draw: random.Random) -> list[int]:
    """Which words the first n shots have: all of them in one order, then in another one."""
    order: list[int] = []
    while len(order) < n:
        order += draw.sample(range(n_words), n_words)
    return order[:n]


def choices(encode: Encode, prompt: str, labels: Sequence[str], begin: Sequence[int]) -> tuple[Request, ...]:
    """The prompt and each label, cut where their tokens first differ: a tokenizer may join the prompt's end and what
    follows it, and what all have in common tells nothing apart."""
    wholes = [(*begin, *encode(f"{prompt} {label}")) for label in labels]
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*wholes, strict=False)))
    # At least one token of each is left; and one is read before it, whatever the tokens are.
    cut = max(1, min(common, *(len(whole) - 1 for whole in wholes)))
    return tuple(Request(whole[:cut], whole[cut:]) for whole in wholes)


def indistinct(case: Case) -> bool:
    """Whether the tokenizer makes the same tokens of two labels."""
    return len(set(case.requests)) < len(case.requests)


def ceiling(n_seen: int, n: int, n_labels: int) -> float:
    """Accuracy on n cases of a model that has read all shots, when the asked word is among them in n_seen."""
    return (n_seen + (n - n_seen) / n_labels) / n


def learnt(accuracy: float, n_labels: int) -> float:
    """Share of the words that a model has read which is right so often; below 0 where it is worse than chance."""
    return (accuracy - 1 / n_labels) / (1 - 1 / n_labels)
