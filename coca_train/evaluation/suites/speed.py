"""Time and memory by length, beside plain attention of the same shape (measures/speed.py, measures/peak.py).

A cell measures the model under its variant and a twin for each baseline, in turns. Times are this machine's at this
moment: they are never taken from an earlier measurement. Under torchrun the first rank measures, the others wait.
"""

import statistics
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Positive
from coca_train.evaluation.measures.peak import peak_bytes
from coca_train.evaluation.measures.speed import Baseline, Work, in_turns, ratio, turn, twin
from coca_train.evaluation.measures.windows import missing_positions
from coca_train.evaluation.pages.speed import page as page
from coca_train.evaluation.results import OWN
from coca_train.evaluation.subject import Setup, Subject
from coca_train.evaluation.suites import at_lengths
from coca_train.positions import rotary
from coca_train.runtime import dist

VERSION = 1
CACHED = False
AXIS = ()
points = at_lengths


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


def prepare(settings: Settings, subject: Subject, setup: Setup) -> None:
    """No text is read."""


def work(settings: Settings, subject: Subject, points: Sequence[int], material: None) -> list[float]:
    return [float(point) for point in points]


def fingerprint(material: None, point: int) -> str:
    return ""


def impossible(settings: Settings, subject: Subject, point: int, material: None) -> str:
    model = subject.model
    decoded = (settings.rounds + 1) * settings.new_tokens if "decode" in settings.works else 0
    if problem := missing_positions(model, point + decoded):
        return f"{problem}, and {point + decoded:,} tokens are read"
    if "rope" in settings.baselines:
        problems = rotary.width_problems(model.config, 1.0)
        return f"no rope of this shape to compare with: {problems[0][1]}" if problems else ""
    return ""


def measure(settings: Settings, subject: Subject, point: int, material: None, setup: Setup) -> dict[str, Any]:
    """On the first rank: seconds of every turn and peak bytes, by work and competitor."""
    if dist.rank():
        return {}
    model = subject.model
    competitors = {OWN: model} | {name: twin(model, name) for name in settings.baselines}
    device = model.embed.weight.device
    seconds: dict[str, dict[str, list[float]]] = {}
    for done, name in enumerate(settings.works, 1):
        turns = {
            who: turn(each, name, point, settings.new_tokens, settings.rounds) for who, each in competitors.items()
        }
        per_turn = settings.new_tokens if name == "decode" else 1
        timed = in_turns(turns, settings.rounds, device)
        seconds[name] = {who: [s / per_turn for s in values] for who, values in timed.items()}
        setup.progress(done / (len(settings.works) + settings.memory))
    held: list[Work] = [name for name in settings.works if name != "decode"] if settings.memory else []
    peak = {who: peak_bytes(each, held, point) if held else {} for who, each in competitors.items()}
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {"seconds": seconds, "peak": peak, "device": where}


def combine(settings: Settings, point: int, material: None, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """seconds: medians by work and competitor. ratio: own to each baseline. peak: [bytes] by competitor and work."""
    first = parts[0]
    return {
        "seconds": {
            name: {who: statistics.median(values) for who, values in by.items()}
            for name, by in first["seconds"].items()
        },
        "ratio": {
            name: {who: ratio(by[OWN], by[who]) for who in by if who != OWN} for name, by in first["seconds"].items()
        },
        "peak": first["peak"],
        "device": first["device"],
    }
