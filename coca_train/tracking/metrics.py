"""The metrics of a run: one writer, many sinks (writers.py), and the throughput meter (throughput.py).

Records of a training step: loss [nats per token], lr, grad_norm, tokens_per_s, mfu (a fraction),
peak_memory_mib (so far), skipped_steps, batch_digest. Of a validation: valid/<source> [nats per token].
Of a probe of reach: probe/<variant>/<window> [nats per token] and what it costs (training/probe.py).
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from coca_train.config.schema import Config
from coca_train.runtime import dist
from coca_train.schedule import resolve
from coca_train.tracking.throughput import Peak, Throughput, flops_per_token, matmul_parameters, peak
from coca_train.tracking.writers import JsonlSink, ProgressSink, Sink, TensorBoardSink, WandbSink

__all__ = ["MetricsWriter", "Peak", "Throughput", "flops_per_token", "matmul_parameters", "peak", "shared_config"]


def shared_config(config: Config) -> dict[str, Any]:
    """What a tracker is told about the run: hyper-parameters only, no paths, nothing from the environment."""
    parts = ("model", "position", "visibility", "train", "stages", "optim", "engine")
    shared = {part: _plain(getattr(config, part)) for part in parts}
    shared["data"] = {"seed": config.data.seed, "document_mask": config.data.document_mask}
    shared["data"]["packing"] = config.data.packing
    shared["data"]["weights"] = {name: source.weight for name, source in config.data.sources.items()}
    shared["seed"] = config.run.seed
    return shared


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


class MetricsWriter:
    """Hands each record to every sink of the config. Rank 0 writes, the other ranks do nothing.

    run_dir: the run's directory. start_step: the step a resumed run goes on from (0 = new).
    Raises UserError when a tracker is asked for whose package is missing.
    """

    def __init__(self, run_dir: Path | str, config: Config, start_step: int) -> None:
        self._sinks: list[Sink] = []
        self._warned: set[str] = set()
        if not dist.is_main():
            return
        run_dir = Path(run_dir)
        tracking = config.tracking
        if tracking.tensorboard:
            self._sinks.append(TensorBoardSink(run_dir / "tensorboard", start_step, self._once("tensorboard")))
        if tracking.wandb != "disabled":
            self._sinks.append(
                WandbSink(
                    run_dir,
                    tracking.wandb,
                    tracking.wandb_project,
                    config.run.name,
                    shared_config(config),
                    self._once("wandb"),
                )
            )
        self._sinks.append(JsonlSink(run_dir / "metrics.jsonl", start_step, self._once("jsonl")))
        if tracking.progress_bar:
            self._sinks.append(ProgressSink(resolve(config)[-1].last_step, start_step))

    def _once(self, key: str):
        def warn(message: str) -> None:
            if key not in self._warned:
                self._warned.add(key)
                print(f"WARNING: {message}", file=sys.stderr, flush=True)

        return warn

    def log(self, step: int, record: dict[str, Any]) -> None:
        """One record of `step` (counted from 1 for the first optimizer step done)."""
        for sink in self._sinks:
            sink.write(step, record)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._sinks = []
