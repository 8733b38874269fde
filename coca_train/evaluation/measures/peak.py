"""The most memory that one work of speed.py holds at once, above the model's weights [bytes].

On a GPU: torch's peak of allocated memory less what was allocated before. On a CPU, Linux only: the highest resident
memory less that before the work, in a fresh process with random weights of the same shapes, where freed blocks go back
to the system at once and a small warm-up came first. Elsewhere it cannot be measured. The cache of a prefill counts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from coca_train.config.older import model_config
from coca_train.config.schema import LayersConfig
from coca_train.evaluation.measures.speed import Turn, Work, turn
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.positions import settings as position_settings
from coca_train.positions import visibilities

# malloc gives freed blocks back at once, so that resident memory is what is alive.
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WARM_UP = 16  # [tokens]
KILLED = -9  # by the system, when memory runs out


def peak_bytes(model: Transformer, works: Sequence[Work], length: int) -> dict[str, int]:
    """By work; empty where it cannot be measured. Raises MemoryError when a process of its own was killed."""
    if model.embed.weight.is_cuda:
        return {work: _on_gpu(turn(model, work, length, 1, 1)) for work in works}
    return _alone(model, works, length) if RESET.exists() else {}


def _on_gpu(once: Turn) -> int:
    once()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    once()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _alone(model: Transformer, works: Sequence[Work], length: int) -> dict[str, int]:
    task = {
        "model": asdict(model.config),
        "position": asdict(model.position.settings),
        "visibility": asdict(model.visibility.settings),
        "layers": asdict(model.layers),
        "vocab_size": model.embed.num_embeddings,
        "max_seq_len": model.shape.max_seq_len,
        "attention": model.attention,
        "activation_checkpointing": model.activation_checkpointing,
        "dtype": str(model.embed.weight.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "works": list(works),
        "length": length,
    }
    command = [sys.executable, "-m", "coca_train.evaluation.measures.peak", json.dumps(task)]
    alone = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(command, env={**alone, **GIVING_BACK}, capture_output=True, text=True, check=False)
    if done.returncode == KILLED or "can't allocate memory" in done.stderr:
        raise MemoryError(f"{', '.join(works)} of {length} tokens ran out of memory in a process of its own")
    if done.returncode:
        raise RuntimeError(f"memory could not be measured:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _child(task: Mapping[str, Any]) -> dict[str, int]:
    torch.set_num_threads(task["threads"])
    shared = {key: task[key] for key in ("vocab_size", "max_seq_len", "attention", "activation_checkpointing")}
    config, layers = model_config(task["model"]), TypeAdapter(LayersConfig).validate_python(task["layers"])
    position, visibility = position_settings(task["position"]), visibilities.settings(task["visibility"])
    model = Transformer(config, position, visibility, layers=layers, **shared)
    init_weights(model, config, seed=0)
    model = model.to(getattr(torch, task["dtype"])).eval()
    peaks = {}
    for work in task["works"]:
        # What libraries keep after their first call (thread pools, workspaces) is not the work's.
        turn(model, work, min(WARM_UP, task["length"]), 1, 1)()
        once = turn(model, work, task["length"], 1, 1)
        before = _resident("VmRSS")
        RESET.write_text("5")  # the peak counts from here on, see proc(5)
        once()
        peaks[work] = _resident("VmHWM") - before
    return peaks


if __name__ == "__main__":
    print(json.dumps(_child(json.loads(sys.argv[1]))))
