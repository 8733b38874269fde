"""Suite `passkey`: at which lengths, depths and distances a model finds a number in filler (measures/passkey.py).

At each length: `accuracy`, the share of cases whose answer has the key as a whole number, its 95 % interval (Wilson),
`contained`, the share with the key's digits anywhere, and the cases: key, depth, distance, found, and the answer's
first characters. Answers are greedy. An end-of-document token ends one; what a model would say after it does not count.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.grid_blocks import (
    by_point,
    document,
    heat_maps,
    papers,
    share_by_length,
    square_doubt,
    table,
    tokens,
)
from coca_train.evaluation.measures import passkey
from coca_train.evaluation.measures.passkey import Case, wilson
from coca_train.evaluation.measures.reach import Part, finds
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites._answers import answers, digest, gathered, no_positions
from coca_train.evaluation.verdict import Asked, verdicts
from coca_train.report import paper
from coca_train.report.blocks import Document, Line, Lines, Value
from coca_train.report.ties import tied

VERSION = 1
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
    low, high = wilson(sum(hits), len(hits))
    return {
        "accuracy": sum(hits) / len(hits),
        "low": low,
        "high": high,
        "contained": sum(contained) / len(hits),
        "n_cases": len(hits),
        "cases": [
            {"key": c.key, "depth": c.depth, "distance": c.distance, "found": f, "answer": t[:ANSWER_CHARACTERS]}
            for c, f, t in zip(cases, hits, texts, strict=True)
        ],
    }


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
RANGES = {  # of distance, in training windows of the model: from, below
    "within the window": (0, 1),
    "1 to 4 windows": (1, 4),
    "4 to 16 windows": (4, 16),
    "16 windows and more": (16, float("inf")),
}
REACHED = 0.9  # share of passkeys up to which a length counts as reached


def page(settings: Settings, evaluation: Evaluation) -> Document:
    rows, points, n_depths = evaluation.rows(), evaluation.points, settings.n_depths
    theirs = {
        "table 2": paper.table("table2_passkey"),
        "table 3": paper.by_alpha("passkey"),
        "table 4": paper.table("table4_pi")["passkey"],
    }

    def at_depth(row: GridRow, length: int, y: int) -> float | None:
        cases = row.results.get(length, {}).get("cases", ())
        return share(case for case in cases if depth_row(case["depth"], n_depths) == y).number

    return document(
        evaluation,
        "Passkey retrieval",
        summary=_summary(evaluation),
        sections={
            "Accuracy by length": [
                _accuracy(evaluation, "by-length", "Passkey accuracy by length"),
                table(
                    rows,
                    by_point(points, lambda result: share(result["cases"])),
                    name="passkey-accuracy",
                    title="Share of passkeys found by length of the prompt [tokens]",
                    theirs=papers(evaluation, theirs) if settings.prompt == "coca" else (),
                    best="high",
                    note=THEIRS if settings.prompt == "coca" else "",
                ),
            ],
            "Where the key stands": [
                heat_maps(
                    [row for row in rows if row.results],
                    [int(point) for point in points],
                    [f"{y / max(1, n_depths - 1):.0%}" for y in range(n_depths)],
                    at_depth,
                    name="passkey-depth",
                    title="Passkeys found by length and depth",
                    alt="One panel a model and variant: columns are lengths, rows are depths, the beginning on top.",
                    y_label="depth of the key",
                    note="A key counts to the nearest row. The line marks the training window. "
                    + square_doubt(settings.n_cases / n_depths),
                )
            ],
            "How far away the key is": [
                _accuracy(evaluation, "inside-window", "Keys inside the training window", "less than", 0, 1),
                _accuracy(evaluation, "outside-window", "Keys outside the training window", "at least", 1),
                table(
                    rows,
                    {
                        words: lambda row, ends=ends: share(
                            case for result in row.results.values() for case in _in_range(row, result, *ends)
                        )
                        for words, ends in RANGES.items()
                    },
                    name="passkey-by-distance",
                    title="Share of passkeys found by distance of the key",
                    best="high",
                    note="Cases of all lengths together; windows are the model's training window (CoCA paper, figure "
                    "6).",
                ),
            ],
        },
        after={"Definition": [DEFINITIONS[settings.prompt] + DEFINITION]},
        facts=[("cases", f"{evaluation.settings['n_cases']} at each length")],
        verdicts=verdicts(evaluation, asked(evaluation)),
    )


def asked(evaluation: Evaluation) -> Asked:
    """Whether prompts of each length give back what is hidden in them."""

    def part(row: GridRow) -> Part:
        counts = {int(point): [case["found"] for case in result["cases"]] for point, result in row.results.items()}
        return Part("finds", "prompts", tuple(finds(n, sum(found), len(found)) for n, found in counts.items()))

    return {row.name: [part(row)] for row in evaluation.rows() if row.results}


def share(cases: Iterable[Mapping[str, Any]]) -> Value:
    """Of these cases of a cell's result, how many were found; nothing when there are none."""
    hits = [case["found"] for case in cases]
    if not hits:
        return Value.of(None, missing="no such case")
    low, high = wilson(sum(hits), len(hits))
    return Value.of(sum(hits) / len(hits), note=f"{sum(hits)} of {len(hits)}", low=low, high=high)


def _accuracy(
    evaluation: Evaluation, name: str, title: str, words: str = "", first: float = 0, end: float = math.inf
) -> Lines | None:
    """Accuracy by length, of the cases at these distances. words: for the note, what distances they are."""

    def line(row: GridRow) -> Line:
        hits = {
            int(point): [case["found"] for case in _in_range(row, result, first, end)]
            for point, result in row.results.items()
        }
        points = ((n, sum(each) / len(each), *wilson(sum(each), len(each))) for n, each in hits.items() if each)
        return Line.through(row.label, points)

    return share_by_length(
        evaluation,
        map(line, evaluation.rows()),
        name=f"passkey-{name}",
        title=title,
        alt=f"{title}: share of passkeys found against the length of the prompt, one curve a model and variant.",
        y_label="share of passkeys found",
        note=BY_WINDOW.format(words) if words else "",
    )


def _in_range(row: GridRow, result: Mapping[str, Any], first: float, end: float) -> list[Mapping[str, Any]]:
    """Cases of a result at distances from `first` to below `end` [training windows of the model]."""
    return [case for case in result["cases"] if first <= case["distance"] / row.subject.training_window < end]


def depth_row(depth: float, n_depths: int) -> int:
    """Which of the depths 0, 1 / (n - 1) ... 1 is nearest."""
    return int(depth * (n_depths - 1) + 0.5)


def _summary(evaluation: Evaluation) -> list[str]:
    """How far each model reaches, under which variants, and which others cannot be told apart from them there."""
    sentences = []
    for subject in evaluation.subjects:
        found = {
            row.variant: {int(point): share(result["cases"]) for point, result in row.results.items()}
            for row in evaluation.rows()
            if row.subject == subject and row.results
        }
        if not found:
            continue
        reach = {variant: _reach(by_length) for variant, by_length in found.items()}
        if farthest := max(reach.values()):
            leading = [variant for variant, n in reach.items() if n == farthest]
            under = _under(leading, _tied_at(found, farthest), len(subject.variants))
            sentences.append(
                f"{subject.name} finds at least nine of ten passkeys in prompts of up to {farthest:,} tokens{under}; "
                f"its training window is {subject.training_window:,}."
            )
            continue
        every = [(value.number or 0.0, -n, variant) for variant, by in found.items() for n, value in by.items()]
        best, shortest, first = max(every)
        if not best:
            lengths = [-n for _, n, _ in every]
            sentences.append(f"{subject.name} finds no passkey in prompts of {tokens(lengths)}.")
            continue
        leading = [variant for *place, variant in every if place == [best, shortest]]
        under = _under(leading, _tied_at(found, -shortest), len(subject.variants))
        at_most = found[first][-shortest]
        sentences.append(
            f"{subject.name} finds at most {best:.0%} of the passkeys ({at_most.range}), in prompts of {-shortest:,} "
            f"tokens{under}."
        )
    return sentences


def _tied_at(found: Mapping[str, Mapping[int, Value]], length: int) -> list[str]:
    """Variants that cannot be told apart from the best at this length."""
    there = {variant: by_length[length] for variant, by_length in found.items() if length in by_length}
    return [list(there)[place] for place in tied(list(there.values()), "high")]


def _reach(found: Mapping[int, Value]) -> int:
    """The longest prompt [tokens] up to which nine of ten are found; 0: not in the shortest."""
    return max((n for n, _ in takewhile(lambda pair: (pair[1].number or 0.0) >= REACHED, found.items())), default=0)


def _under(leading: Sequence[str], tied_: Sequence[str], n_variants: int) -> str:
    if n_variants == 1:
        return ""
    if len(leading) == n_variants:
        return ", whatever the variant"
    others = [variant for variant in tied_ if variant not in leading]
    also = f"; not told apart there: {', '.join(others)}" if others else ""
    return f" ({', '.join(leading)}{also})"
