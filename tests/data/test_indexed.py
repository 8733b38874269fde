"""The .bin/.idx format, byte for byte, and what happens when a byte is wrong."""

import errno
import multiprocessing
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.dataset import IndexedDataset, IndexedWriter, best_dtype
from coca_train.data.storage import OpenFile
from coca_train.runtime.errors import DataError, StorageError


def neox_files(prefix: Path, sequences: list[list[int]], doc_idx: list[int], dtype: str, code: int) -> Path:
    """What GPT-NeoX's MMapIndexedDatasetBuilder writes, by its description (megatron/data/indexed_dataset.py)."""
    item = np.dtype(dtype).itemsize
    sizes = [len(sequence) for sequence in sequences]
    pointers, address = [], 0
    for size in sizes:
        pointers.append(address)
        address += size * item
    idx = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code)
    idx += struct.pack("<Q", len(sizes)) + struct.pack("<Q", len(doc_idx))
    idx += struct.pack(f"<{len(sizes)}i", *sizes) + struct.pack(f"<{len(sizes)}q", *pointers)
    idx += struct.pack(f"<{len(doc_idx)}q", *doc_idx)
    prefix.with_suffix(".idx").write_bytes(idx)
    prefix.with_suffix(".bin").write_bytes(b"".join(np.array(s, dtype).tobytes() for s in sequences))
    return prefix


def write(prefix: Path, documents: Sequence[Sequence[int]], dtype: type) -> None:
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add_document(document)


SEQUENCES = [[5, 6, 7], [], [65_000, 9], [1], [2, 3]]


@pytest.mark.parametrize(("dtype", "code"), [("<u2", 8), ("<i4", 4), ("<i8", 5)])
def test_a_dataset_of_gpt_neox_loads_unchanged(tmp_path: Path, dtype: str, code: int) -> None:
    data = IndexedDataset(neox_files(tmp_path / "x", SEQUENCES, [0, 1, 2, 3, 4, 5], dtype, code))
    assert (data.n_documents, data.n_sequences, data.n_tokens) == (5, 5, 8)
    assert data.document_bounds().tolist() == [0, 3, 3, 5, 6, 8]
    assert [data.document(i).tolist() for i in range(5)] == SEQUENCES
    assert data.tokens(0, 8).tolist() == [5, 6, 7, 65_000, 9, 1, 2, 3]
    assert data.tokens(2, 5).dtype == np.int64


@pytest.mark.parametrize(
    ("doc_idx", "bounds"),
    [
        ([0, 2, 5], [0, 3, 8]),  # sentences: several sequences a document; the entries count sequences
        ([0, 2, 2, 5], [0, 3, 3, 8]),  # an empty document
        ([0], [0, 3, 3, 5, 6, 8]),  # GPT-NeoX's merge tool: no document index, each sequence is one
        ([0, 3], [0, 5, 6, 8]),  # built, then merged: the rest is a sequence each
        ([0, 1, 2, 3, 4], [0, 3, 3, 5, 6, 8]),  # a tool that leaves out the last entry
    ],
)
def test_document_index_counts_sequences(tmp_path: Path, doc_idx: list[int], bounds: list[int]) -> None:
    data = IndexedDataset(neox_files(tmp_path / "x", SEQUENCES, doc_idx, "<u2", 8))
    assert data.document_bounds().tolist() == bounds
    assert data.n_documents == len(bounds) - 1
    starts = bounds[:-1]
    for first in range(len(bounds) + 1):
        for stop in range(first, len(bounds) + 1):
            assert data.document_starts(first, stop).tolist() == bounds[first:stop]
    for token in range(8):
        assert data.document_at(token) == max(i for i, start in enumerate(starts) if start <= token)
        for stop in range(token, 9):
            pieces = data.pieces(token, stop)
            assert [t for _, first, last in pieces for t in range(first, last)] == list(range(token, stop))
            assert all(bounds[j] <= first < last <= bounds[j + 1] for j, first, last in pieces)


@pytest.mark.parametrize(("dtype", "code"), [(np.uint16, 8), (np.int32, 4)])
def test_the_writer_writes_the_bytes_of_gpt_neox(tmp_path: Path, dtype: type, code: int) -> None:
    neox_files(tmp_path / "theirs", SEQUENCES, [0, 1, 2, 3, 4, 5], np.dtype(dtype).str, code)
    write(tmp_path / "ours", SEQUENCES, dtype)
    for end in (".idx", ".bin"):
        assert (tmp_path / f"ours{end}").read_bytes() == (tmp_path / f"theirs{end}").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours.bin", "ours.idx", "theirs.bin", "theirs.idx"]


@settings(max_examples=30, deadline=None)
@given(documents=st.lists(st.lists(st.integers(0, 65_535), max_size=20), max_size=20))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]) -> None:
    prefix = tmp_path_factory.mktemp("round") / "x"
    write(prefix, documents, np.uint16)
    data = IndexedDataset(prefix)
    assert [data.document(i).tolist() for i in range(data.n_documents)] == documents


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """An index of 3 entries a chunk, checked whole when it is opened (parameter: True), or when it is used."""
    monkeypatch.setattr("coca_train.data.index.CHUNK", 3)
    monkeypatch.setattr("coca_train.data.index.EAGER_ENTRIES", 1000 if request.param else 0)
    return 3


EAGER_OR_LAZY = pytest.mark.parametrize("small_chunks", [True, False], indirect=True, ids=["eager", "lazy"])


@EAGER_OR_LAZY
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 6, 20])
def test_chunks_of_the_index_fit_together(tmp_path: Path, small_chunks: int, n: int) -> None:
    documents = [[i] * (i % 4) for i in range(n)]
    write(tmp_path / "x", documents, np.int32)
    data = IndexedDataset(tmp_path / "x")
    assert [data.document(i).tolist() for i in range(n)] == documents
    bounds = np.cumsum([0, *map(len, documents)]).tolist()
    for first in range(n + 1):
        assert IndexedDataset(tmp_path / "x").document_starts(first, n + 1).tolist() == bounds[first:]
    assert data.document_bounds().tolist() == bounds


@pytest.mark.parametrize("small_chunks", [False], indirect=True)
@pytest.mark.parametrize("part", ["lengths", "pointers", "documents"])
@pytest.mark.parametrize("entry", range(3, 17))
def test_a_huge_index_is_checked_where_it_is_used(tmp_path: Path, small_chunks: int, part: str, entry: int) -> None:
    """Entries of the first and the last chunk are looked at when it is opened, the others before they are used."""
    documents = [[i] * 4 for i in range(21)]
    write(tmp_path / "x", documents, np.uint16)
    idx = bytearray((tmp_path / "x.idx").read_bytes())
    at, fmt, value = {
        "lengths": (34 + 4 * entry, "<i", -1),
        "pointers": (34 + 4 * 21 + 8 * entry, "<q", 8 * entry + 2),
        "documents": (34 + 12 * 21 + 8 * entry, "<q", entry - 2),
    }[part]
    struct.pack_into(fmt, idx, at, value)
    (tmp_path / "x.idx").write_bytes(idx)
    data = IndexedDataset(tmp_path / "x")
    assert data.tokens(0, 84).tolist() == [i for document in documents for i in document]  # needs no index
    damaged = entry // 3
    for i in range(21):
        if i // 3 not in (damaged, damaged - 1, damaged + 1):  # beside the chunk the next start may lie in it
            assert data.document(i).tolist() == documents[i]
    with pytest.raises(DataError, match=rf"E-TOK-06 .*x.idx .*entry {entry}"):
        data.document_start(entry)
    for first in range(entry // 3 * 3, entry + 1):
        with pytest.raises(DataError, match=rf"E-TOK-06 .*x.idx .*entry {entry}"):
            data.document_starts(first, entry + 1)
    with pytest.raises(DataError, match=rf"E-TOK-06 .*x.idx .*entry {entry}"):
        data.document_bounds()


def change_index(prefix: Path, changes: dict[int, tuple[str, int]]) -> None:
    idx = bytearray(prefix.with_suffix(".idx").read_bytes())
    for at, (fmt, value) in changes.items():
        struct.pack_into(fmt, idx, at, value)
    prefix.with_suffix(".idx").write_bytes(idx)


@pytest.mark.parametrize("small_chunks", [False], indirect=True)
def test_the_ends_of_a_huge_index_are_checked_when_it_is_opened(tmp_path: Path, small_chunks: int) -> None:
    pointers, documents = 34 + 4 * 21, 34 + 12 * 21
    for entry, changes in {
        "entry 0": {pointers: ("<q", 2)},
        "entry 20": {34 + 4 * 20: ("<i", -4), pointers + 8 * 20: ("<q", 176)},  # the total is right
        "document entry 0": {documents: ("<q", 1)},
        "document entry 21": {documents + 8 * 21: ("<q", 22)},
    }.items():
        write(tmp_path / "x", [[i] * 4 for i in range(21)], np.uint16)
        change_index(tmp_path / "x", changes)
        with pytest.raises(DataError, match=f"E-TOK-06 .*x.idx {entry}"):
            IndexedDataset(tmp_path / "x")


@pytest.mark.parametrize("small_chunks", [False], indirect=True)
@pytest.mark.parametrize("shift", [-1000, 1000])
def test_nothing_beyond_the_file_is_believed(tmp_path: Path, small_chunks: int, shift: int) -> None:
    """Entries 8 .. 12 agree with each other, and lie outside of the .bin."""
    write(tmp_path / "x", [[i] * 4 for i in range(21)], np.uint16)
    change_index(tmp_path / "x", {34 + 4 * 21 + 8 * i: ("<q", 8 * i + shift) for i in range(8, 13)})
    data = IndexedDataset(tmp_path / "x")
    with pytest.raises(DataError, match=r"E-TOK-06 .*x.idx entry 9"):
        data.document_start(10)


def overwrite(offset: int, fmt: str, *values: int):
    def change(idx: bytearray, bin_: bytearray) -> None:
        struct.pack_into(fmt, idx, offset, *values)

    return change


def edit(which: str, how):
    def change(idx: bytearray, bin_: bytearray) -> None:
        buffer = idx if which == "idx" else bin_
        buffer[:] = how(bytes(buffer))

    return change


SIZES_AT, POINTERS_AT, DOCUMENTS_AT = 34, 34 + 20, 34 + 60
DAMAGE = {
    "empty idx": (edit("idx", lambda b: b""), "E-TOK-02", "b''"),
    "other file": (edit("idx", lambda b: b"PK\x03\x04" + b[4:]), "E-TOK-02", "PK"),
    "cached format of neox": (edit("idx", lambda b: b"TNTIDX\x00\x00" + b[8:]), "E-TOK-02", "--dataset-impl mmap"),
    "newer version": (overwrite(9, "<Q", 2), "E-TOK-02", "version 2"),
    "big-endian": (overwrite(9, ">Q", 1), "E-TOK-02", "big-endian"),
    "dtype unknown": (overwrite(17, "<B", 99), "E-TOK-03", "code 99"),
    "dtype float": (overwrite(17, "<B", 6), "E-TOK-03", "float"),
    "dtype of another width": (overwrite(17, "<B", 4), "E-TOK-06 .*entry 1", "begins at byte 6"),
    "bin too short": (edit("bin", lambda b: b[:-2]), "E-TOK-04", "14 bytes"),
    "bin too long": (edit("bin", lambda b: b + b"\0\0"), "E-TOK-04", "18 bytes"),
    "bin empty": (edit("bin", lambda b: b""), "E-TOK-04", "0 bytes"),
    "header cut": (edit("idx", lambda b: b[:20]), "E-TOK-05", "20 bytes"),
    "idx cut": (edit("idx", lambda b: b[:-1]), "E-TOK-05", "5 sequences"),
    "idx longer": (edit("idx", lambda b: b + b"\0" * 5), "E-TOK-05", "5 sequences"),
    "count beyond the file": (overwrite(18, "<Q", 1 << 61), "E-TOK-05", str(1 << 61)),
    "document count beyond the file": (overwrite(26, "<Q", (1 << 64) - 1), "E-TOK-05", str((1 << 64) - 1)),
    "negative length": (overwrite(SIZES_AT + 8, "<i", -2), "E-TOK-06 .*entry 2", "length -2"),
    "length too large": (overwrite(SIZES_AT, "<i", 2**31 - 1), "E-TOK-06 .*entry 1", "4294967294"),
    "pointers not rising": (overwrite(POINTERS_AT + 16, "<q", 2), "E-TOK-06 .*entry 2", "byte 2"),
    "pointer overflow": (overwrite(POINTERS_AT + 24, "<q", -(2**31)), "E-TOK-06 .*entry 3", "overflow"),
    "documents begin late": (overwrite(DOCUMENTS_AT, "<q", 1), "E-TOK-06 .*document entry 0", "begin at 0"),
    "documents fall": (overwrite(DOCUMENTS_AT + 8, "<qq", 3, 2), "E-TOK-06 .*document entry 2", "2;"),
    "document beyond the end": (overwrite(DOCUMENTS_AT + 40, "<q", 6), "E-TOK-06 .*document entry 5", "6;"),
}


@EAGER_OR_LAZY
@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(tmp_path: Path, small_chunks: int, case: str, request: pytest.FixtureRequest) -> None:
    change, code, detail = DAMAGE[case]
    prefix = neox_files(tmp_path / "x", SEQUENCES, [0, 1, 2, 3, 4, 5], "<u2", 8)
    idx, bin_ = (bytearray(prefix.with_suffix(end).read_bytes()) for end in (".idx", ".bin"))
    change(idx, bin_)
    prefix.with_suffix(".idx").write_bytes(idx)
    prefix.with_suffix(".bin").write_bytes(bin_)
    if case == "dtype of another width" and "lazy" in request.node.name:
        code, detail = "E-TOK-04", "16 bytes"  # the totals are looked at first
    with pytest.raises(DataError, match=code) as caught:
        IndexedDataset(prefix).document_bounds()
    message = str(caught.value)
    assert detail in message
    assert str(prefix) in message
    assert "Fix:" in message
    assert "\n" not in message


@pytest.mark.parametrize("missing", [".bin", ".idx"])
def test_half_a_pair(tmp_path: Path, missing: str) -> None:
    prefix = neox_files(tmp_path / "x", SEQUENCES, [0], "<u2", 8)
    prefix.with_suffix(missing).unlink()
    with pytest.raises(DataError, match=rf"E-TOK-01 .*x\{missing}.*not finished"):
        IndexedDataset(prefix)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"E-TOK-01 .*missing too"):
        IndexedDataset(tmp_path / "x")


def test_a_file_that_shrinks_is_reported_not_a_bus_error(tmp_path: Path) -> None:
    data = IndexedDataset(neox_files(tmp_path / "x", [[1] * 10_000], [0, 1], "<u2", 8))
    assert data.tokens(9_000, 9_002).tolist() == [1, 1]
    with open(tmp_path / "x.bin", "r+b") as file:
        file.truncate(100)
    with pytest.raises(DataError, match=r"E-TOK-16 .*20000 to 100"):
        data.tokens(9_000, 9_002)


@pytest.mark.parametrize("end", [".bin", ".idx"])
@pytest.mark.parametrize("fault", ["cut between the look at its size and the read", "disk"])
def test_what_cannot_be_read_any_more_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, fault: str
) -> None:
    """A mapped page that cannot be had would end the process by SIGBUS."""
    data = IndexedDataset(neox_files(tmp_path / "x", [[1] * 10_000] * 2, [0, 1, 2], "<u2", 8))
    if fault == "disk":

        def fail(*arguments: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "preadv", fail)
    else:
        monkeypatch.setattr(OpenFile, "size", lambda self: 40_000)
        os.truncate(tmp_path / f"x{end}", 50)
    with pytest.raises(DataError, match=rf"E-TOK-16 .*x\{end}: bytes \d+ to \d+ cannot be read.*Fix: "):
        data.tokens(9_000, 9_002) if end == ".bin" else data.document_bounds()


@pytest.mark.parametrize(("dtype", "bad"), [(np.uint16, 70_000), (np.uint16, -1), (np.int32, 1 << 31)])
def test_ids_are_checked_before_they_wrap(tmp_path: Path, dtype: type, bad: int) -> None:
    with pytest.raises(DataError, match=rf"E-TOK-10 .*document 1.*{bad}"):
        write(tmp_path / "x", [[1, 2], [3, bad]], dtype)
    assert list(tmp_path.iterdir()) == []


def test_best_dtype_is_gpt_neoxs() -> None:
    assert [best_dtype(n) for n in (4096, 65_499, 65_500, 200_000)] == [np.uint16, np.uint16, np.int32, np.int32]


def test_a_second_writer_is_refused_and_the_first_continues(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "x", np.uint16) as first:
        first.add_document([1])
        with pytest.raises(DataError, match="E-TOK-15"), IndexedWriter(tmp_path / "x", np.uint16):
            pass
        first.add_document([2])
    assert IndexedDataset(tmp_path / "x").tokens(0, 2).tolist() == [1, 2]


KILLED = """
import os, signal, sys
import numpy as np
from coca_train.data.dataset import IndexedWriter
with IndexedWriter(sys.argv[1], np.uint16) as writer:
    writer.add_document(range(1000))
    writer._file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_publishes_nothing_and_does_not_stand_in_the_way(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "x")], check=False)
    assert done.returncode == -9
    with pytest.raises(DataError, match="E-TOK-01"):
        IndexedDataset(tmp_path / "x")
    write(tmp_path / "x", [[7]], np.uint16)
    assert IndexedDataset(tmp_path / "x").tokens(0, 1).tolist() == [7]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_a_failed_rewrite_keeps_the_old_dataset(tmp_path: Path) -> None:
    write(tmp_path / "x", [[1]], np.uint16)
    with pytest.raises(DataError):
        write(tmp_path / "x", [[2], [-1]], np.uint16)
    assert IndexedDataset(tmp_path / "x").tokens(0, 1).tolist() == [1]


def test_disk_full_is_reported(tmp_path: Path) -> None:
    def limited() -> None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(StorageError, match="E-IO-01"):
            write(tmp_path / "x", [range(10_000)], np.uint16)
        assert list(tmp_path.iterdir()) == []

    process = multiprocessing.get_context("fork").Process(target=limited)
    process.start()
    process.join(30)
    assert process.exitcode == 0
