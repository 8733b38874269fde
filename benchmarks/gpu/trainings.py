"""Whole trainings through the command line, each in a process of its own, and what they leave."""

import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from benchmarks.measure import ROOT
from coca_train.checkpoint.manifest import FOLDER
from coca_train.tracking.records import read_jsonl

QUIET = (
    *(
        "eval.sample_tokens=0",
        "eval.extrapolation.enabled=false",
        "tracking.progress_bar=false",
        "data.prepare=embedded",
    ),
    *("tracking.log_every_steps=1", "eval.max_tokens=1024"),
)


@dataclass(frozen=True)
class Trained:
    """records: of every step. text: what it printed."""

    run_dir: Path
    records: list[dict[str, Any]]
    text: str
    seconds: float

    def losses(self) -> dict[int, float]:
        return {record["step"]: record["loss"] for record in self.records if "loss" in record}

    def state(self) -> dict[str, str]:
        """SHA-256 of every tensor of the newest checkpoint; the files' headers know their run."""
        found = {}
        for path in sorted(max((self.run_dir / FOLDER).glob("step-*")).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118  # it is no mapping
                    values = file.get_tensor(name).numpy()
                    found[f"{path.name} {name}"] = hashlib.sha256(values.tobytes()).hexdigest()
        return found


def train(folder: Path, name: str, words: Sequence[str], limit_s: float = 600) -> Trained:
    """`python -m coca_train` with these words; the parts of an hour share a corpus beside their folders. Raises
    RuntimeError."""
    command = [sys.executable, "-m", "coca_train", *words, *QUIET, f"run.root={folder}", f"run.name={name}"]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder.parent, env=os.environ | {"PYTHONPATH": _python_path()}, capture_output=True, text=True,
        timeout=limit_s, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: exit code {done.returncode}: {done.stderr[-1500:]}")
    run_dir = folder / name
    return Trained(run_dir, read_jsonl(run_dir / "metrics.jsonl"), done.stderr + done.stdout, time.monotonic() - began)


class Save(NamedTuple):
    """Seconds, as the training says them."""

    blocked_s: float
    background_s: float


def stalls(text: str) -> list[Save]:
    """Of each save, for how long the training waited, and for how long it was written beside it."""
    found = re.findall(r"blocked training for ([\d.]+) s \(([\d.]+) s in background\)", text)
    return [Save(float(blocked), float(background)) for blocked, background in found]


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
