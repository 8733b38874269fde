"""Suite `manyshot`: what a model learns in context from few shots to many (measures/manyshot.py).

At each length: `accuracy`, the share of cases whose right label is the most probable, its 95 % interval (Wilson);
`chance`, and `ceiling`, the accuracy of a model that has read every shot of these very prompts; `learnt`, the share of
the words that the accuracy stands for; `n_shots`, on average; and the cases: shots, whether the asked word is among
them (`seen`), distance, found, and the log-probability of each label [nats].
"""

import hashlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import by_point, document, table
from coca_train.evaluation.measures import manyshot
from coca_train.evaluation.measures.likelihood import likelihoods
from coca_train.evaluation.measures.manyshot import Case
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._found import by_distance, by_length, counted, share
from coca_train.report.blocks import Document, Line, Value
from coca_train.runtime import dist

VERSION = 1

Material = Mapping[Point, Sequence[Case]]  # by length


def _apart(labels: list[str]) -> list[str]:
    """Labels of which none begins another: the longer one would never be the more probable."""
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
    labels: Annotated[list[str], Field(min_length=2), AfterValidator(_apart)] = Field(
        description="what words are labelled with, as many words with one as with another"
    )
    n_cases: Positive = Field(description="prompts of each length")


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Material:
    return {
        length: manyshot.cases(
            subject.tokenizer.encode,
            int(length),
            settings.n_cases,
            n_words=settings.n_words,
            labels=settings.labels,
            seed=setup.seed,
            begin=subject.begin,
        )
        for length in setup.points
    }


def work(settings: Settings, subject: Subject, points: Sequence[int], material: Material) -> list[float]:
    """[tokens]"""
    return [float(sum(len(case.tokens) for case in material[point])) for point in points]


def fingerprint(material: Material, point: Point) -> str:
    asked = [(request.context, request.continuation) for case in material[point] for request in case.requests]
    return hashlib.sha256(repr((asked, [case.label for case in material[point]])).encode()).hexdigest()


def impossible(settings: Settings, subject: Subject, point: int, material: Material) -> str:
    cases = material[point]
    if not cases:
        return f"{point:,} tokens have no room for a shot and a question"
    if any(map(manyshot.indistinct, cases)):
        return f"the tokenizer does not tell the labels {', '.join(settings.labels)} apart"
    return missing_positions(subject.model, max(len(case.tokens) for case in cases))


def measure(
    settings: Settings, subject: Subject, point: int, material: Material, setup: Setup
) -> list[tuple[int, list[float]]]:
    """Of this rank's cases, by their number: the log-probability of each label [nats]."""
    cases, known = material[point], []
    mine = list(_batches(len(cases), max(1, setup.micro_batch_tokens // point)))[dist.rank() :: dist.world_size()]
    for done, batch in enumerate(mine, 1):
        requests = [request for index in batch for request in cases[index].requests]
        asked = likelihoods(subject.model, requests, batch_tokens=setup.micro_batch_tokens)
        totals = iter([each.total for each in asked])
        known += [(index, [next(totals) for _ in cases[index].requests]) for index in batch]
        setup.progress(done / len(mine))
    return known


def _batches(n_cases: int, size: int) -> Iterator[range]:
    """Cases that are read together. Cut the same for every number of ranks, so that all round alike."""
    return (range(first, min(first + size, n_cases)) for first in range(0, n_cases, size))


def combine(settings: Settings, point: int, material: Material, parts: Sequence[Any]) -> dict[str, Any]:
    cases, n_labels = material[point], len(settings.labels)
    by_case = {index: log_p for part in parts for index, log_p in part}
    kept = [
        {
            "n_shots": case.n_shots,
            "seen": case.seen,
            "distance": case.distance,
            "found": by_case[index].index(max(by_case[index])) == case.label,
            "label": settings.labels[case.label],
            "log_p": by_case[index],
        }
        for index, case in enumerate(cases)
    ]
    all_cases = counted(kept)
    return all_cases | {
        "chance": 1 / n_labels,
        "ceiling": manyshot.ceiling(sum(case.seen for case in cases), len(cases), n_labels),
        "learnt": manyshot.learnt(all_cases["accuracy"], n_labels),
        "n_shots": statistics.fmean(case.n_shots for case in cases),
    }


DEFINITION = (
    "A prompt is many shots, a made-up word and its label on each line, and one of the words again with a colon; as "
    "many shots as keep it within the length. Which word has which label is drawn anew for every prompt, so that "
    "nothing but the shots tells; the words take turns, and the asked one is drawn from all of them, whether it is "
    "among the shots or not. It is right when its label is the most probable one behind the prompt, by its "
    "log-likelihood. Chance is 1 by the number of labels; the ceiling is what a model gets that has read every shot of "
    "these prompts: all words that are among them, and chance for the others. A model that reads only its last shots "
    "stays at what they teach. The words learnt are (accuracy - chance) / (1 - chance). After many-shot learning in "
    "context (arXiv 2404.11018). Dynamic frequencies see the length of each prompt. Intervals are Wilson's, 95 %."
)


def page(settings: Settings, evaluation: Evaluation) -> Document:
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
                    alt="Share of right labels against the length of the prompt, one curve a model and variant, one "
                    "for chance and one for a model that has read every shot.",
                    y_label="share of right labels",
                ),
                table(
                    rows,
                    by_point(points, lambda result: share(result["cases"])),
                    name="manyshot-accuracy",
                    title="Share of right labels by length of the prompt [tokens]",
                    best="high",
                ),
                table(
                    rows,
                    by_point(points, lambda result, what: BESIDE[what](result)),
                    by={"figure": tuple(BESIDE)},
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
                    note="Only words among the shots. Cases of all lengths together; windows are the model's training "
                    "window.",
                )
            ],
        },
        after={"Definition": [DEFINITION]},
        facts=[
            ("cases", f"{evaluation.settings['n_cases']} at each length"),
            ("words", f"{n_words:,}, labelled {', '.join(evaluation.settings['labels'])}"),
        ],
    )


def _among(result: Mapping[str, Any], seen: bool) -> Value:
    return share(case for case in result["cases"] if case["seen"] is seen)


BESIDE = {
    "shots": lambda result: Value.of(result["n_shots"], "{:,.0f}"),
    "of words among the shots": lambda result: _among(result, True),
    "of the others": lambda result: _among(result, False),
    "chance": lambda result: result["chance"],
    "ceiling": lambda result: result["ceiling"],
    "words learnt": lambda result: Value.of(result["learnt"], "{:.0%}"),
}


def _bounds(evaluation: Evaluation) -> list[Line]:
    """Chance and the ceiling. Models with different tokenizers have different ceilings: the lowest is drawn."""
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
    """Of each model under each variant: whether it is above chance anywhere, and the best it reaches."""
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
