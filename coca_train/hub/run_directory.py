"""Weights as a run directory of ours: config.yaml, run.json, a checkpoint at step 0 without moments, the tokenizer."""

import json
import os
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from coca_train.checkpoint import manifest
from coca_train.checkpoint.record import digest, versions
from coca_train.checkpoint.weights import MODEL
from coca_train.config.load import FORMAT, Assembled, Loaded, assemble, load
from coca_train.data.mixture import tokenizer_digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import shard_files
from coca_train.hub.tokenizer_files import FOLDER, keep, main_name
from coca_train.hub.weights import Source
from coca_train.runtime import durable, outside
from coca_train.runtime.trees import flatten
from coca_train.settings import TRAIN

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def write(
    folder: Path, configured: Loaded, source: Source, tokenizer: Tokenizer | None, parity: dict[str, Any]
) -> None:
    """Fill a folder. configured: by `configuration`. Raises OSError, CheckpointError."""
    config = configured.config
    if tokenizer is not None:
        keep(Path(tokenizer.path), tokenizer, folder / FOLDER)
        durable.write_new(folder / Path(config.data.tokenizer).name, outside.read_bytes(tokenizer.path))
    settings = flatten(asdict(config))
    record = {
        "format": FORMAT,
        "run_id": uuid.uuid4().hex,
        "settings": settings,
        "model_digest": digest(
            {key: settings[key] for key in settings if key.startswith(("model.", "position.", "layers."))}
        ),
        "fingerprint": {
            "tokenizer": tokenizer_digest(tokenizer.path) if tokenizer is not None else None,
            "order": {},
            "sources": {},
        },
        "overrides": [],
        "folder": os.getcwd(),
        "versions": versions(),
        "init_digests": {},
        "imported": source.origin | {"parity": parity},
    }
    checkpoint = folder / manifest.FOLDER / manifest.folder_name(0)
    checkpoint.mkdir(parents=True)
    _checkpoint(checkpoint, source, record, config.engine.dtype)
    durable.write_new(checkpoint.parent / "latest", f"{checkpoint.name}\n".encode())
    durable.write_new(folder / "config.yaml", configured.record.encode())
    durable.write_new(folder / "run.json", (json.dumps(record, indent=1) + "\n").encode())


def defaults() -> dict[str, Any]:
    """The settings of a training as they are without any choice."""
    return load(assemble(TRAIN, []), launch=False).tree


def configuration(name: str, root: str, source: Source, tokenizer: Path | None) -> Loaded:
    """The configuration of the run: defaults, but for what the weights decide; its data is a place that
    is empty. Raises ConfigError for a name that no run can have."""
    tree, run_dir = defaults(), Path(root) / name
    kept = run_dir.resolve() / (main_name(tokenizer) if tokenizer is not None else "tokenizer.model")
    architecture = source.architecture
    tree |= {
        "model": asdict(architecture.model),
        "position": asdict(architecture.position),
        "visibility": asdict(architecture.visibility),
        "layers": asdict(architecture.layers),
    }
    nothing = {"path": str(run_dir.resolve() / "no-training-data"), "valid_path": None, "weight": 1.0}
    tree["run"] |= {"name": name, "root": root}
    tree["train"] |= {"seq_len": architecture.seq_len}
    tree["engine"] |= {"dtype": DTYPES[source.dtypes["embed.weight"]]}
    tree["data"] |= {
        "prepare": "none",
        "dir": str(run_dir.resolve()),
        "tokenizer": str(kept),
        "sources": {"none": nothing | {"on_exhausted": "repeat"}},
    }
    return load(Assembled(TRAIN, tree), launch=False)


def _checkpoint(folder: Path, source: Source, record: dict[str, Any], dtype: str) -> None:
    identity = {"run_id": record["run_id"], "step": "0"}
    written = shard_files.write(
        folder,
        shard_files.split(source.shapes, source.dtypes),
        manifest.shard_name,
        source.shapes,
        source.dtypes,
        source.read,
        prefix=MODEL,
        metadata=identity,
    )
    body = {
        "format": manifest.FORMAT,
        "run_id": record["run_id"],
        "step": 0,
        "world_size": 1,
        "zero_stage": 0,
        "dtype": dtype,
        "trainable": [],
        "model_digest": record["model_digest"],
        "data_fingerprint": record["fingerprint"],
        "counters": {},
        "progress": {},
        "files": [{**entry, "rank": i} for i, entry in enumerate(written)],
    }
    durable.write_new(folder / manifest.NAME, manifest.encode(body))
    durable.sync_folder(folder)
