"""Suite `passkey`: at which lengths, depths and distances a model finds a number in filler (measures/passkey.py).

At each length: `accuracy`, the share of cases whose answer has the key as a whole number, its 95 % interval (Wilson),
`contained`, the share with the key's digits anywhere, and the cases: key, depth, distance, found, and the answer's
first characters. Answers are greedy. An end-of-document token ends one; what a model would say after it does not count.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import by_point, document, papers, square_doubt, table
from coca_train.evaluation.measures import passkey
from coca_train.evaluation.measures.passkey import Case
from coca_train.evaluation.results import Evaluation, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._answers import answers, digest, gathered, no_positions
from coca_train.evaluation.suites._found import asked, at_the_longest, by_depth, by_distance, by_length, counted, share
from coca_train.evaluation.verdict import verdicts
from coca_train.report import paper
from coca_train.report.blocks import Document, Lines

__all__ = ["asked"]  # of what suites share

VERSION = 1
AXIS = ("found_share",)
ANSWER_CHARACTERS = 40  # of each answer that are kept

Material = Mapping[Point, Sequence[Case]]  # by length


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Passkey retrieval."""

    suite: Literal["passkey"]
    prompt: Literal["coca", "yarn"] = Field(
        description="whose words. coca: the CoCA paper's listing 1, keys of five digits; yarn: YaRN's authors', "
        'which end with "The pass key is", keys 1 to 50000'
    )
    n_cases: Positive = Field(description="prompts of each length; CoCA paper 100, YaRN 10")
    max_new_tokens: Positive = Field(description="length of an answer, which comes on top of the prompt [tokens]")
    places: Literal["uniform", "even"] = Field(
        description="where the key stands. uniform: drawn for each case (YaRN); even: at n_depths depths in turn, from "
        "right behind the task to right before the question"
    )
    n_depths: Positive = Field(description="depths of places=even, and rows of the heat maps")
    found_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="a length counts as found when surely more than this share of its prompts is answered as it must be"
    )


def of_cell(options: dict[str, Any], point: Point) -> dict[str, Any]:
    """Cells of before there were other words than the CoCA paper's stay what they are."""
    return {key: value for key, value in options.items() if (key, value) != ("prompt", "coca")}


def prepare(settings: Settings, subject: Subject, setup: Setup) -> Material:
    return {
        length: passkey.cases(
            subject.tokenizer.encode,
            int(length),
            settings.n_cases,
            places=settings.places,
            n_depths=settings.n_depths,
            seed=setup.seed,
            begin=subject.begin,
            wording=passkey.WORDINGS[settings.prompt],
        )
        for length in setup.points
    }


def work(settings: Settings, subject: Subject, points: Sequence[int], material: Material) -> list[float]:
    """[tokens]"""
    return [float(sum(len(case.tokens) + settings.max_new_tokens for case in material[point])) for point in points]


def fingerprint(material: Material, point: Point) -> str:
    return digest((case.tokens, [str(case.key)]) for case in material[point])


def impossible(settings: Settings, subject: Subject, point: int, material: Material) -> str:
    if not material[point]:
        wording = passkey.WORDINGS[settings.prompt]
        least = len(subject.begin) + len(subject.tokenizer.encode(wording.prompt(wording.highest, 0, 0)))
        return f"{point:,} tokens have no room for the task, the key and the question, which take about {least}"
    return no_positions(subject, [case.tokens for case in material[point]], settings.max_new_tokens)


def measure(settings: Settings, subject: Subject, point: int, material: Material, setup: Setup) -> Any:
    prompts = [case.tokens for case in material[point]]
    return answers(subject, prompts, point, settings.max_new_tokens, setup)


def combine(settings: Settings, point: int, material: Material, parts: Sequence[Any]) -> dict[str, Any]:
    cases, texts = material[point], gathered(parts)
    wording = passkey.WORDINGS[settings.prompt]
    hits = [passkey.answered(case.key, text, wording) for case, text in zip(cases, texts, strict=True)]
    contained = [passkey.contained(case.key, text) for case, text in zip(cases, texts, strict=True)]
    kept = [
        {"key": c.key, "depth": c.depth, "distance": c.distance, "found": f, "answer": t[:ANSWER_CHARACTERS]}
        for c, f, t in zip(cases, hits, texts, strict=True)
    ]
    return counted(kept) | {"contained": sum(contained) / len(hits)}


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


def page(settings: Settings, evaluation: Evaluation) -> Document:
    points = evaluation.points
    theirs = {
        "table 2": paper.table("table2_passkey"),
        "table 3": paper.by_alpha("passkey"),
        "table 4": paper.table("table4_pi")["passkey"],
    }
    found = table(
        evaluation.rows(),
        by_point(points, lambda result: share(result["cases"])),
        name="passkey-accuracy",
        title="Share of passkeys found by length of the prompt [tokens]",
        theirs=papers(evaluation, theirs) if settings.prompt == "coca" else (),
        best="high",
        note=THEIRS if settings.prompt == "coca" else "",
    )
    return document(
        evaluation,
        "Passkey retrieval",
        summary=at_the_longest(evaluation, "passkeys", found),
        sections={
            "Accuracy by length": [
                _accuracy(evaluation, "by-length", "Passkey accuracy by length"),
                found,
            ],
            "Where the key stands": [
                by_depth(
                    evaluation,
                    settings.n_depths,
                    name="passkey-depth",
                    title="Passkeys found by length and depth",
                    y_label="depth of the key",
                    note="A key counts to the nearest row. The line marks the training window. "
                    + square_doubt(settings.n_cases / settings.n_depths),
                )
            ],
            "How far away the key is": [
                _accuracy(evaluation, "inside-window", "Keys inside the training window", "less than", 0, 1),
                _accuracy(evaluation, "outside-window", "Keys outside the training window", "at least", 1),
                by_distance(
                    evaluation,
                    name="passkey-by-distance",
                    title="Share of passkeys found by distance of the key",
                    note="Cases of all lengths together; windows are the model's training window (CoCA paper, figure "
                    "6).",
                ),
            ],
        },
        after={"Definition": [DEFINITIONS[settings.prompt] + DEFINITION]},
        facts=[("cases", f"{evaluation.settings['n_cases']} at each length")],
        verdicts=verdicts(evaluation, asked(evaluation)),
    )


def _accuracy(
    evaluation: Evaluation, name: str, title: str, words: str = "", first: float = 0, end: float = math.inf
) -> Lines | None:
    """Accuracy by length, of the cases at these distances. words: for the note, what distances they are."""
    return by_length(
        evaluation,
        first,
        end,
        name=f"passkey-{name}",
        title=title,
        alt=f"{title}: share of passkeys found against the length of the prompt, one curve a model and variant.",
        y_label="share of passkeys found",
        note=BY_WINDOW.format(words) if words else "",
    )
