"""Suite `passkey`: a number hidden in filler that is to be repeated (arXiv 2305.16300), by length, depth and distance.

Definition. A prompt is: the task, the filler x times, the sentence with the key, the filler y times, the question, in
the words of the CoCA paper (B.1, listing 1) or of YaRN's authors (data/prompts.py).

* Length: as many fillers as keep it at most L tokens (a token that begins texts counted); the new tokens come on top.
* Place: `uniform`: x is drawn from 0 ... x + y (YaRN, arXiv 2309.00071). `even`: see `choose_place`. Depth is
  x / (x + y): 0 right after the task, 1 right before the question; 0 without fillers.
* Distance: tokens of the prompt minus tokens of the text before the key's sentence. (A token across the border of the
  two counts to the sentence.)
* Found: the generated text contains the key as a whole number: 12345 is not found in 123456, so a model that repeats
  digits without end finds nothing. YaRN's prompt begins the answer, and its first number must be the key.
  `contained` counts answers with the key's digits anywhere.
"""

import math
import random
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.data.prompts import COCA, YARN, Wording
from coca_train.evaluation.pages import paper_rows
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Subject
from coca_train.evaluation.suites._prompts import Encode, Found, FoundSettings, FoundSuite, Places, choose_place
from coca_train.report import paper
from coca_train.report.blocks import Document

WORDINGS: dict[str, Wording] = {"coca": COCA, "yarn": YARN}


class Case(NamedTuple):
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
    """Make the prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt."""
    prompt = wording.prompt
    per_filler = len(encode(prompt(wording.lowest, 0, 2))) - len(encode(prompt(wording.lowest, 0, 1)))
    prompts = []
    for index in range(n_cases):
        draw = random.Random(f"passkey {seed} {length} {index}")
        key, share = draw.randint(wording.lowest, wording.highest), draw.random()
        most = (length - len(begin) - len(encode(prompt(key, 0, 0)))) // per_filler
        # `most` may be one too many, as a tokenizer may cut the key's sentence otherwise in longer prompts.
        for n_fillers in range(most, -1, -1):
            n_before = choose_place(share, index, n_fillers, places, n_depths)
            tokens = encode(prompt(key, n_before, n_fillers - n_before))
            if len(begin) + len(tokens) <= length:
                distance = len(tokens) - len(encode(wording.before_key(n_before)))
                prompts.append(Case(key, n_before / max(1, n_fillers), distance, (*begin, *tokens)))
                break
        else:
            return []
    return prompts


def answered(key: int, answer: str, wording: Wording = COCA) -> bool:
    """Return whether an answer gives the key (see the module)."""
    if wording is YARN:
        first = re.search("[0-9]+", answer)
        return first is not None and int(first[0]) == key
    return re.search(rf"(?<![0-9]){key}(?![0-9])", answer) is not None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings(FoundSettings):
    """Passkey retrieval."""

    suite: Literal["passkey"]
    prompt: Literal["coca", "yarn"] = Field(
        description="whose words. coca: the CoCA paper's listing 1, keys of five digits; yarn: YaRN's authors', "
        'which end with "The pass key is", keys 1 to 50000'
    )
    max_new_tokens: Positive = Field(description="length of an answer, which comes on top of the prompt [tokens]")


DEFINITIONS = {
    "coca": "A prompt (CoCA paper, listing 1) has the task, filler, a sentence with a key of five digits, filler, and "
    "the question; as many fillers as keep it within the length. The answer is greedy and comes on top; it is right "
    "when the key stands in it as a whole number. ",
    "yarn": "A prompt (of YaRN's authors) has the task, filler, a sentence with a key from 1 to 50 000, filler, and "
    "the question with the beginning of its answer; as many fillers as keep it within the length. The answer is greedy "
    "and comes on top; it is right when its first number is the key. ",
}
DEFINITION = (
    "Depth is the share of the fillers before the key; distance is how far its sentence begins from the "
    "end of the prompt [tokens]. Dynamic frequencies see the length and the new tokens throughout. Intervals are "
    "Wilson's, 95 %."
)
THEIRS = (
    "The paper's are of its own models, 100 cases each, at the same multiple of their training window (512 tokens; "
    "LLaMA-7B 2,048)."
)
BY_WINDOW = (
    "Only keys {} the model's training window away from the end of the prompt (CoCA paper, figure 5). Lengths without "
    "such a case have no point."
)


class Evaluator(FoundSuite[Settings, Case]):
    """Passkey retrieval by length, depth and distance."""

    VERSION = 2
    NAME, ITEM, ITEMS, KEPT = "passkey", "key", "passkeys", 40

    @property
    def wording(self) -> Wording:
        return WORDINGS[self.settings.prompt]

    def prompts(self, subject: Subject, length: int, seed: int) -> list[Case]:
        return cases(
            subject.tokenizer.encode,
            length,
            self.settings.n_cases,
            places=self.settings.places,
            n_depths=self.settings.n_depths,
            seed=seed,
            begin=subject.begin,
            wording=self.wording,
        )

    def no_room(self, subject: Subject, point: Point) -> str:
        least = len(subject.begin) + len(subject.tokenizer.encode(self.wording.prompt(self.wording.highest, 0, 0)))
        return f"{point:,} tokens have no room for the task, the key and the question, which take about {least}"

    def expected(self, case: Case) -> list[str]:
        return [str(case.key)]

    def max_new_tokens(self, point: Point, cases: Sequence[Case]) -> int:
        return self.settings.max_new_tokens

    def is_right(self, case: Case, answer: str) -> bool:
        return answered(case.key, answer, self.wording)

    def more(self, cases: Sequence[Case], answers: Sequence[str]) -> dict[str, float]:
        contained = [str(case.key) in answer for case, answer in zip(cases, answers, strict=True)]
        return {"contained": sum(contained) / len(cases)}

    def page(self, evaluation: Evaluation[Found]) -> Document:
        tables = {
            "table 2": paper.table("table2_passkey"),
            "table 3": paper.by_alpha("passkey"),
            "table 4": paper.table("table4_pi")["passkey"],
        }
        coca = self.settings.prompt == "coca"
        return self.found_page(
            evaluation,
            "Passkey retrieval",
            definition=DEFINITIONS[self.settings.prompt] + DEFINITION,
            note=THEIRS if coca else "",
            theirs=paper_rows(evaluation, tables) if coca else (),
            distances=[
                self.curve(evaluation, f"{where}-window", words, ends, BY_WINDOW.format(of))
                for where, words, ends, of in (
                    ("inside", ", inside the training window", (0, 1), "less than"),
                    ("outside", ", outside the training window", (1, math.inf), "at least"),
                )
            ],
        )
