"""Key-value recall: a JSON object of random keys and values, then one of its keys (Liu et al., arXiv 2307.03172).

Every pair looks like every other one, so nothing gives the asked one away, as a sentence in foreign filler gives away a
passkey: a model must match the key over the whole length. HELMET (arXiv 2410.02694), which finds that perplexity and
literal needles do not foretell what models do in other long tasks, has recall of this kind among its own. There is no
instruction: models that were never tuned for any see the form of the answer in every line.

Definition. A prompt is an object of n pairs, each on a line, and the asked key in the same form up to its colon:

    {
    "bamilo": "tufage",
    "kirado": "zolane"
    }
    "bamilo":

* Length: as many pairs, at least two, as fit into L tokens (prompts.py; a token that begins texts counted). What is
  generated comes on top.
* Keys and values: of the forms below, all keys of a prompt different from one another, and all values. Pair i of case c
  at length L comes from (seed, L, c) alone: not from how many cases or pairs there are, nor from the tokenizer.
* Place: `uniform` or `even`, as of a passkey; depth is i / (n - 1): 0 the first pair, 1 the last one.
* Distance: tokens of the prompt minus those before the asked pair's line.
* Found: the generated text is the value, exactly: white space, a quotation mark, the value, a quotation mark, whatever
  comes then. Another pair's value is counted apart: such a model copies, but does not match. By saying any of the n
  values it finds 1 / n.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from coca_train.data.prompts import FORMS, HOW_MANY, Form, different, recall_answer, recall_prefix, recall_prompt
from coca_train.evaluation.measures.prompts import Encode, Places, filled, place
from coca_train.runtime.errors import DataError

LEAST = 2  # pairs
SPARE = 2  # new tokens more than the answer has, for a tokenizer that cuts it otherwise than behind its prompt


@dataclass(frozen=True, kw_only=True)
class Case:
    """One prompt. values: of all pairs. depth, distance [tokens]: see the module. answer_tokens: of what is right."""

    key: str
    value: str
    values: tuple[str, ...]
    depth: float
    distance: int
    answer_tokens: int
    tokens: tuple[int, ...]


def cases(
    encode: Encode,
    length: int,
    n_cases: int,
    *,
    keys: Form,
    values: Form,
    places: Places,
    n_depths: int,
    seed: int,
    begin: Sequence[int] = (),
) -> list[Case]:
    """The prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt.

    Raises DataError E-EVAL-21 when it has room for more pairs than a form has.
    """

    def build(case: int, size: int) -> Case:
        for form in (keys, values):
            if size > HOW_MANY.get(form, size):
                raise DataError(
                    f"E-EVAL-21 grid.lengths: {length:,} tokens have room for more than the {HOW_MANY[form]} pairs "
                    f"that form {form!r} makes. Fix: ask for shorter lengths, or for eval.keys=words and "
                    "eval.values=words"
                )
        # Three generators, so that pairs are added at the end and the place does not depend on how many there are.
        of_keys, of_values, of_place = (
            random.Random(f"recall {what} {seed} {length} {case}") for what in ("keys", "values", "place")
        )
        known = different(size, lambda: FORMS[keys](of_keys))
        held = different(size, lambda: FORMS[values](of_values))
        asked = place(of_place.random(), case, size - 1, places, n_depths)
        prompt = recall_prompt(known, held, known[asked])
        tokens = encode(prompt)
        return Case(
            key=known[asked],
            value=held[asked],
            values=tuple(held),
            depth=asked / (size - 1),
            distance=len(tokens) - len(encode(recall_prefix(known, held, asked))),
            answer_tokens=len(encode(prompt + recall_answer(held[asked]))) - len(tokens),
            tokens=(*begin, *tokens),
        )

    return filled(build, n_cases, length, LEAST)


def max_new_tokens(prompts: Sequence[Case]) -> int:
    """Length of every answer to these prompts."""
    return max((case.answer_tokens for case in prompts), default=0) + SPARE


def given(answer: str) -> str | None:
    """The value that a generated text gives; None where it is no string."""
    string = re.match(r'\s*"([^"]*)"', answer)
    return None if string is None else string[1]
