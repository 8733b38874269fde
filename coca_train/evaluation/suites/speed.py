"""Time and memory by length, against plain attention of the same shape (measures/speed.py).

A cell measures the model under its variant and a twin for each baseline, in turns. Times are this machine's at this
moment: they are never taken from an earlier measurement. Under torchrun the first rank measures, the others wait.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, TypedDict

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.speed import Baseline, Turns, Work, in_turns, peak_bytes, ratio, spread, turn, twin
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.pages import by_point, curves, document, table
from coca_train.evaluation.results import Evaluation, GridRow, Point
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suite import CellSuite
from coca_train.positions import rotary
from coca_train.report.blocks import Document, Line, Lines, Row, Table, Value
from coca_train.runtime import dist

SELF = "own"  # the competitor that is the model itself, in results


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """Time and memory by length."""

    suite: Literal["speed"]
    works: Annotated[list[Work], Field(min_length=1)] = Field(
        description="prefill: reading; decode: one token with a cache; training: forward and backward"
    )
    baselines: list[Baseline] = Field(description="plain attention of the same shape: rope; nope, without positions")
    rounds: Positive = Field(description="turns that count; medians are over them")
    new_tokens: Positive = Field(description="tokens decoded in one turn")
    memory: bool = Field(description="measure peak memory too, on a GPU")


GIB = 2**30
TURNS = "lowest and highest of the turns"
Number = Callable[["Result", str], Value]  # of a result and a competitor, what is drawn
NAMES = {"prefill": "Prefill", "decode": "Decoding one token", "training": "Training, forward and backward"}
ABOUT = (
    "One sequence. Each model takes turns with twins of its own shape: plain causal attention with rope, and with no "
    "positions (nope). A ratio is the median over turns of the model's time to the twin's within the turn, with the "
    "lowest and the highest below it. Peak memory is above the weights, the cache of a prefill included."
)
THEIRS = Table(
    name="speed-paper",
    title="The CoCA paper on its own implementation",
    label_columns=("model",),
    columns=("time, as a multiple of plain attention's", "inference at 32,768 tokens"),
    rows=(
        Row(
            label=("CoCA, arXiv 2309.08646, appendix C",),  # and figure 7
            values=(Value("1.05 to 1.10"), Value("about 60 GB", 60.0)),
            theirs=True,
        ),
    ),
    note="On their machine and with their contraction of O(T²) memory.",
)


class Part(TypedDict):
    """Of the first rank: seconds of every turn by work and competitor, peak [bytes] by competitor and work."""

    seconds: dict[Work, dict[str, list[float]]]
    peak: dict[str, dict[Work, int]]
    device: str


class Result(TypedDict):
    """seconds by work and competitor, and the ratio to each baseline; peak [bytes] by competitor and work."""

    seconds: dict[Work, dict[str, Turns]]
    ratio: dict[Work, dict[str, Turns]]
    peak: dict[str, dict[Work, int]]
    device: str


class Evaluator(CellSuite[Settings, None, Part, Result]):
    """Time and memory by length, against plain attention of the same shape."""

    VERSION = 2
    CACHED = False

    def prepare(self, subject: Subject, setup: Setup) -> None:
        """Read no text."""

    def work(self, subject: Subject, points: Sequence[Point], material: None) -> list[float]:
        return [float(point) for point in points]

    def fingerprint(self, material: None, point: Point) -> str:
        return ""

    def impossible(self, subject: Subject, point: Point, material: None) -> str:
        model = subject.model
        decoded = (self.settings.rounds + 1) * self.settings.new_tokens if "decode" in self.settings.works else 0
        if problem := missing_positions(model, int(point) + decoded):
            return f"{problem}, and {int(point) + decoded:,} tokens are read"
        if "rope" in self.settings.baselines:
            problems = rotary.width_problems(model.config, 1.0)
            return f"no rope of this shape to compare with: {problems[0][1]}" if problems else ""
        return ""

    def measure(self, subject: Subject, point: Point, material: None, setup: Setup) -> dict[str, Part]:
        if dist.rank():
            return {}
        model, length = subject.model, int(point)
        competitors = {SELF: model} | {name: twin(model, name) for name in self.settings.baselines}
        device = model.embed.weight.device
        seconds: dict[Work, dict[str, list[float]]] = {}
        for done, name in enumerate(self.settings.works, 1):
            n_new, rounds = self.settings.new_tokens, self.settings.rounds
            turns = {who: turn(each, name, length, n_new, rounds) for who, each in competitors.items()}
            per_turn = n_new if name == "decode" else 1
            timed = in_turns(turns, rounds, device)
            seconds[name] = {who: [s / per_turn for s in values] for who, values in timed.items()}
            setup.progress(done / (len(self.settings.works) + self.settings.memory))
        held: list[Work] = [name for name in self.settings.works if name != "decode" and self.settings.memory]
        peak = {who: peak_bytes(each, held, length) for who, each in competitors.items()}
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        words = gpu or f"CPU, {torch.get_num_threads()} threads"
        return {SELF: {"seconds": seconds, "peak": peak, "device": words}}

    def combine(self, point: Point, material: None, parts: Mapping[str, Part]) -> Result:
        (first,) = parts.values()
        return {
            "seconds": {
                work: {who: spread(values) for who, values in by.items()} for work, by in first["seconds"].items()
            },
            "ratio": {
                work: {who: ratio(by[SELF], by[who]) for who in by if who != SELF}
                for work, by in first["seconds"].items()
            },
            "peak": first["peak"],
            "device": first["device"],
        }

    def page(self, evaluation: Evaluation[Result]) -> Document:
        """Return the document; a length that ran out of memory says so."""
        rows, baselines, works = evaluation.rows(), self.settings.baselines, self.settings.works

        def drawn(work: Work, quantity: str, words: str, y_label: str, number: Number, **more: str) -> Lines | None:
            return curves(
                _with_twins(rows, baselines, number),
                name=f"{quantity}-{work}",
                title=f"{NAMES[work]}: {words} by length",
                x_label="length [tokens]",
                y_label=y_label,
                x_log=True,
                y_log=True,
                **more,
            )

        def held(work: Work) -> Number:
            return lambda result, who: Value.of(
                result["peak"][who][work] / GIB if work in result["peak"][who] else None
            )

        ratios = table(
            rows,
            by_point(evaluation.points, lambda result, work, against: _value(result["ratio"][work][against])),
            by={"work": works, "against": baselines},
            name="speed-ratios",
            title="Time, as a multiple of plain attention's",
            interval=TURNS,
            note="1 is as fast; below 1 is faster.",
        )
        once = "Measured once: the same operations hold the same memory each time."
        by_work = {
            NAMES[work]: [
                drawn(
                    work,
                    "speed",
                    "time",
                    "median time [s]",
                    lambda result, who, work=work: _value(result["seconds"][work][who]),
                    interval=TURNS,
                ),
                None
                if work == "decode"
                else drawn(work, "memory", "peak memory", "peak memory above the weights [GiB]", held(work), note=once),
            ]
            for work in works
        }
        devices = dict.fromkeys(cell.result["device"] for cell in evaluation.cells if cell.result)
        return document(
            evaluation,
            "Speed and memory",
            summary=[_sentence(row, works, baselines[0]) for row in rows if baselines and row.results],
            sections={"Beside plain attention": [ABOUT, ratios, THEIRS], **by_work},
            facts=[("timed on", "; ".join(devices))],
        )


def _value(turns: Turns) -> Value:
    return Value.of(turns["median"], low=turns["low"], high=turns["high"])


def _sentence(row: GridRow[Result], works: Sequence[Work], baseline: str) -> str:
    """Say how a model's times compare with plain attention's."""
    length, last = list(row.results.items())[-1]
    ratios = {work: _value(last["ratio"][work][baseline]) for work in works}
    times = ", ".join(f"{work} {value.text} ({value.range})" for work, value in ratios.items())
    return (
        f"{row.label} at {int(length):,} tokens takes this many times as long as plain attention with {baseline}: "
        f"{times}."
    )


def _with_twins(rows: Sequence[GridRow[Result]], baselines: Sequence[str], number: Number) -> list[Line]:
    """Return every model and variant, then each model's twins as measured with its first variant."""

    def line(row: GridRow[Result], who: str, label: str) -> Line:
        return Line.of_values(label, ((int(n), number(result, who)) for n, result in row.results.items()))

    first = {row.subject.name: row for row in reversed(rows)}  # twins are the same under every variant
    twins = [line(first[name], who, f"{who}, shape of {name}") for name in reversed(first) for who in baselines]
    return [*(line(row, SELF, row.label) for row in rows), *twins]
