"""Weights to safetensors files of at most 5 GB, one tensor in memory at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from coca_train.checkpoint.format import NonFinite, ShardWriter, file_size
from coca_train.hub.architecture import Shapes
from coca_train.runtime.errors import CheckpointError

LIMIT = 5_000_000_000  # [bytes] of one file


def split(shapes: Shapes, dtypes: dict[str, torch.dtype]) -> list[list[str]]:
    """Names in their order, cut where a file would pass the limit; a tensor larger than that has its own file."""
    parts: list[list[str]] = [[]]
    used = 0
    for name, shape in shapes.items():
        size = file_size({name: shape}, dtypes)
        if parts[-1] and used + size > LIMIT:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += size
    return parts


def write(
    folder: Path,
    parts: list[list[str]],
    file_name: Callable[[int, int], str],
    shapes: Shapes,
    dtypes: dict[str, torch.dtype],
    read: Callable[[str], Tensor],
    *,
    prefix: str = "",
    metadata: dict[str, str],
) -> list[dict[str, Any]]:
    """The files of `split`; for each {name, bytes, sha256}. file_name: of file i of n. prefix: before tensor names.

    Raises OSError, and CheckpointError E-IOP-19 for a weight that is not finite.
    """
    records = []
    with tqdm(total=len(shapes), unit="tensor", disable=None, leave=False) as bar:
        for i, part in enumerate(parts):
            name = file_name(i, len(parts))
            spec = {prefix + key: shapes[key] for key in part}
            writer = ShardWriter(folder / name, spec, metadata, {prefix + key: dtypes[key] for key in part})
            try:
                for key in part:
                    writer.write(prefix + key, read(key).to(dtypes[key]))
                    bar.update()
                records.append({"name": name, **writer.finish()})
            except NonFinite:
                raise CheckpointError(
                    f"E-IOP-19 {key}: holds NaN or infinity as {str(dtypes[key]).removeprefix('torch.')}; finite "
                    "weights are needed. Fix: another dtype if they overflow, else download the weights again"
                ) from None
            finally:
                writer.close()
    return records
