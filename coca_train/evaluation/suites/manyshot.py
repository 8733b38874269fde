"""Suite `manyshot`: labels that can only be known from the shots before, from few shots to many (cf. arXiv 2404.11018).

Made-up words have labels that are drawn for each case, so a base model of any size can do nothing without reading the
shots, and what it can do by reading them is known. A case has more words than short prompts hold shots: each shot more
teaches a word more, and a model that reads the last m shots only stops getting better there. A prompt is k shots and
the asked word with its colon, a line each:

    bamilo: B
    tufage: A
    kirado: A
    bamilo:

* A case has n words, all different, and c labels; as many words have one label as another (one more at most). The shots
  take all n words in an order that is drawn, then all of them in another order, and so on; as many shots, at least one,
  as fit into L tokens (_prompts.py; a token that begins texts counted).
* The asked word is drawn from all n, so it is among the shots (`seen`) with probability min(k, n) / n.
* Found: of all labels, its label is the most probable after the prompt, by the log-likelihood of the label's tokens
  (likelihood.py); where labels are equally probable, the first of them. Dynamic frequencies see the prompt's length.
* `chance` is 1 / c. The `ceiling` of cases of which a share s is seen is s + (1 - s) / c. An accuracy a is that of a
  model that has read (a - 1 / c) / (1 - 1 / c) of the words, on average: what was `learnt`.
"""

import hashlib
import random
import statistics
from collections.abc import Mapping, Sequence
from itertools import permutations, takewhile
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.data.prompts import words
from coca_train.evaluation.measures.likelihood import Request, likelihoods
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.pages import by_point, document, table
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite
from coca_train.evaluation.suites._prompts import (
    Encode,
    by_distance,
    by_length,
    fill_prompts,
    share_found,
    summarise_cases,
)
from coca_train.report.blocks import Document, Line, Value
from coca_train.runtime import dist

LEAST = 1  # shots


class Case(NamedTuple):
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

    @property
    def indistinct(self) -> bool:
        """Whether the tokenizer makes the same tokens of two labels."""
        return len(set(self.requests)) < len(self.requests)


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
    """Make the prompts of one length [tokens]; none when it has no room. begin: tokens in front of every prompt."""

    def build(case: int, size: int) -> Case:
        draw = random.Random(f"manyshot {seed} {length} {case}")
        known = words(n_words, draw)
        right = [index % len(labels) for index in range(n_words)]
        draw.shuffle(right)
        asked = draw.randrange(n_words)
        order = shots(n_words, size, draw)
        lines = [f"{known[index]}: {labels[right[index]]}\n" for index in order]
        prompt = f"{''.join(lines)}{known[asked]}:"
        requests = label_requests(encode, prompt, labels, begin)
        last = max((turn for turn, index in enumerate(order) if index == asked), default=None)
        return Case(
            word=known[asked],
            label=right[asked],
            n_shots=size,
            distance=None if last is None else len(encode(prompt)) - len(encode("".join(lines[:last]))),
            requests=requests,
            tokens=max((request.row for request in requests), key=len),
        )

    return fill_prompts(build, n_cases, length, LEAST)


def shots(n_words: int, n: int, draw: random.Random) -> list[int]:
    """Return which words the first n shots have: all of them in one order, then in another one."""
    order: list[int] = []
    while len(order) < n:
        order += draw.sample(range(n_words), n_words)
    return order[:n]


def label_requests(encode: Encode, prompt: str, labels: Sequence[str], begin: Sequence[int]) -> tuple[Request, ...]:
    """Return the prompt and each label, cut where their tokens first differ: a tokenizer may join the prompt's end and
    what follows it."""
    wholes = [(*begin, *encode(f"{prompt} {label}")) for label in labels]
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*wholes, strict=False)))
    # At least one token of each is left; and one is read before it, whatever the tokens are.
    cut = max(1, min(common, *(len(whole) - 1 for whole in wholes)))
    return tuple(Request(whole[:cut], whole[cut:]) for whole in wholes)


def ceiling(n_seen: int, n: int, n_labels: int) -> float:
    """Return the accuracy on n cases of a model that has read all shots, when the asked word is among them in
    n_seen."""
    return (n_seen + (n - n_seen) / n_labels) / n


def learnt(accuracy: float, n_labels: int) -> float:
    """Return the share of the words that a model has read which is right so often; below 0 where it is worse than
    chance."""
    return (accuracy - 1 / n_labels) / (1 - 1 / n_labels)


def _distinct_labels(labels: list[str]) -> list[str]:
    """Check labels of which none begins another: the longer one would never be the more probable."""
    if any(one.startswith(other) for one, other in permutations(labels, 2)):
        raise ValueError(f"labels that differ from their beginning on are needed, and {', '.join(labels)} do not")
    return labels


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Many-shot learning in context."""

    suite: Literal["manyshot"]
    n_words: Annotated[int, Field(ge=2)] = Field(
        description="words that have a label in each prompt. As long as a prompt holds fewer shots, one shot more "
        "teaches one word more; beyond that shots come again"
    )
    labels: Annotated[list[str], Field(min_length=2), AfterValidator(_distinct_labels)] = Field(
        description="what words are labelled with, as many words with one as with another"
    )
    n_cases: Positive = Field(description="prompts of each length")


DEFINITION = (
    "A prompt is many shots, a made-up word and its label on each line, and one of the words again with a colon; as "
    "many shots as keep it within the length. Which word has which label is drawn for every prompt, so that "
    "nothing but the shots tells; the words take turns, and the asked one is drawn from all of them, whether it is "
    "among the shots or not. It is right when its label is the most probable one after the prompt, by its "
    "log-likelihood. Chance is 1 by the number of labels; the ceiling is what a model gets that has read every shot of "
    "these prompts: all words that are among them, and chance for the others. A model that reads only its last shots "
    "stays at what they teach. The words learnt are (accuracy - chance) / (1 - chance). After many-shot learning in "
    "context (arXiv 2404.11018). Dynamic frequencies see the length of each prompt. Intervals are Wilson's, 95 %."
)


Material = Mapping[Point, Sequence[Case]]


class Evaluator(CellSuite[Settings, Material]):
    """Many-shot learning in context by length."""

    VERSION = 1

    def prepare(self, subject: Subject, setup: Setup) -> Material:
        return {
            length: cases(
                subject.tokenizer.encode,
                int(length),
                self.settings.n_cases,
                n_words=self.settings.n_words,
                labels=self.settings.labels,
                seed=setup.seed,
                begin=subject.begin,
            )
            for length in setup.points
        }

    def work(self, subject: Subject, points: Sequence[Any], material: Material) -> list[float]:
        """Estimate the work [tokens]."""
        return [float(sum(len(case.tokens) for case in material[point])) for point in points]

    def fingerprint(self, material: Material, point: Any) -> str:
        asked = [(request.context, request.continuation) for case in material[point] for request in case.requests]
        return hashlib.sha256(repr((asked, [case.label for case in material[point]])).encode()).hexdigest()

    def impossible(self, subject: Subject, point: Any, material: Material) -> str:
        cases = material[point]
        if not cases:
            return f"{point:,} tokens have no room for a shot and a question"
        if any(case.indistinct for case in cases):
            return f"the tokenizer does not tell the labels {', '.join(self.settings.labels)} apart"
        return missing_positions(subject.model, max(len(case.tokens) for case in cases))

    def measure(self, subject: Subject, point: Any, material: Material, setup: Setup) -> list[tuple[int, list[float]]]:
        """Return by number the log-probability of each label [nats] of this rank's cases."""
        cases, known, size = material[point], [], max(1, setup.micro_batch_tokens // point)
        # Cases that are read together, cut the same for every number of ranks, so that all round alike.
        batches = [range(first, min(first + size, len(cases))) for first in range(0, len(cases), size)]
        mine = batches[dist.rank() :: dist.world_size()]
        for done, batch in enumerate(mine, 1):
            requests = [request for index in batch for request in cases[index].requests]
            answers = likelihoods(subject.model, requests, batch_tokens=setup.micro_batch_tokens)
            totals = iter([answer.total for answer in answers])
            known += [(index, [next(totals) for _ in cases[index].requests]) for index in batch]
            setup.progress(done / len(mine))
        return known

    def combine(self, point: Any, material: Material, parts: Sequence[Any]) -> dict[str, Any]:
        cases, n_labels = material[point], len(self.settings.labels)
        by_case = {index: log_p for part in parts for index, log_p in part}
        kept = [
            {
                "n_shots": case.n_shots,
                "seen": case.seen,
                "distance": case.distance,
                "found": by_case[index].index(max(by_case[index])) == case.label,
                "label": self.settings.labels[case.label],
                "log_p": by_case[index],
            }
            for index, case in enumerate(cases)
        ]
        all_cases = summarise_cases(kept)
        return all_cases | {
            "chance": 1 / n_labels,
            "ceiling": ceiling(sum(case.seen for case in cases), len(cases), n_labels),
            "learnt": learnt(all_cases["accuracy"], n_labels),
            "n_shots": statistics.fmean(case.n_shots for case in cases),
        }

    def page(self, evaluation: Evaluation) -> Document:
        rows, points = evaluation.rows(), evaluation.points
        n_words = evaluation.settings["n_words"]
        return document(
            evaluation,
            "Many-shot learning in context",
            summary=_summary(evaluation),
            sections={
                "Accuracy by length": [
                    by_length(
                        evaluation,
                        more=_bounds(evaluation),
                        name="manyshot-by-length",
                        title="Accuracy by length, from chance to what all shots teach",
                        y_label="share of right labels",
                    ),
                    table(
                        rows,
                        by_point(points, lambda result: share_found(result["cases"])),
                        name="manyshot-accuracy",
                        title="Share of right labels by length of the prompt [tokens]",
                        best="high",
                    ),
                    table(
                        rows,
                        by_point(points, lambda result, what: BEHIND[what](result)),
                        by={"figure": tuple(BEHIND)},
                        name="manyshot-beside",
                        title="What lies behind the accuracy",
                        note=f"Of {n_words:,} words. Words that were not among the shots are a control: they stay at "
                        "chance.",
                    ),
                ],
                "How far away the shot is": [
                    by_distance(
                        evaluation,
                        name="manyshot-by-distance",
                        title="Share of right labels by distance of the asked word's last shot",
                        note="Only words among the shots. Cases of all lengths together; windows are the model's "
                        "training window.",
                    )
                ],
            },
            after={"Definition": [DEFINITION]},
            facts=[
                ("cases", f"{evaluation.settings['n_cases']} at each length"),
                ("words", f"{n_words:,}, labelled {', '.join(evaluation.settings['labels'])}"),
            ],
        )


BEHIND = {
    "shots": lambda result: Value.of(result["n_shots"], "{:,.0f}"),
    "of words among the shots": lambda result: share_found(case for case in result["cases"] if case["seen"]),
    "of the others": lambda result: share_found(case for case in result["cases"] if not case["seen"]),
    "chance": lambda result: result["chance"],
    "ceiling": lambda result: result["ceiling"],
    "words learnt": lambda result: Value.of(result["learnt"], "{:.0%}"),
}


def _bounds(evaluation: Evaluation) -> list[Line]:
    """Draw chance and the ceiling. Models with different tokenizers have different ceilings: the lowest is drawn."""
    by_length: dict[int, list[Mapping[str, Any]]] = {}
    for row in evaluation.rows():
        for point, result in row.results.items():
            by_length.setdefault(int(point), []).append(result)
    known = sorted(by_length.items())
    return [
        Line.through("ceiling", [(n, min(result["ceiling"] for result in each)) for n, each in known]),
        Line.through("chance", [(n, each[0]["chance"]) for n, each in known]),
    ]


def _summary(evaluation: Evaluation) -> list[str]:
    """Say of each model under each variant whether it is above chance anywhere, and the best it reaches."""
    sentences = []
    for row in evaluation.rows():
        above = {point: result for point, result in row.results.items() if result["low"] > result["chance"]}
        if above:
            point, best = max(above.items(), key=lambda pair: pair[1]["accuracy"])
            sentences.append(
                f"{row.label} is right in {best['accuracy']:.0%} at best, in prompts of {point:,} tokens with "
                f"{best['n_shots']:,.0f} shots; chance is {best['chance']:.0%}, reading all of them "
                f"{best['ceiling']:.0%}."
            )
        elif row.results:
            n, chance = evaluation.settings["n_cases"], row.last["chance"]
            sentences.append(
                f"{row.label} is nowhere above chance ({chance:.0%}), as far as {n:,} cases a length tell."
            )
    return sentences
