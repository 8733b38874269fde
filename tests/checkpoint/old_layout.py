"""Checkpoints as they were written before tensors were cut: each whole, dealt out to the shards one after the other."""

from pathlib import Path
from typing import Any

from torch import Tensor

from coca_train.checkpoint import Meta, manifest
from coca_train.checkpoint.format import ShardWriter
from coca_train.engine.base import Engine


def write(run_dir: Path, step: int, engine: Engine, state: dict[str, Tensor], meta: Meta, ranks: int) -> None:
    """Of an engine with this state, as so many ranks saved it."""
    folder = run_dir / manifest.FOLDER / manifest.folder_name(step)
    folder.mkdir(parents=True)
    files = []
    for rank in range(ranks):
        mine = {name: tensor for index, (name, tensor) in enumerate(state.items()) if index % ranks == rank}
        identity = {"run_id": meta.run_id, "step": str(step), "rank": str(rank), "world_size": str(ranks)}
        name = manifest.shard_name(rank, ranks)
        writer = ShardWriter(folder / name, {key: tuple(tensor.shape) for key, tensor in mine.items()}, identity)
        for key, tensor in mine.items():
            writer.write(key, tensor)
        files.append({"name": name, "rank": rank, **writer.finish()})
        writer.close()
    body: dict[str, Any] = {
        "format": 1, "run_id": meta.run_id, "step": step, "world_size": ranks, "zero_stage": engine.zero_stage,
        "dtype": engine.dtype, "trainable": engine.trainable, "model_digest": meta.model_digest,
        "data_fingerprint": meta.data_fingerprint, "counters": engine.counters(), "progress": meta.progress,
        "files": files,
    }  # fmt: skip
    (folder / manifest.NAME).write_bytes(manifest.encode(body))
