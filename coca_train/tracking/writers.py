"""The metrics of a run: one writer passes each record to every sink (metrics.jsonl, TensorBoard, W&B, the terminal).

Records of a training step: loss [nats per token], lr, grad_norm, tokens_per_s, mfu (a fraction; on GPUs),
peak_memory_mib (so far), skipped_steps, batch_digest. Of a validation: valid/<source> [nats per token]. Of a probe of
reach: probe/<variant>/<window> [nats per token] and its cost (training/reach.py). When a report is written, the
trackers among the sinks show its findings (trackers.py).

No sink may stop or slow a training: one that fails warns once and is dropped.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from coca_train.config.schema import Config, TrackingConfig
from coca_train.runtime import dist
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.tracking import records
from coca_train.tracking.records import JsonlSink
from coca_train.tracking.terminal import ProgressSink
from coca_train.tracking.trackers import (
    Findings,
    HyperParameters,
    Record,
    Sink,
    TensorBoardSink,
    Tracker,
    WandbSink,
)

# What trackers get of a run, of a stage in addition to that, and of its data.
SHARED = ("model", "position", "attention_pattern", "layers", "train", "optim", "engine", "eval")
OF_STAGE = ("trainable", "max_steps", "tokens", "optimizer", "lora")
OF_DATA = ("seed", "document_mask", "packing")


def shared_config(config: Config) -> JsonObject:
    """Return the part of the configuration that trackers receive: hyper-parameters only, no paths, nothing from the
    environment."""
    whole = asdict(config)
    shared = {key: value for key, value in whole.items() if key in SHARED}
    shared["stages"] = {
        name: {key: value for key, value in stage.items() if key in (*SHARED, *OF_STAGE)}
        | {"data": _shared_data(stage["data"])}
        for name, stage in whole["stages"].items()
    }
    return shared | {"data": _shared_data(whole["data"]), "seed": config.run.seed}


def _shared_data(data: Record) -> JsonObject:
    """Return the shared part of a data section. A stage may set only some of it; a source that it omits is null."""
    shared = {key: value for key, value in data.items() if key in OF_DATA}
    sources = data.get("sources")
    if sources and isinstance(sources, dict):
        shared["weights"] = {name: source and source.get("weight") for name, source in sources.items()}
    return shared


class MetricsWriter:
    """Writes each record to every configured sink. Rank 0 writes, the other ranks do nothing.

    start_step: the step that a resumed run continues from (0 = new). written: what its checkpoint says of
    metrics.jsonl; None: nothing. last_step: of the whole run. name: of the run; trackers show it and the
    hyper-parameters.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking: TrackingConfig,
        start_step: int,
        written: JsonObject | None,
        last_step: int,
        name: str,
        hyper_parameters: Callable[[], HyperParameters],
    ) -> None:
        self._sinks: dict[str, Sink] = {}
        self._warned: set[str] = set()
        self._jsonl: JsonlSink | None = None
        if not dist.is_main():
            return
        if tracking.tensorboard:
            with self._failing("TensorBoard"):
                self._sinks["TensorBoard"] = TensorBoardSink(run_dir / "tensorboard", start_step, hyper_parameters())
        if tracking.wandb != "disabled":
            options = run_dir, tracking.wandb, tracking.wandb_project, name, hyper_parameters().settings
            self._sinks["wandb"] = WandbSink(*options, partial(self._warn, "wandb"))
        self._jsonl = JsonlSink(run_dir / records.NAME, start_step, written, partial(self._warn, records.NAME))
        self._sinks[records.NAME] = self._jsonl
        if tracking.progress_bar:
            self._sinks["progress"] = ProgressSink(last_step)

    def _warn(self, sink: str, message: str) -> None:
        """Warn once for each sink."""
        if sink not in self._warned:
            self._warned.add(sink)
            dist.log(f"WARNING: {message}")

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Drop the sink that fails in the block."""
        try:
            yield
        except Exception as error:
            self._sinks.pop(name, None)
            self._warn(name, f"{name} stopped: {error}; training goes on")

    def log(self, step: int, record: Record) -> None:
        """Write one record of `step`, which counts the optimizer steps done."""
        for name, sink in list(self._sinks.items()):
            with self._failing(name):
                sink.write(step, record)

    def written(self) -> JsonObject | None:
        """Return what metrics.jsonl holds now, for a checkpoint; None: it is not written, or by another rank."""
        return None if self._jsonl is None else self._jsonl.written()

    def sync(self) -> None:
        """Bring metrics.jsonl to the disk. From any thread."""
        if self._jsonl is not None:
            self._jsonl.sync()

    def show(self, step: int, findings: Findings) -> None:
        """Pass the findings of the report on the model at `step` to every tracker."""
        for name, sink in list(self._sinks.items()):
            with self._failing(name):
                if isinstance(sink, Tracker):
                    sink.show(step, findings)

    def end_records(self) -> None:
        """Close the bar and the file: no more steps come. Trackers stay open, there may be a report to show."""
        self._close([name for name, sink in self._sinks.items() if not isinstance(sink, Tracker)])

    def close(self) -> None:
        self._close(list(self._sinks))

    def _close(self, names: Iterable[str]) -> None:
        for name in names:
            with self._failing(name):
                self._sinks[name].close()
            self._sinks.pop(name, None)
