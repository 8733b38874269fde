"""Tensors that lie in several files: any part of them, and no other reading of a manifest that lies."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from coca_train import checkpoint
from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import ShardWriter
from coca_train.checkpoint.manifest import CUT, Checkpoint
from coca_train.checkpoint.weights import Stored
from coca_train.engine.base import even_share
from coca_train.runtime import dist
from coca_train.runtime.errors import CheckpointError
from tests.faults.fake import holds, save

TENSORS = {"a": torch.randn(7, 5), "b": torch.randn(6), "c": torch.tensor(3.0), "d": torch.zeros(0, 3)}


def write(run_dir: Path, seed: int, n_files: int, step: int = 30) -> Checkpoint:
    """Each tensor cut at random places, its parts in files as they come; a file has one of it at most."""
    choose, files, cut = random.Random(seed), [dict[str, torch.Tensor]() for _ in range(n_files)], {}
    for name, tensor in TENSORS.items():
        flat = tensor.flatten()
        ends = sorted({0, len(flat), *(choose.randrange(len(flat) + 1) for _ in range(n_files - 1))})
        of = choose.sample(range(n_files), max(1, len(ends) - 1))
        if len(ends) < 3:
            files[of[0]][name] = tensor
            continue
        parts = [[file, start, stop] for file, start, stop in zip(of, ends, ends[1:], strict=False)]
        for file, start, stop in parts:
            files[file][name] = flat[start:stop]
        cut[name] = {"shape": list(tensor.shape), "parts": parts}
    folder = run_dir / manifest.FOLDER / manifest.folder_name(step)
    folder.mkdir(parents=True)
    records = []
    for number, tensors in enumerate(files):
        name = manifest.shard_name(number, n_files)
        writer = ShardWriter(folder / name, {key: tuple(tensor.shape) for key, tensor in tensors.items()}, {})
        for key, tensor in tensors.items():
            writer.write(key, tensor)
        records.append({"name": name, "rank": number, **writer.finish()})
        writer.close()
    body = {
        "format": manifest.FORMAT, "run_id": "run-1", "step": step, "world_size": n_files, "zero_stage": 1,
        "dtype": "fp32", "trainable": [], "model_digest": "m", "data_fingerprint": {}, "counters": {}, "progress": {},
        "files": records,
        "tensors": manifest.digest_of_spec({name: tuple(tensor.shape) for name, tensor in TENSORS.items()}),
    } | ({CUT: cut} if cut else {})  # fmt: skip
    (folder / manifest.NAME).write_bytes(manifest.encode(body))
    found = checkpoint.find(run_dir, "run-1")
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(10))
def test_any_part_of_any_tensor(tmp_path: Path, seed: int) -> None:
    with Stored(write(tmp_path, seed, n_files=4)) as stored:
        assert stored.spec == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
        for name, tensor in TENSORS.items():
            assert torch.equal(stored.tensor(name), tensor)
            for start in range(tensor.numel() + 1):
                for stop in range(start, tensor.numel() + 1):
                    assert torch.equal(stored.values(name, start, stop), tensor.flatten()[start:stop])


LIES: dict[str, Any] = {
    "no table": 5,
    "no entry": {"a": [1]},
    "other keys": {"a": {"shape": [7, 5]}},
    "a gap": {"a": {"shape": [7, 5], "parts": [[0, 0, 10], [1, 11, 35]]}},
    "an overlap": {"a": {"shape": [7, 5], "parts": [[0, 0, 12], [1, 10, 35]]}},
    "an end too early": {"a": {"shape": [7, 5], "parts": [[0, 0, 12], [1, 12, 34]]}},
    "backwards": {"a": {"shape": [7, 5], "parts": [[0, 0, 40], [1, 40, 35]]}},
    "below zero": {"a": {"shape": [7, 5], "parts": [[-1, 0, 35]]}},
    "no such file": {"a": {"shape": [7, 5], "parts": [[9, 0, 35]]}},
    "a word": {"a": {"shape": [7, 5], "parts": [["0", 0, 35]]}},
    "a shape beyond all": {"a": {"shape": [2**62, 2**62], "parts": [[0, 0, 35]]}},
    "no shape": {"a": {"shape": None, "parts": [[0, 0, 35]]}},
    "none of its parts": {"a": {"shape": [7, 5], "parts": []}},
    "not what the files have": {"a": {"shape": [35], "parts": [[0, 0, 17], [1, 17, 35]]}},
    "a tensor that is nowhere": {"z": {"shape": [4], "parts": [[0, 0, 2], [1, 2, 4]]}},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_passed_over(tmp_path: Path, lie: str) -> None:
    """Under a right digest, too."""
    save(tmp_path, 10)
    newest = write(tmp_path, 3, n_files=2)
    body = json.loads((newest.path / manifest.NAME).read_text())
    (newest.path / manifest.NAME).write_bytes(manifest.encode(body | {CUT: LIES[lie]}))
    assert holds(checkpoint.find(tmp_path, "run-1"), 10)
    if lie in ("not what the files have", "a tensor that is nowhere"):
        with pytest.raises(CheckpointError, match=r"E-CKP-01 .*E-CKP-08"):
            checkpoint.open_weights(Checkpoint(newest.path, 30, body | {CUT: LIES[lie]}))


@pytest.mark.parametrize("world", [1, 2, 3, 8, 32])
def test_even_shares(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    spec = {"a": (7, 5), "none": (0, 4), "b": (1000,), "c": (), "d": (3,)}
    n, seen, sizes = sum(map(math.prod, spec.values())), list[tuple[str, int]](), []
    monkeypatch.setattr(dist, "world_size", lambda: world)
    for rank in range(world):
        monkeypatch.setattr(dist, "rank", lambda rank=rank: rank)
        monkeypatch.setattr(dist, "is_main", lambda rank=rank: rank == 0)
        mine = list(even_share(spec))
        sizes.append(sum(stop - start for _, start, stop in mine))
        seen += [(name, element) for name, start, stop in mine for element in range(start, stop)]
        assert (("none", 0, 0) in mine) == (rank == 0)
    assert sorted(seen) == sorted(
        (name, element) for name, shape in spec.items() for element in range(math.prod(shape))
    )
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == n


@pytest.mark.parametrize("by", [-1, 1])
def test_parts_that_fit_the_files_and_not_each_other(tmp_path: Path, by: int) -> None:
    """An element twice, or not at all."""
    save(tmp_path, 10)
    newest = write(tmp_path, 3, n_files=2)
    body = json.loads((newest.path / manifest.NAME).read_text())
    name, entry = next(iter(body[CUT].items()))
    file, start, stop = entry["parts"][-1]
    entry["parts"][-1] = [file, start + by, stop + by]
    entry["shape"] = [stop + by]
    (newest.path / manifest.NAME).write_bytes(manifest.encode(body))
    assert holds(checkpoint.find(tmp_path, "run-1"), 10), name
