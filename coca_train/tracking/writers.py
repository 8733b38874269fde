"""The metrics of a run: one writer passes each record to every sink (metrics.jsonl, TensorBoard, W&B, the terminal).

Records of a training step: loss [nats per token], lr, grad_norm, tokens_per_s, mfu (a fraction; on GPUs),
peak_memory_mib (so far), skipped_steps, batch_digest. Of a validation: valid/<source> [nats per token]. Of a probe of
reach: probe/<variant>/<window> [nats per token] and its cost (training/reach.py). When a report is written, the
trackers among the sinks show its findings (trackers.py).

No sink may stop or slow a training: one that fails warns once and is dropped.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from coca_train.config.schema import Config, TrackingConfig
from coca_train.runtime import dist, untrusted_io
from coca_train.runtime.errors import DataError
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.tracking.terminal import ProgressSink
from coca_train.tracking.trackers import (
    Findings,
    HyperParameters,
    Record,
    Sink,
    TensorBoardSink,
    Tracker,
    WandbSink,
    Warn,
)

LARGEST = 1e300  # a chart of larger numbers has no axis
# What trackers get of a run, of a stage in addition to that, and of its data.
SHARED = ("model", "position", "attention_pattern", "layers", "train", "optim", "engine", "eval")
OF_STAGE = ("trainable", "max_steps", "tokens", "optimizer", "lora")
OF_DATA = ("seed", "document_mask", "packing")


def read_jsonl(path: Path) -> list[JsonObject]:
    """Return every complete record of a metrics.jsonl, without a line that a crash has cut; none without a file.

    Raises DataError E-RUN-31 for a file that cannot be read.
    """
    records = []
    try:
        for line in untrusted_io.lines(path) if os.path.lexists(path) else ():
            try:
                record = untrusted_io.from_json(line)
            except ValueError:
                continue
            if isinstance(record, dict) and type(record.get("step")) is int and 0 <= record["step"] < 10**8:
                records.append({key: value for key, value in record.items() if _is_measured(key, value)})
    except OSError as error:
        raise DataError(
            f"E-RUN-31 {path}: cannot be read ({error.strerror}); every run writes its records there. "
            "Fix: move it away: rm -r, or restore it"
        ) from error
    return records


def _is_measured(key: str, value: object) -> bool:
    """Whether a training records such a value: a number, null where it was not finite, or a batch's digest."""
    if value is None or key == "batch_digest":
        return isinstance(value, str) or value is None
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def json_safe(value: object) -> object:
    """Replace numbers that are not finite by null: JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    return [json_safe(item) for item in value] if isinstance(value, list | tuple) else value


class JsonlSink(Sink):
    """metrics.jsonl: one JSON object a line, flushed, each step once.

    start_step: the step that the run continues from; records beyond it belong to steps that will be run again, and are
    dropped by an atomic rewrite.
    """

    def __init__(self, path: Path, start_step: int, warn: Warn) -> None:
        self._warn = warn
        self._file: int | None = None
        try:
            self._drop_records(path, start_step)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except (OSError, DataError) as error:
            warn(f"metrics are not written to {path}: {error}")

    @staticmethod
    def _drop_records(path: Path, start_step: int) -> None:
        if path.exists():
            kept = [r for r in read_jsonl(path) if r["step"] <= start_step]
            temporary = path.with_suffix(".jsonl.tmp")
            temporary.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
            os.replace(temporary, path)

    def write(self, step: int, record: Record) -> None:
        if self._file is None:
            return
        line = (json.dumps(json_safe({"step": step, **record})) + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            # One write of a whole line to a file opened for appending: a reader, or a kill, sees all of it or the end
            # of the one before.
            if os.write(self._file, line) < len(line):
                raise OSError("disk full")
        except OSError as error:
            self._warn(f"a record of metrics.jsonl was lost (step {step}): {error}; training goes on")
            os.ftruncate(self._file, size)  # no torn line in the middle of the file

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


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

    start_step: the step that a resumed run continues from (0 = new). last_step: of the whole run. name: of the run;
    trackers show it and the hyper-parameters.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking: TrackingConfig,
        start_step: int,
        last_step: int,
        name: str,
        hyper_parameters: Callable[[], HyperParameters],
    ) -> None:
        self._sinks: dict[str, Sink] = {}
        self._warned: set[str] = set()
        if not dist.is_main():
            return
        if tracking.tensorboard:
            with self._failing("TensorBoard"):
                self._sinks["TensorBoard"] = TensorBoardSink(run_dir / "tensorboard", start_step, hyper_parameters())
        if tracking.wandb != "disabled":
            options = run_dir, tracking.wandb, tracking.wandb_project, name, hyper_parameters().settings
            self._sinks["wandb"] = WandbSink(*options, partial(self._warn, "wandb"))
        jsonl = JsonlSink(run_dir / "metrics.jsonl", start_step, partial(self._warn, "metrics.jsonl"))
        self._sinks["metrics.jsonl"] = jsonl
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
