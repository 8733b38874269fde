"""safetensors files, written tensor by tensor and read tensor by tensor: never a whole state in memory.

Layout (github.com/huggingface/safetensors, "Format"): uint64 LE header length, JSON header
{name: {dtype, shape, data_offsets}}, raw little-endian data. Ours hold float32 only.
"""

import hashlib
import json
import math
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coca_train.checkpoint import files

HEADER_LIMIT = 100 << 20  # [bytes], the official library's limit
ITEM = 4  # [bytes], float32

assert sys.byteorder == "little"


class NonFinite(ValueError):
    """A NaN or an infinity where a state is written."""


def file_size(spec: dict[str, tuple[int, ...]]) -> int:
    """Bytes of the data of all tensors of a spec {name: shape}."""
    return ITEM * sum(math.prod(shape) for shape in spec.values())


class ShardWriter:
    """A new safetensors file whose tensors arrive in the order of `spec`. Any method may raise OSError."""

    def __init__(self, path: Path, spec: dict[str, tuple[int, ...]], metadata: dict[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": metadata}
        offset = 0
        for name, shape in spec.items():
            end = offset + ITEM * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._pending = list(spec.items())
        self._descriptor = files.create(path)
        self._write(struct.pack("<Q", len(text)) + text)

    def write(self, name: str, tensor: Tensor) -> None:
        """Append one float32 CPU tensor. Raises NonFinite before anything of it is written."""
        expected = self._pending.pop(0)
        assert (name, tuple(tensor.shape)) == expected and tensor.dtype == torch.float32, (name, expected)
        extremes = torch.aminmax(tensor) if tensor.numel() else ()  # one pass; NaN wins
        if not all(math.isfinite(value) for value in extremes):
            raise NonFinite(name)
        self._write(tensor.contiguous().numpy().reshape(-1).view(np.uint8))

    def _write(self, data: Any) -> None:
        view = memoryview(data)
        for start in range(0, len(view), files.CHUNK):
            part = view[start : start + files.CHUNK]
            files.write_all(self._descriptor, part)
            self._digest.update(part)
            self._bytes += len(part)

    def finish(self) -> dict[str, Any]:
        """Sync to the disk; {bytes, sha256}."""
        assert not self._pending
        os.fsync(self._descriptor)
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        os.close(self._descriptor)


class ShardReader:
    """An open safetensors file. Raises OSError or ValueError when it is not a well-formed one of ours."""

    def __init__(self, path: Path) -> None:
        self._descriptor = files.open_regular(path)
        try:
            self.bytes = os.fstat(self._descriptor).st_size
            (length,) = struct.unpack("<Q", files.read_at(self._descriptor, 0, 8))
            if not 2 <= length <= min(HEADER_LIMIT, self.bytes - 8):
                raise ValueError(f"header of {length} bytes in a file of {self.bytes}")
            header = json.loads(files.read_at(self._descriptor, 8, length))
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            self._start = 8 + length
            self._entries = {name: self._check(name, entry) for name, entry in header.items()}
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            self.close()
            raise ValueError(f"header is malformed: {error}") from None
        except (OSError, ValueError):
            self.close()
            raise

    def _check(self, name: str, entry: dict[str, Any]) -> tuple[tuple[int, ...], int]:
        shape, (start, end) = tuple(entry["shape"]), entry["data_offsets"]
        if entry["dtype"] != "F32" or not 0 <= start <= end <= self.bytes - self._start:
            raise ValueError(f"tensor {name} is described as {entry}")
        if end - start != ITEM * math.prod(shape):
            raise ValueError(f"tensor {name} of shape {list(shape)} has {end - start} bytes")
        return shape, start

    def spec(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (shape, _) in self._entries.items()}

    def sha256(self) -> str:
        """Digest of the whole file, read through the same descriptor as the tensors."""
        digest = hashlib.sha256()
        for offset in range(0, self.bytes, files.CHUNK):
            digest.update(files.read_at(self._descriptor, offset, min(files.CHUNK, self.bytes - offset)))
        return digest.hexdigest()

    def tensor(self, name: str) -> Tensor:
        """One float32 CPU tensor."""
        shape, start = self._entries[name]
        data = files.read_at(self._descriptor, self._start + start, ITEM * math.prod(shape))
        return torch.frombuffer(data, dtype=torch.float32).view(shape) if data else torch.zeros(shape)

    def close(self) -> None:
        os.close(self._descriptor)
