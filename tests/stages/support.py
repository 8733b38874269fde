"""Tiny training runs in this process, crashes included, and what they leave on the disk."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from coca_train import checkpoint
from coca_train.checkpoint import record as run_record
from coca_train.checkpoint.manifest import Checkpoint
from coca_train.checkpoint.weights import Stored
from coca_train.config.load import Loaded
from coca_train.config.schema import Config
from coca_train.hub import importing
from coca_train.hub.options import ImportConfig
from coca_train.settings import load
from coca_train.tracking.throughput import Peak
from coca_train.tracking.writers import MetricsWriter
from coca_train.training import ending as final
from coca_train.training import stage as stage_run
from coca_train.training.run import train
from coca_train.training.saving import Saver
from tests.faults import real

HEADS = "blocks.*.attention"
SETTINGS = [
    "engine=local", "optim=adamw", "position=rope", "train.max_steps=3", "optim.warmup_steps=0",
    "optim.schedule=constant", "data.prefetch_steps=0", "eval.max_tokens=48", "eval.every_steps=100",
]  # fmt: skip
# A model that transformers knows, as LLaMA.
EXPORTABLE = [
    "position=rope", "optim.lr=0.01", "model.norm=rmsnorm", "model.activation=swiglu", "model.residual=sequential",
    "model.bias=[]", "model.tie_embeddings=false",
]  # fmt: skip


# The same model as a folder of transformers has it, as the run that begins from it says it, and a training that changes
# nothing.
SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 64,
    "pad_token_id": None,
}  # fmt: skip
LLAMA = [
    "model=llama_tiny", "model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.n_kv_heads=null",
    "model.d_ff=48", "position.rope_scaling.theta=500",
]  # fmt: skip
STILL = ["~stages.all", "+stages.a={max_steps: 1}", "optim.lr=1e-30", "optim.min_lr=0", "optim.warmup_init_lr=0"]
STILL += ["optim=adamw", "optim.weight_decay=0", "optim.warmup_steps=0"]


def leave_out(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """What costs seconds in each stage and is not about stages: figures, a measured peak, the certificate."""
    set_attribute(stage_run, "peak", lambda device, dtype: Peak(1e12, "nothing"))
    set_attribute(stage_run, "certify", lambda model, device, dtype: {})
    set_attribute(final, "draw", lambda block, finished, name: None)
    set_attribute(final, "write_report", lambda document, directory: {})
    set_attribute(run_record, "versions", dict)


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
        return self.launch(load([*words, f"engine.dtype={dtype}", *overrides]), crash_at)

    def launch(self, loaded: Loaded[Config], crash_at: int | None = None) -> Path:
        with self.monkeypatch.context() as patch:
            if crash_at is not None:
                patch.setattr(MetricsWriter, "log", self._log_until(crash_at))
                call = Saver.__call__  # each is waited for: which are there when it ends is then known
                patch.setattr(Saver, "__call__", lambda self, step, due, wait: call(self, step, due, due))
                with pytest.raises(Crash):
                    train(loaded)
            else:
                train(loaded)
        return self.folder / loaded.config.run.name

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
    saved = Checkpoint(run_dir / "checkpoints" / f"step-{step:08d}", step, manifest(run_dir, step))
    with Stored(saved, verified=()) as stored:
        return {name: stored.tensor(name).numpy().tobytes() for name in sorted(stored.spec)}


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
    last = checkpoint.find(run_dir)
    assert last is not None
    return last.step


def remove(run_dir: Path, *gone: int) -> None:
    """As if these steps had never been saved."""
    for step in gone:
        shutil.rmtree(run_dir / "checkpoints" / f"step-{step:08d}", ignore_errors=True)


def tokenizer_of(corpus: list[str]) -> Path:
    return Path(next(word for word in corpus if word.startswith("data.tokenizer=")).partition("=")[2])


def other_tokenizer(path: Path, corpus: list[str]) -> Path:
    """The same ids under another digest."""
    path.write_bytes(tokenizer_of(corpus).read_bytes() + b"\x9a\x06\x00")  # an empty field that nobody knows
    return path


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def begin(runs: Runs, folder: Path, *words: str, name: str = "r") -> Path:
    """A run that begins from a folder, one step that changes nothing."""
    return runs.train(name, *LLAMA, *STILL, f"start.path={folder}", *words)


def imported(folder: Path, root: Path, name: str, **options: Any) -> Path:
    return importing.import_weights(ImportConfig(source=str(folder), name=name, root=str(root), **options))
