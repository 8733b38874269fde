"""Time and memory by length, against plain attention of the same shape (measures/speed.py).

A cell measures the model under its variant and a twin for each baseline, in turns. Times are this machine's at this
moment: they are never taken from an earlier measurement. Under torchrun the first rank measures, the others wait.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.speed import Baseline, Work, in_turns, peak_bytes, ratio, spread, turn, twin
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.pages import by_length, by_point, curves, document, table
from coca_train.evaluation.results import Evaluation, GridRow
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
    memory: bool = Field(description="measure peak memory too; on a CPU in a process of its own, some seconds each")


GIB = 2**30
TURNS = "lowest and highest of the turns"
Pick = Callable[..., Sequence[float | None]]
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


class Evaluator(CellSuite[Settings, None]):
    """Time and memory by length, against plain attention of the same shape."""

    VERSION = 2
    CACHED = False

    def prepare(self, subject: Subject, setup: Setup) -> None:
        """Read no text."""

    def work(self, subject: Subject, points: Sequence[int], material: None) -> list[float]:
        return [float(point) for point in points]

    def fingerprint(self, material: None, point: int) -> str:
        return ""

    def impossible(self, subject: Subject, point: int, material: None) -> str:
        model = subject.model
        decoded = (self.settings.rounds + 1) * self.settings.new_tokens if "decode" in self.settings.works else 0
        if problem := missing_positions(model, point + decoded):
            return f"{problem}, and {point + decoded:,} tokens are read"
        if "rope" in self.settings.baselines:
            problems = rotary.width_problems(model.config, 1.0)
            return f"no rope of this shape to compare with: {problems[0][1]}" if problems else ""
        return ""

    def measure(self, subject: Subject, point: int, material: None, setup: Setup) -> dict[str, Any]:
        """Return on the first rank the seconds of every turn and peak bytes, by work and competitor."""
        if dist.rank():
            return {}
        model = subject.model
        competitors = {SELF: model} | {name: twin(model, name) for name in self.settings.baselines}
        device = model.embed.weight.device
        seconds: dict[str, dict[str, list[float]]] = {}
        for done, name in enumerate(self.settings.works, 1):
            n_new, rounds = self.settings.new_tokens, self.settings.rounds
            turns = {who: turn(each, name, point, n_new, rounds) for who, each in competitors.items()}
            per_turn = n_new if name == "decode" else 1
            timed = in_turns(turns, rounds, device)
            seconds[name] = {who: [s / per_turn for s in values] for who, values in timed.items()}
            setup.progress(done / (len(self.settings.works) + self.settings.memory))
        held: list[Work] = [name for name in self.settings.works if name != "decode"] if self.settings.memory else []
        peak = {who: peak_bytes(each, held, point) if held else {} for who, each in competitors.items()}
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        return {"seconds": seconds, "peak": peak, "device": gpu or f"CPU, {torch.get_num_threads()} threads"}

    def combine(self, point: int, material: None, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the seconds by work and competitor and the ratio to each baseline, as median, lowest and highest; peak
        [bytes] by competitor and work."""
        first, seconds, ratios = parts[0], {}, {}
        for work, by in first["seconds"].items():
            seconds[work] = {who: spread(values) for who, values in by.items()}
            ratios[work] = {who: ratio(by[SELF], by[who]) for who in by if who != SELF}
        return first | {"seconds": seconds, "ratio": ratios}

    def page(self, evaluation: Evaluation) -> Document:
        """Return the document; a length that ran out of memory says so."""
        rows, baselines = evaluation.rows(), self.settings.baselines

        def drawn(work: str, quantity: str, words: str, y_label: str, number: Pick, **more: Any) -> Lines | None:
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

        def seconds(result: Mapping[str, Any], who: str, work: str) -> tuple[float, float, float]:
            known = result["seconds"][work][who]
            return known["median"], known["low"], known["high"]

        def ratio_to(result: Mapping[str, Any], work: str, baseline: str) -> Value:
            known = result["ratio"][work][baseline]
            return Value.of(known["median"], low=known["low"], high=known["high"])

        def held(result: Mapping[str, Any], who: str, work: str) -> tuple[float | None]:
            return (result["peak"][who][work] / GIB if work in result["peak"][who] else None,)

        works = {
            NAMES[work]: [
                drawn(work, "speed", "time", "median time [s]", partial(seconds, work=work), interval=TURNS),
                drawn(
                    work,
                    "memory",
                    "peak memory",
                    "peak memory above the weights [GiB]",
                    partial(held, work=work),
                    note="Measured once: the same operations hold the same memory each time.",
                ),
            ]
            for work in self.settings.works
        }
        ratios = table(
            rows,
            by_point(evaluation.points, ratio_to),
            by={"work": self.settings.works, "against": baselines},
            name="speed-ratios",
            title="Time, as a multiple of plain attention's",
            interval=TURNS,
            note="1 is as fast; below 1 is faster.",
        )
        devices = dict.fromkeys(cell.result["device"] for cell in evaluation.cells if cell.result)
        return document(
            evaluation,
            "Speed and memory",
            summary=[_sentence(row, self.settings.works, baselines[0]) for row in rows if baselines and row.results],
            sections={"Beside plain attention": [ABOUT, ratios, THEIRS], **works},
            facts=[("timed on", "; ".join(devices))],
        )


def _sentence(row: GridRow, works: Sequence[str], baseline: str) -> str:
    """Say how a model's times compare with plain attention's."""
    ratios = {work: row.last["ratio"][work][baseline] for work in works}
    times = ", ".join(f"{work} {r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})" for work, r in ratios.items())
    return (
        f"{row.label} at {max(map(int, row.results)):,} tokens takes this many times as long as plain attention with "
        f"{baseline}: {times}."
    )


def _with_twins(rows: list[GridRow], baselines: Sequence[str], number: Pick) -> list[Line]:
    """Return every model and variant, then each model's twins as measured with its first variant.

    number(result, competitor): what is drawn, (y,) or (y, low, high); y None where it was not measured.
    """

    def line(row: GridRow, who: str, label: str = "") -> Line:
        return by_length(row, lambda result: number(result, who), label)

    first = {row.subject.name: row for row in reversed(rows)}  # twins are the same under every variant
    twins = [line(first[name], who, f"{who}, shape of {name}") for name in reversed(first) for who in baselines]
    return [*(line(row, SELF) for row in rows), *twins]
