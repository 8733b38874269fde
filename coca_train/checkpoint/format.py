"""safetensors files, written tensor by tensor and read range by range: never a whole state in memory.

Layout (github.com/huggingface/safetensors, "Format"): uint64 LE header length, JSON header
{name: {dtype, shape, data_offsets}}, raw little-endian data. States of a training are float32; files of weights
alone may keep the half precision they came in.
"""

import hashlib
import json
import math
import os
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coca_train.runtime import durable, untrusted_io
from coca_train.runtime.untrusted_io import JsonObject

HEADER_LIMIT = 100 << 20  # [bytes], the official library's limit
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALL_FLOAT32: Mapping[str, torch.dtype] = {}
# A file that was changed less than that ago may change again and look as it did: clocks of files are coarse.
SETTLED_S = 2.0

# Digests of files that this process has read or written, by their file system metadata at that time.
_digests: dict[tuple[int, ...], str] = {}

assert sys.byteorder == "little"


class NonFinite(ValueError):
    """A NaN or an infinity where a state is written."""


def file_size(spec: dict[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype] = ALL_FLOAT32) -> int:
    """Return the bytes of the data of all tensors of a spec {name: shape}; float32 where `dtypes` does not say
    otherwise."""
    return sum(dtypes.get(name, torch.float32).itemsize * math.prod(shape) for name, shape in spec.items())


class ShardWriter:
    """A new safetensors file whose tensors arrive in the order of `spec`. Any method may raise OSError.

    dtypes: of those tensors that are not float32.
    """

    def __init__(
        self,
        path: Path,
        spec: dict[str, tuple[int, ...]],
        metadata: dict[str, str],
        dtypes: Mapping[str, torch.dtype] = ALL_FLOAT32,
    ) -> None:
        header: JsonObject = {"__metadata__": metadata}
        offset = 0
        for name, shape in spec.items():
            dtype = dtypes.get(name, torch.float32)
            end = offset + dtype.itemsize * math.prod(shape)
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        # The data begins at a multiple of eight bytes, so that readers may map tensors where they lie; the format
        # allows spaces.
        text += b" " * (-len(text) % 8)
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._pending = [(name, shape, dtypes.get(name, torch.float32)) for name, shape in spec.items()]
        self._descriptor = durable.create(path)
        self._write(struct.pack("<Q", len(text)) + text)

    def write(self, name: str, *parts: Tensor) -> None:
        """Append a CPU tensor, whole or in parts one after the other. Raises NonFinite before any of it is written."""
        # In the order of the header, which is on the disk already: it says where each tensor lies.
        expected, shape, dtype = self._pending.pop(0)
        assert name == expected and sum(part.numel() for part in parts) == math.prod(shape), (name, expected, shape)
        assert all(part.dtype == dtype for part in parts), (name, dtype)
        if not all(_is_finite(part) for part in parts):
            raise NonFinite(name)
        for part in parts:
            self._write(part.reshape(-1).view(torch.uint8).numpy().data)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        for start in range(0, len(view), durable.CHUNK):
            part = view[start : start + durable.CHUNK]
            durable.write_all(self._descriptor, part)
            self._digest.update(part)
            self._bytes += len(part)

    def finish(self) -> JsonObject:
        """Sync to the disk; {bytes, sha256}."""
        assert not self._pending
        os.fsync(self._descriptor)
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        os.close(self._descriptor)


def _is_finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    if not tensor.numel():
        return True
    if tensor.dtype == torch.float32:
        # By numpy: torch would start threads of its own for it, in a background thread of a training.
        values = tensor.numpy()
        return bool(np.isfinite(values.min()) and np.isfinite(values.max()))  # NaN wins
    return all(math.isfinite(value) for value in torch.aminmax(tensor))


class ShardReader:
    """An open safetensors file. Raises OSError or ValueError when it is not a well-formed one of ours."""

    def __init__(self, path: Path) -> None:
        self._descriptor = untrusted_io.open_file(path, follow=False)
        try:
            self.bytes = os.fstat(self._descriptor).st_size
            (length,) = struct.unpack("<Q", durable.read_at(self._descriptor, 0, 8))
            if not 2 <= length <= min(HEADER_LIMIT, self.bytes - 8):
                raise ValueError(f"header of {length} bytes in a file of {self.bytes}")
            header = untrusted_io.from_json(durable.read_at(self._descriptor, 8, length))
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            self._start = 8 + length
            self._entries = {name: self._check(name, entry) for name, entry in header.items()}
        except (AttributeError, KeyError, TypeError) as error:
            self.close()
            raise ValueError(f"header is malformed: {error}") from None
        except (OSError, ValueError):
            self.close()
            raise

    def _check(self, name: str, entry: JsonObject) -> tuple[tuple[int, ...], int, torch.dtype]:
        shape, (start, end) = tuple(entry["shape"]), entry["data_offsets"]
        if entry["dtype"] not in DTYPES or not 0 <= start <= end <= self.bytes - self._start:
            raise ValueError(f"tensor {name} is described as {entry}")
        dtype = DTYPES[entry["dtype"]]
        if end - start != dtype.itemsize * math.prod(shape):
            raise ValueError(f"tensor {name} of shape {list(shape)} has {end - start} bytes")
        return shape, start, dtype

    def spec(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (shape, _, _) in self._entries.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: dtype for name, (_, _, dtype) in self._entries.items()}

    def sha256(self, again: bool = False) -> str:
        """Return the digest of the whole file, read through the same descriptor as the tensors. again: also where this
        process has read it before and the file system says that it is as it was."""
        stat = os.fstat(self._descriptor)
        identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if not again and identity in _digests:
            return _digests[identity]
        digest = hashlib.sha256()
        for offset in range(0, self.bytes, durable.CHUNK):
            digest.update(durable.read_at(self._descriptor, offset, min(durable.CHUNK, self.bytes - offset)))
        if time.time() - max(stat.st_mtime, stat.st_ctime) > SETTLED_S:
            _digests[identity] = digest.hexdigest()
        return digest.hexdigest()

    def values(self, name: str, start: int, stop: int) -> Tensor:
        """Return the elements [start, stop) of a tensor: flat, on the CPU, in the precision of the file. From any
        thread."""
        shape, begin, dtype = self._entries[name]
        assert 0 <= start <= stop <= math.prod(shape), (name, start, stop)
        size = dtype.itemsize
        data = durable.read_at(self._descriptor, self._start + begin + size * start, size * (stop - start))
        return torch.frombuffer(data, dtype=dtype) if data else torch.zeros(0, dtype=dtype)

    def tensor(self, name: str) -> Tensor:
        """Return one CPU tensor, in the precision of the file."""
        shape = self._entries[name][0]
        return self.values(name, 0, math.prod(shape)).view(shape)

    def close(self) -> None:
        os.close(self._descriptor)
