"""Tiny training runs in this process, crashes included, and what they leave on the disk."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from coca_train import checkpoint
from coca_train.checkpoint import record as run_record
from coca_train.checkpoint.format import ShardReader
from coca_train.settings import load
from coca_train.tracking.throughput import Peak
from coca_train.tracking.writers import MetricsWriter
from coca_train.training import ending as final
from coca_train.training import stage as stage_run
from coca_train.training.run import train
from tests.faults import real

HEADS = "blocks.*.attention"
SETTINGS = [
    "engine.kind=local", "engine.dtype=fp32", "position=rope", "train.max_steps=3", "optim.warmup_steps=0",
    "optim.schedule=constant", "data.prefetch_steps=0", "eval.max_tokens=48", "eval.every_steps=100",
]  # fmt: skip
# A model that transformers knows, as LLaMA
LLAMA = [
    "position=rope", "optim.lr=0.01", "model.norm=rmsnorm", "model.activation=swiglu", "model.residual=sequential",
    "model.bias=false", "model.tie_embeddings=false",
]  # fmt: skip


def leave_out(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """What costs seconds in each stage and is not about stages: figures, a measured peak, the certificate."""
    put(stage_run, "peak", lambda device, dtype: Peak(1e12, "nothing"))
    put(stage_run, "certify", lambda model, device, dtype: "not looked at")
    put(final, "draw", lambda block, finished, name: None)
    put(final, "write_report", lambda document, directory: {})
    put(run_record, "versions", dict)


def run(overrides: list[str]) -> None:
    """One forked rank of the command line, with its exit code."""
    leave_out()
    real.run(overrides)


class Crash(BaseException):
    """The process ends here."""


def stage(name: str, text: str = "max_steps: 3") -> str:
    """An override that adds a stage."""
    return f"+stages.{name}={{{text}}}"


def schedule(*stages: str) -> list[str]:
    """Overrides for a schedule of these stages only."""
    return ["~stages.all", *stages]


class Runs:
    """All runs of a test. `train` is one launch of the command."""

    def __init__(self, folder: Path, corpus: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.corpus, self.monkeypatch = folder, list(corpus), monkeypatch

    def train(self, name: str, *overrides: str, crash_at: int | None = None, dtype: str = "fp32") -> Path:
        """The run's directory. crash_at: the process ends when it has logged this step, before a save of it."""
        words = [*real.TINY, *SETTINGS, *self.corpus, f"run.root={self.folder}", f"run.name={name}"]
        loaded = load([*words, f"engine.dtype={dtype}", *overrides])
        with self.monkeypatch.context() as patch:
            if crash_at is not None:
                patch.setattr(MetricsWriter, "log", self._log_until(crash_at))
                with pytest.raises(Crash):
                    train(loaded)
            else:
                train(loaded)
        return self.folder / name

    @staticmethod
    def _log_until(last: int) -> Any:
        log = MetricsWriter.log

        def crashing(self: MetricsWriter, step: int, record: dict[str, Any]) -> None:
            log(self, step, record)
            if step == last:
                raise Crash

        return crashing


def state(run_dir: Path, step: int) -> dict[str, bytes]:
    """Every tensor of a checkpoint, as its bytes on the disk."""
    tensors: dict[str, bytes] = {}
    for path in sorted((run_dir / "checkpoints" / f"step-{step:08d}").glob("*.safetensors")):
        reader = ShardReader(path)
        tensors |= {name: reader.tensor(name).numpy().tobytes() for name in reader.spec()}
        reader.close()
    return tensors


def weights(run_dir: Path, step: int) -> dict[str, bytes]:
    return {name.removeprefix("model/"): data for name, data in state(run_dir, step).items() if name[:6] == "model/"}


def manifest(run_dir: Path, step: int) -> dict[str, Any]:
    return json.loads((run_dir / "checkpoints" / f"step-{step:08d}" / "MANIFEST.json").read_text())


def steps(run_dir: Path) -> list[dict[str, Any]]:
    """The logged optimizer steps."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "loss" in record]


def logged(run_dir: Path, key: str) -> list[Any]:
    return [record[key] for record in steps(run_dir)]


def saved(run_dir: Path) -> list[int]:
    """Steps that have a checkpoint."""
    return sorted(int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step-*"))


def record(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "run.json").read_text())


def damage(run_dir: Path, step: int) -> None:
    """Turn one bit of a checkpoint's weights."""
    path = next((run_dir / "checkpoints" / f"step-{step:08d}").glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def newest(run_dir: Path) -> int:
    found = checkpoint.find(run_dir)
    assert found is not None
    return found.step


def remove(run_dir: Path, *gone: int) -> None:
    """As if these steps had never been saved."""
    for step in gone:
        shutil.rmtree(run_dir / "checkpoints" / f"step-{step:08d}", ignore_errors=True)
