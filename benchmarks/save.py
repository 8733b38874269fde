"""`python -m benchmarks.save`: how long a save stalls a training, beside a step of it and a copy of the state.

Real trainings of the quickstart's data, real checkpoints on this disk: a model of 60M parameters, float32 and bfloat16,
one rank and two. The stall is all that a save holds the training up: the copy, the commit, the deletion of older
checkpoints, and the wait for the save before where the disk is that slow. The copy is that of a rank's part of the
state, into memory that is there, measured by itself while the other ranks copy theirs. The bytes are those of the
checkpoint: weights and moments in float32, whatever the training computes in. The save at the end, which is waited for,
is left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import Setup
from benchmarks.measure import MIB, ROOT, machine, say
from coca_train import commands
from coca_train.attention.tiled_attention import WIDENED
from coca_train.checkpoint.manifest import FOLDER
from coca_train.config.schema import Config
from coca_train.engine.base import Engine
from coca_train.runtime import dist
from coca_train.runtime.printing import markdown
from coca_train.training import stage
from coca_train.training.loop import Tools
from coca_train.training.saving import Saver

EVERY = 4  # steps a save
SIZES = [
    "model=neox_tiny", "optim=adamw", "engine=deepspeed", "eval.every_steps=100",
    "model.d_model=640", "model.n_layers=11", "model.n_heads=10", "model.d_ff=2560", "train.seq_len=128",
    "train.micro_batch_size=4", "train.global_batch_size=8", "optim.warmup_steps=1",
    f"checkpoint.save_every_steps={EVERY}",
    "eval.extrapolation.enabled=false", "eval.sample_tokens=0", "eval.max_tokens=128", "tracking.progress_bar=false",
]  # fmt: skip
DTYPES = ("fp32",) if WIDENED[torch.bfloat16] else ("fp32", "bf16")  # those this machine has instructions for
CASES = [(dtype, n_ranks) for dtype in DTYPES for n_ranks in (1, 2)]
COLUMNS = [
    "precision", "ranks", "checkpoint [MiB]", "step [s]", "step beside a save [s]", "written in [s]", "copy [s]",
    "stall [s]", "stall / copy",
]  # fmt: skip
WARM = 2  # steps, and saves, that are left out
TIMES = "times.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.save", description="How long a save stalls a training.")
    parser.add_argument("--saves", type=int, default=5, help="saves that count, of each case")
    parser.add_argument("--folder", type=Path, help="where the checkpoints go; default: a temporary folder")
    parser.add_argument("--of-a-rank", action="store_true", help=argparse.SUPPRESS)
    given, words = parser.parse_known_args()
    if given.of_a_rank:
        return train(words)
    rows = []
    for dtype, n_ranks in CASES:
        say(f"{dtype}, {n_ranks} rank(s)")
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            own = [f"run.root={folder}", "run.name=r", f"engine.dtype={dtype}"]
            launch([*SIZES, f"train.max_steps={EVERY * (given.saves + WARM + 1)}", *words, *own], n_ranks)
            rows.append([dtype, str(n_ranks), *row(Path(folder) / "r")])
    print(markdown(COLUMNS, rows))
    print(json.dumps(machine(Setup("cpu", "fp32"))))
    return 0


def launch(words: Sequence[str], n_ranks: int) -> None:
    """The training in n_ranks processes, each with its share of the cores."""
    shared = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // n_ranks))}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000), "WORLD_SIZE": str(n_ranks)}
    command = [sys.executable, "-m", "benchmarks.save", "--of-a-rank", *words]
    ranks = [
        subprocess.Popen(
            command, cwd=ROOT, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.DEVNULL
        )
        for rank in range(n_ranks)
    ]
    if any([process.wait() for process in ranks]):
        raise SystemExit("a training failed; its message stands above")


def train(words: list[str]) -> int:
    """A rank's training. Rank 0 leaves in the run's directory how long each step took, what came after it for a save,
    each writing, and each copy [s]."""
    seconds: dict[str, list[float]] = {"step": [], "save": [], "written": [], "copy": []}
    run_stage = stage.run_stage

    def timed_stage(config: Config, engine: Engine, batches: Any, tools: Tools, **steps: int) -> None:
        engine.train_step = timed(engine.train_step, seconds["step"])
        saver = tools.save
        assert isinstance(saver, Saver)
        saver._log_duration = noting(saver._log_duration, lambda: seconds["written"].append(saver.saves.background_s))
        run_stage(config, engine, batches, tools._replace(save=timed(saver, seconds["save"])), **steps)
        seconds["copy"] = copies(engine)
        if dist.is_main():
            (Path(config.run.root) / config.run.name / TIMES).write_text(json.dumps(seconds), encoding="utf-8")

    stage.run_stage = timed_stage
    return commands.main(words) or 0


def timed(work: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The same work; how long it took is noted each time."""

    def noted(*arguments: Any) -> Any:
        begin = time.perf_counter()
        result = work(*arguments)
        seconds.append(time.perf_counter() - begin)
        return result

    return noted


def noting(work: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    """The same work, and a note after it."""

    def noted(*arguments: Any) -> Any:
        result = work(*arguments)
        note()
        return result

    return noted


def copies(engine: Engine, n: int = 5) -> list[float]:
    """How long a copy of this rank's part of the state takes [s], all ranks at once, into memory that is there."""
    slices = engine.slices()
    places = [torch.zeros(len(values), dtype=torch.float32) for _, _, values in slices]
    seconds = []
    for _ in range(n):
        dist.all_reduce([0.0])
        begin = time.perf_counter()
        for place, (_, _, values) in zip(places, slices, strict=True):
            place.copy_(values)
        seconds.append(time.perf_counter() - begin)
    return seconds


def row(run_dir: Path) -> list[str]:
    """Of a finished training: medians, and of stalls the lowest and highest too."""
    seconds = json.loads((run_dir / TIMES).read_text(encoding="utf-8"))
    # A save is what follows every EVERY-th step and the steps up to the next one.
    first, last = EVERY * (WARM + 1) - 1, len(seconds["save"]) - 1
    stalls = [sum(seconds["save"][i : i + EVERY]) for i in range(first, last, EVERY)]
    beside = statistics.median(seconds["step"][first + 1 : last : EVERY])  # the first step after each copy
    alone = statistics.median(seconds["step"][first:last:EVERY])  # the last before it
    stall, copy = statistics.median(stalls), statistics.median(seconds["copy"])
    newest = max((run_dir / FOLDER).glob("step-*"))
    size = sum(file.stat().st_size for file in newest.iterdir()) / MIB
    spread = f"{stall:.2f} ({min(stalls):.2f} – {max(stalls):.2f})"
    written = f"{statistics.median(seconds['written'][WARM:-1]):.2f}"
    return [f"{size:,.0f}", f"{alone:.2f}", f"{beside:.2f}", written, f"{copy:.3f}", spread, f"{stall / copy:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
