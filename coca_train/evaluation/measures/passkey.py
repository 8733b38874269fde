"""Passkey retrieval: a number hidden in filler that is to be repeated (arXiv 2305.16300).

Definition. A prompt is: the task, the filler x times, the sentence with the key, the filler y times, the question. Its
words and the range of its keys are the CoCA paper's (B.1, listing 1) or those of YaRN's authors
(data/prompts.py).

* Length: a prompt of length L has as many fillers as keep it at most L tokens (a token that begins texts counted), so
  it is shorter than L by less than one filler. The new tokens come on top. Every filler adds equally many tokens, as
  every one follows a line's end and is followed by one. A length without room for the fixed lines has no prompts.
* Place: `uniform`: x is drawn from 0 ... x + y, all equally likely (YaRN, arXiv 2309.00071). `even`: case i aims at the
  depth (i mod n_depths) / (n_depths - 1), and x is that share of the fillers, rounded; so equally many cases stand at
  each depth. Depth is x / (x + y): 0 right behind the task, 1 right before the question; 0 without fillers.
* Key and place of case i at length L come from a generator seeded by (seed, L, i): not by how many cases there are,
  nor by the tokenizer, though that decides how many fillers there are to draw from.
* Distance: tokens of the prompt minus tokens of the text before the key's sentence. With a distance of at most W the
  whole sentence is among the last W tokens. (A token across the border of the two counts to the sentence.)
* Found: the generated text contains the key as a whole number, with no digit before or after it: 12345 is not found in
  123456, which is another number, and a model that repeats digits without end finds nothing. Where the answer is begun
  in the prompt (YaRN's) its first number must be the key, as for YaRN's authors. `contained` counts an answer with the
  key's digits anywhere; the two differ by what is nearly right.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from coca_train.data.prompts import COCA, YARN, Wording
from coca_train.evaluation.measures.prompts import Encode, Places, place

WORDINGS: dict[str, Wording] = {"coca": COCA, "yarn": YARN}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One prompt. depth: share of the fillers before the key. distance: from the key's sentence to the end [tokens]."""

    key: int
    depth: float
    distance: int
    tokens: tuple[int, ...]


def cases(
    encode: Encode,
    length: int,
    n_cases: int,
    *,
    places: Places,
    n_depths: int,
    seed: int,
    begin: Sequence[int] = (),
    wording: Wording = COCA,
) -> list[Case]:
    """The prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt."""
    prompt = wording.prompt
    per_filler = len(encode(prompt(wording.lowest, 0, 2))) - len(encode(prompt(wording.lowest, 0, 1)))
    prompts = []
    for index in range(n_cases):
        draw = random.Random(f"passkey {seed} {length} {index}")
        key, share = draw.randint(wording.lowest, wording.highest), draw.random()
        most = (length - len(begin) - len(encode(prompt(key, 0, 0)))) // per_filler
        # `most` may be one too many, as a tokenizer may cut the key's sentence otherwise in longer prompts.
        for n_fillers in range(most, -1, -1):
            n_before = place(share, index, n_fillers, places, n_depths)
            case = _case(encode, wording, key, n_before, n_fillers - n_before, begin)
            if len(case.tokens) <= length:
                prompts.append(case)
                break
        else:
            return []
    return prompts


def _case(encode: Encode, wording: Wording, key: int, n_before: int, n_after: int, begin: Sequence[int]) -> Case:
    tokens = encode(wording.prompt(key, n_before, n_after))
    return Case(
        key=key,
        depth=n_before / max(1, n_before + n_after),
        distance=len(tokens) - len(encode(wording.before_key(n_before))),
        tokens=(*begin, *tokens),
    )


def answered(key: int, answer: str, wording: Wording = COCA) -> bool:
    """Whether the key stands in the answer as a whole number; where the prompt begins the answer, as its first one."""
    if wording is YARN:
        first = re.search("[0-9]+", answer)
        return first is not None and int(first[0]) == key
    return re.search(rf"(?<![0-9]){key}(?![0-9])", answer) is not None


def contained(key: int, answer: str) -> bool:
    """Whether the key's digits stand in the answer, be it within a longer number."""
    return str(key) in answer
