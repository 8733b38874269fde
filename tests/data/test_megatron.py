"""`.bin/.idx` pairs go both ways between this package and the readers people already have.

megatron-core: its own code, from pip. GPT-NeoX is not on pip: its mmap format is read here by an independent reader
that follows megatron/data/indexed_dataset.py of that repository, step by step, with struct only.
"""

import importlib
import importlib.util
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.dataset import IndexedDataset, IndexedWriter

DOCUMENTS = {
    "uint16": [[5, 6, 7, 0], [0], [], [65_499, 65_535, 1, 0], [], [2, 0]],
    "int32": [[5, 6, 7, 0], [0], [], [65_536, 2**31 - 1, 100_863, 0], [2, 0], []],
}


@pytest.fixture(scope="module")
def megatron() -> Iterator[ModuleType]:
    """Its file alone: the packages around it import all of Megatron, three seconds of it."""
    pytest.importorskip("megatron")
    logging = ModuleType("megatron.core.utils")
    logging.log_single_rank = lambda *_, **__: None  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tells what is not installed
        for name in ("megatron.core", "megatron.core.datasets"):
            spec = importlib.util.find_spec(name)
            if spec is None:
                pytest.skip("megatron-core is not installed")
            package = ModuleType(name)
            package.__path__ = list(spec.submodule_search_locations or ())
            patch.setitem(sys.modules, name, package)
        patch.setitem(sys.modules, logging.__name__, logging)
        yield importlib.import_module("megatron.core.datasets.indexed_dataset")


def write_ours(prefix: Path, documents: list[list[int]], dtype: str) -> Path:
    with IndexedWriter(prefix, np.dtype(dtype).type) as writer:
        for document in documents:
            writer.add_document(document)
    return prefix


def write_theirs(megatron: ModuleType, prefix: Path, documents: list[list[int]], dtype: str) -> Path:
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type)
    for document in documents:
        builder.add_document(np.array(document, np.int64), [len(document)])
    builder.finalize(f"{prefix}.idx")
    return prefix


def ours(prefix: Path) -> list[list[int]]:
    data = IndexedDataset(prefix)
    return [data.document(i).tolist() for i in range(data.n_documents)]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", DOCUMENTS)
def test_megatron_core_reads_what_we_write(megatron: ModuleType, tmp_path: Path, dtype: str, mmap: bool) -> None:
    prefix = write_ours(tmp_path / "x", DOCUMENTS[dtype], dtype)
    theirs = megatron.IndexedDataset(str(prefix), mmap=mmap)
    assert len(theirs) == len(DOCUMENTS[dtype])
    assert theirs.index.dtype == np.dtype(dtype)
    assert [theirs[i].tolist() for i in range(len(theirs))] == DOCUMENTS[dtype]
    assert theirs.sequence_lengths.tolist() == [len(document) for document in DOCUMENTS[dtype]]
    assert theirs.document_indices.tolist() == list(range(len(DOCUMENTS[dtype]) + 1))
    assert theirs.get(3, offset=1, length=2).tolist() == DOCUMENTS[dtype][3][1:3]
    assert [piece.tolist() for piece in theirs[1:5]] == DOCUMENTS[dtype][1:5]


@pytest.mark.parametrize("dtype", DOCUMENTS)
def test_we_read_what_megatron_core_writes(megatron: ModuleType, tmp_path: Path, dtype: str) -> None:
    data = IndexedDataset(write_theirs(megatron, tmp_path / "x", DOCUMENTS[dtype], dtype))
    assert data.dtype == np.dtype(dtype)
    assert ours(tmp_path / "x") == DOCUMENTS[dtype]
    assert data.tokens(0, data.n_tokens).tolist() == [token for document in DOCUMENTS[dtype] for token in document]


@pytest.mark.parametrize("dtype", DOCUMENTS)
def test_both_write_the_same_bytes(megatron: ModuleType, tmp_path: Path, dtype: str) -> None:
    write_ours(tmp_path / "ours", DOCUMENTS[dtype], dtype)
    write_theirs(megatron, tmp_path / "theirs", DOCUMENTS[dtype], dtype)
    for end in (".bin", ".idx"):
        assert (tmp_path / f"ours{end}").read_bytes() == (tmp_path / f"theirs{end}").read_bytes()


def test_documents_of_several_sequences(megatron: ModuleType, tmp_path: Path) -> None:
    """Megatron can split a document into sentences; its document index then counts sequences."""
    sentences = [[[1, 2], [3], []], [], [[], [4, 5, 6]], [[7]]]
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.uint16)
    for document in sentences:
        for sentence in document:
            builder.add_item(torch.tensor(sentence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(str(tmp_path / "x.idx"))
    data = IndexedDataset(tmp_path / "x")
    assert (data.n_documents, data.n_sequences, data.n_tokens) == (4, 6, 7)
    assert ours(tmp_path / "x") == [[1, 2, 3], [], [4, 5, 6], [7]]
    assert data.document_bounds().tolist() == [0, 3, 3, 6, 7]


def test_what_megatron_core_merges(megatron: ModuleType, tmp_path: Path) -> None:
    """Their merge of two of our datasets is read by us, and is what we would have written at once."""
    first, second = DOCUMENTS["uint16"][:3], DOCUMENTS["uint16"][3:]
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.uint16)
    builder.add_index(str(write_ours(tmp_path / "a", first, "uint16")))
    builder.add_index(str(write_ours(tmp_path / "b", second, "uint16")))
    builder.finalize(str(tmp_path / "x.idx"))
    assert ours(tmp_path / "x") == first + second
    write_ours(tmp_path / "whole", first + second, "uint16")
    assert (tmp_path / "x.idx").read_bytes() == (tmp_path / "whole.idx").read_bytes()


@settings(max_examples=25, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 65_535), max_size=9), min_size=1, max_size=9).filter(
        lambda documents: any(documents)  # megatron-core cannot map a .bin of 0 bytes
    ),
    dtype=st.sampled_from(["uint16", "int32"]),
)
def test_any_documents_both_ways(
    megatron: ModuleType, tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], dtype: str
) -> None:
    folder = tmp_path_factory.mktemp("both")
    theirs = megatron.IndexedDataset(str(write_ours(folder / "ours", documents, dtype)))
    assert [theirs[i].tolist() for i in range(len(theirs))] == documents
    assert ours(write_theirs(megatron, folder / "theirs", documents, dtype)) == documents


class NeoxReader:
    """GPT-NeoX's MMapIndexedDataset: sequences by pointer and size, as its training reads them."""

    FORMATS = {4: "i", 8: "H"}

    def __init__(self, prefix: Path) -> None:
        idx = prefix.with_suffix(".idx").read_bytes()
        self.data = prefix.with_suffix(".bin").read_bytes()
        assert idx[:9] == b"MMIDIDX\x00\x00"
        assert struct.unpack_from("<Q", idx, 9) == (1,)
        self.format = self.FORMATS[idx[17]]
        self.n, n_documents = struct.unpack_from("<QQ", idx, 18)
        at = 34
        self.sizes = struct.unpack_from(f"<{self.n}i", idx, at)
        self.pointers = struct.unpack_from(f"<{self.n}q", idx, at + 4 * self.n)
        self.doc_idx = struct.unpack_from(f"<{n_documents}q", idx, at + 12 * self.n)
        assert len(idx) == at + 12 * self.n + 8 * n_documents

    def __getitem__(self, i: int) -> list[int]:
        return list(struct.unpack_from(f"<{self.sizes[i]}{self.format}", self.data, self.pointers[i]))


@pytest.mark.parametrize("dtype", DOCUMENTS)
def test_gpt_neox_reads_what_we_write(tmp_path: Path, dtype: str) -> None:
    theirs = NeoxReader(write_ours(tmp_path / "x", DOCUMENTS[dtype], dtype))
    assert [theirs[i] for i in range(theirs.n)] == DOCUMENTS[dtype]
    assert theirs.doc_idx == tuple(range(len(DOCUMENTS[dtype]) + 1))


@pytest.mark.parametrize(("dtype", "code", "fmt"), [("uint16", 8, "H"), ("int32", 4, "i")])
def test_we_read_what_gpt_neox_writes(tmp_path: Path, dtype: str, code: int, fmt: str) -> None:
    """Its builder writes each item's bytes as it comes, and the index at the end; `end_document` after each."""
    bin_, sizes, pointers, doc_idx = b"", [], [], [0]
    for document in DOCUMENTS[dtype]:
        pointers.append(len(bin_))
        bin_ += struct.pack(f"<{len(document)}{fmt}", *document)
        sizes.append(len(document))
        doc_idx.append(len(sizes))
    idx = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, len(sizes), len(doc_idx))
    idx += struct.pack(f"<{len(sizes)}i", *sizes) + struct.pack(f"<{len(pointers)}q", *pointers)
    idx += struct.pack(f"<{len(doc_idx)}q", *doc_idx)
    (tmp_path / "x.bin").write_bytes(bin_)
    (tmp_path / "x.idx").write_bytes(idx)
    assert ours(tmp_path / "x") == DOCUMENTS[dtype]
    write_ours(tmp_path / "ours", DOCUMENTS[dtype], dtype)
    assert (tmp_path / "ours.idx").read_bytes() == idx
    assert (tmp_path / "ours.bin").read_bytes() == bin_
