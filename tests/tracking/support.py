"""A writer of metrics with the sinks that a test chooses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coca_train.runtime.untrusted_io import JsonObject
from coca_train.tracking.trackers import HyperParameters
from coca_train.tracking.writers import MetricsWriter

SETTINGS = {"model": {"d_model": 64, "name": "small"}, "train": {"seq_len": 128}, "layers": None}
DEFAULTS = {"model": {"d_model": 64, "name": "small"}, "train": {"seq_len": 64}, "layers": None}


def metrics_writer(
    run_dir: Path, start_step: int = 0, written: JsonObject | None = None, **chosen: Any
) -> MetricsWriter:
    values = {"tensorboard": False, "wandb": "disabled", "progress_bar": False, "wandb_project": "p"} | chosen
    tracking: Any = SimpleNamespace(**values)
    return MetricsWriter(run_dir, tracking, start_step, written, 4, "demo", lambda: HyperParameters(SETTINGS, DEFAULTS))
