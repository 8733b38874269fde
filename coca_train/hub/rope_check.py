"""What engines make of `rope_scaling`, against exact arithmetic: `verify rope=transformers`.

The numbers are those of rope_vectors.json, which tests/golden/rope.py makes and no line of ours computes. An engine is
asked in a process of its own (rope_engines.py), so that any interpreter may have it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from coca_train.hub import rope_engines
from coca_train.hub.config_keys import Json
from coca_train.hub.options import VerifyConfig
from coca_train.runtime.errors import CheckpointError, UserError

SAME = 2e-6  # relative: engines compute frequencies in float32
LIMIT_S = 600
SAID = 80  # characters of a refusal
TINY = 1e-38  # float32: a pair that does not turn


class Case(NamedTuple):
    """config: config.json. lengths: [tokens]. inv_freq [radians per position], temperature: exact, at each of them."""

    config: Json
    lengths: list[int]
    inv_freq: list[list[float]]
    temperature: list[float]


class Findings(NamedTuple):
    """outcomes: by case, `same`, `differs by …` or `refused: …`."""

    version: str
    outcomes: dict[str, str]

    def that(self, way: str) -> list[str]:
        """Return the cases whose outcome begins with a word."""
        return [name for name, outcome in self.outcomes.items() if outcome.startswith(way)]


def vectors() -> dict[str, Case]:
    """Return the exact numbers by case."""
    text = Path(__file__).with_name("rope_vectors.json").read_text(encoding="utf-8")
    return {name: Case(**case) for name, case in json.loads(text).items()}


def ask(engine: str, python: str, cases: Mapping[str, Case], path: str | None = None) -> Findings:
    """Ask an engine of an interpreter. path: PYTHONPATH; None: as it is.

    Raises UserError E-IOP-25 where the interpreter or the engine cannot be started.
    """
    asked = {name: (case.config, case.lengths) for name, case in cases.items()}
    source = Path(rope_engines.__file__).read_text(encoding="utf-8")
    try:
        done = subprocess.run(
            [python, "-c", source, engine],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=os.environ | ({} if path is None else {"PYTHONPATH": path}),
        )
        said, failed = done.stderr.strip().rpartition("\n")[2], done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_answer(engine, python, str(error)) from None
    if failed:
        raise _no_answer(engine, python, said)
    answer = json.loads(done.stdout.splitlines()[-1])
    return Findings(answer["version"], {name: outcome(case, answer["answers"][name]) for name, case in cases.items()})


def _no_answer(engine: str, python: str, why: str) -> UserError:
    return UserError(
        f"E-IOP-25 rope={engine}, python={python}: no answer ({why}); an interpreter that imports it is needed. "
        f"Fix: python=<interpreter of an environment with {engine}>"
    )


def outcome(case: Case, answer: list[tuple[list[float], float]] | str) -> str:
    """Say what an engine's answer is worth."""
    if isinstance(answer, str):
        return f"refused: {' '.join(answer.split())[:SAID]}"
    for length, exact, temperature, (found, found_temperature) in zip(
        case.lengths, case.inv_freq, case.temperature, answer, strict=True
    ):
        if len(found) != len(exact):
            return f"differs: {len(found)} frequencies instead of {len(exact)}"
        apart = [abs(a - b) / max(a, b, TINY) for a, b in zip(found, exact, strict=True)]
        if wrong := [each for each in apart if not each <= SAME]:  # not a number is wrong too
            return f"differs by {max(wrong):.2g} in a frequency at {length:,} tokens"
        if not abs(found_temperature / temperature - 1) <= SAME:
            return f"differs: a temperature of {found_temperature:.4g} instead of {temperature:.4g}"
    return "same"


def verify_rope(options: VerifyConfig) -> None:
    """Print what an engine computes of every configuration.

    Raises CheckpointError E-IOP-26 where something differs; what is refused is said and no error.
    """
    assert options.rope is not None
    found = ask(options.rope, options.python or sys.executable, vectors())
    widest = max(map(len, found.outcomes))
    print(f"{'configuration':{widest}s}  {options.rope} {found.version}")
    for name, each in found.outcomes.items():
        print(f"{name:{widest}s}  {each}")
    counts = ", ".join(f"{len(found.that(way))} {way}" for way in ("same", "differs", "refused"))
    print(f"\n{len(found.outcomes)} configurations: {counts}")
    if wrong := found.that("differs"):
        raise CheckpointError(
            f"E-IOP-26 {options.rope} {found.version}: {len(wrong)} of {len(found.outcomes)} configurations are "
            f"computed otherwise than they say ({wrong[0]}, …). Fix: use another version, or none of these "
            "configurations"
        )
