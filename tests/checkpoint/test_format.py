"""safetensors files: readable by the official library, and nothing malformed gets through."""

import contextlib
import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from coca_train.checkpoint.format import NonFinite, ShardReader, ShardWriter, file_size

TENSORS = {
    "model/a.weight": torch.randn(3, 4),
    "model/scalar": torch.tensor(-0.0),
    "exp_avg/empty": torch.zeros(0, 5),
    "model/ünïcode": torch.randn(2, 1, 3),
    "tiny": torch.tensor([1e-45, -1e-45, 3e38]),
}


def write(path: Path, tensors: dict[str, torch.Tensor]) -> dict:
    writer = ShardWriter(path, {name: tuple(t.shape) for name, t in tensors.items()}, {"step": "7"})
    for name, tensor in tensors.items():
        writer.write(name, tensor)
    record = writer.finish()
    writer.close()
    return record


def test_official_library_reads_ours(tmp_path: Path) -> None:
    record = write(tmp_path / "a.safetensors", TENSORS)
    loaded = load_file(tmp_path / "a.safetensors")
    assert loaded.keys() == TENSORS.keys()
    assert all(torch.equal(loaded[n].view(torch.int32), TENSORS[n].view(torch.int32)) for n in TENSORS)
    with safe_open(tmp_path / "a.safetensors", "pt") as handle:
        assert handle.metadata() == {"step": "7"}
    assert record["bytes"] == (tmp_path / "a.safetensors").stat().st_size


def test_we_read_the_official_librarys(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "b.safetensors", {"step": "7"})
    reader = ShardReader(tmp_path / "b.safetensors")
    assert all(torch.equal(reader.tensor(n), TENSORS[n]) for n in TENSORS)
    assert reader.spec() == {n: tuple(t.shape) for n, t in TENSORS.items()}
    reader.close()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_is_refused(tmp_path: Path, bad: float) -> None:
    with pytest.raises(NonFinite):
        write(tmp_path / "c.safetensors", {"x": torch.tensor([1.0, bad])})


HEADERS = [
    b"", b"\0" * 8, struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 50) + b"{}", struct.pack("<Q", 2) + b"[]",
    struct.pack("<Q", 2) + b"{x", struct.pack("<Q", 4) + b"null",
]  # fmt: skip
ENTRIES = [
    {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]},
    {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]},
    {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]},
    {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
    {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
    {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [1]},
    "F32",
    None,
]
MALFORMED = HEADERS + [
    struct.pack("<Q", len(text)) + text + b"\0" * 8 for text in (json.dumps({"x": entry}).encode() for entry in ENTRIES)
]


@pytest.mark.parametrize("content", MALFORMED)
def test_malformed_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.safetensors"
    path.write_bytes(content)
    with pytest.raises((OSError, ValueError)):
        ShardReader(path)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_never_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "e.safetensors"
    path.write_bytes(content)
    with contextlib.suppress(OSError, ValueError):
        ShardReader(path).close()


def test_pipes_and_links_are_refused(tmp_path: Path) -> None:
    import os

    write(tmp_path / "real", TENSORS)
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"."):
            ShardReader(tmp_path / name)


HALVES = {
    "a": torch.randn(3, 5).bfloat16(),
    "b": torch.randn(7).half(),
    "c": torch.randn(2),
    "d": torch.ones(()).half(),
}


def test_weights_keep_their_half_precision(tmp_path: Path) -> None:
    path, dtypes = tmp_path / "h.safetensors", {name: tensor.dtype for name, tensor in HALVES.items()}
    spec = {name: tuple(tensor.shape) for name, tensor in HALVES.items()}
    writer = ShardWriter(path, spec, {}, dtypes)
    for name, tensor in HALVES.items():
        writer.write(name, tensor)
    writer.finish()
    writer.close()
    official, reader = load_file(path), ShardReader(path)
    assert reader.dtypes() == dtypes
    assert reader.spec() == spec
    for name, tensor in HALVES.items():
        assert torch.equal(official[name], tensor) and torch.equal(reader.tensor(name), tensor)
        assert official[name].dtype == reader.tensor(name).dtype == tensor.dtype
    reader.close()
    assert file_size(spec, dtypes) == sum(tensor.nbytes for tensor in HALVES.values())
    writer = ShardWriter(tmp_path / "n", {"x": (1,)}, {}, {"x": torch.float16})
    with pytest.raises(NonFinite):
        writer.write("x", torch.tensor([1e6]).half())


def test_float32_files_are_what_they_were(tmp_path: Path) -> None:
    """Byte for byte, by the layout written out here."""
    write(tmp_path / "f", {"x": torch.tensor([[1.5, -2.0]])})
    header = b'{"__metadata__":{"step":"7"},"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}'
    header += b" " * (-len(header) % 8)
    expected = struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.5, -2.0)
    assert (tmp_path / "f").read_bytes() == expected
