"""Where a sample comes from: documents, the line of the raw file, and what the manifest next to the data says."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from coca_train.data.dataset import IndexedDataset
from coca_train.data.mixture import Mixture
from coca_train.data.provenance import Origin, Origins, read_manifest
from coca_train.hub import card
from coca_train.runtime.errors import DataError

ORIGINS = np.dtype([("input", "<u4"), ("line", "<u8"), ("digest", "V16")])
HUB = {"hub": "someone/books", "config": None, "split": "train", "fingerprint": "0", "shard": 3, "shards": 8}


def manifest(sources: dict) -> str:
    """manifest.json of data_prep, as far as it is read here."""
    return json.dumps({"kind": "corpus", "tokenizer": {"sha256": "0" * 64}, "sources": sources})


def give_origins(folder: Path, name: str) -> int:
    """Document d of a dataset is line 10 d of input d % 3. Number of documents."""
    n = IndexedDataset(folder / name).n_documents
    rows = np.zeros(n, ORIGINS)
    rows["input"], rows["line"] = np.arange(n) % 3, 10 * np.arange(n)
    np.save(folder / f"{name}.origins.npy", rows, allow_pickle=False)
    return n


@pytest.fixture
def folder(data_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("coca_train.data.mixture.check_tokenizer", lambda *_: None)  # the ids here are of none
    data_config()
    for end in (".bin", ".idx"):
        (tmp_path / f"text{end}").rename(tmp_path / f"text_train{end}")
    inputs = [{"name": "a.jsonl.gz"}, {"name": "raw/*.txt", "files": 3}, HUB]
    (tmp_path / "manifest.json").write_text(manifest({"text": {"inputs": inputs}}), encoding="utf-8")
    return tmp_path


def test_parts_are_whole_and_name_their_lines(data_config, folder: Path) -> None:
    n = give_origins(folder, "text_train")
    mixture = Mixture(data_config({"text_train": 1.0}), 100)
    bounds = mixture.sources[0].dataset.document_bounds()
    for i in range(20):
        p = mixture.provenance(i)
        assert (p.source, p.epoch) == ("text_train", 0)
        at, token = 0, 100 * p.window
        for part in p.parts:
            assert (part.at, part.token_start) == (at, token)
            assert (part.document_start, part.document_stop) == (bounds[part.document], bounds[part.document + 1])
            assert part.document_start <= token < part.token_stop <= part.document_stop
            at, token = at + part.token_stop - token, part.token_stop
            names = ("a.jsonl.gz:", "raw/*.txt, file ", "someone/books[train] shard 3, row ")
            assert str(part.origin) == f"{names[part.document % 3]}{10 * part.document}"
        assert (at, token) == (101, 100 * p.window + 101)
        assert len(p.parts) >= 3 and p.parts[-1].document < n


def test_a_dataset_without_origins_has_none(data_config, folder: Path) -> None:
    mixture = Mixture(data_config({"text_train": 1.0}), 100)
    assert {part.origin for i in range(8) for part in mixture.provenance(i).parts} == {None}


@pytest.mark.parametrize("written", [None, manifest({}), '{"sources": {"text": {"inputs": [{}]}}}', "[]"])
def test_without_names_the_number_of_the_input_is_given(folder: Path, written: str | None) -> None:
    give_origins(folder, "text_train")
    (folder / "manifest.json").unlink()
    if written is not None:
        (folder / "manifest.json").write_text(written, encoding="utf-8")
    assert Origins(IndexedDataset(folder / "text_train")).find(4) == Origin("input 1", 40)


def test_an_input_that_the_manifest_does_not_have(folder: Path) -> None:
    give_origins(folder, "text_train")
    (folder / "manifest.json").write_text(manifest({"text": {"inputs": [HUB, HUB]}}), encoding="utf-8")
    origins = Origins(IndexedDataset(folder / "text_train"))
    assert origins.find(1) == Origin("someone/books[train] shard 3", 10, ", row ")
    with pytest.raises(DataError, match=r"E-TOK-22 .*origins.npy: .*input 2; .*manifest.json has 2"):
        origins.find(2)


def damage_origins(folder: Path, damage: str) -> None:
    n, path = IndexedDataset(folder / "text_train").n_documents, folder / "text_train.origins.npy"
    data = path.read_bytes()
    if damage == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif damage == "short":
        np.save(path, np.zeros(n - 1, ORIGINS), allow_pickle=False)
    elif damage == "other":
        np.save(path, np.zeros(n), allow_pickle=False)
    elif damage == "pickle":
        np.save(path, np.array([Attack()] * n), allow_pickle=True)
    else:
        changed = {
            "empty": b"",
            "cut": data[:-1],
            "zeros in the header": data[:20] + bytes(100) + data[120:],
            "spaces in the header": data[:20] + b" " * 100 + data[120:],
        }
        path.write_bytes(changed[damage])


class Attack:
    def __reduce__(self) -> tuple:
        return Path.touch, (Path("was_run"),)


@pytest.mark.parametrize(
    "damage",
    ["pipe", "short", "other", "pickle", "empty", "cut", "zeros in the header", "spaces in the header"],
)
def test_origins_of_another_dataset_are_refused(folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    n = give_origins(folder, "text_train")
    damage_origins(folder, damage)
    with pytest.raises(DataError, match=rf"E-TOK-22 .*text_train.origins.npy: .* {n} documents .*Fix:"):
        Origins(IndexedDataset(folder / "text_train"))
    assert not Path("was_run").exists()


def test_rows_that_are_cut_while_they_are_read(folder: Path) -> None:
    """A mapped file would end the process without a word."""
    give_origins(folder, "text_train")
    origins = Origins(IndexedDataset(folder / "text_train"))
    assert origins.find(4) == Origin("raw/*.txt", 40, ", file ", 3)
    os.truncate(folder / "text_train.origins.npy", 200)
    with pytest.raises(DataError, match=r"E-TOK-22 .*origins.npy"):
        origins.find(4)


WHOLE = {"kind": "corpus", "tokenizer": {"sha256": "0" * 64}, "sources": {"text": {"licence": "CC0", "inputs": []}}}
DAMAGED = {
    "cut": json.dumps(WHOLE)[:-9],
    "empty": "",
    "zeros": "\0" * 64,
    "tokenizer": json.dumps(WHOLE | {"tokenizer": {}}),
    "sources": json.dumps(WHOLE | {"sources": [1]}),
    "inputs": json.dumps(WHOLE | {"sources": {"text": {"inputs": [{}]}}}),
    "a shard": json.dumps(WHOLE | {"sources": {"text": {"inputs": [{"hub": "a", "name": "b"}]}}}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_reported_by_every_reader(data_config, tmp_path: Path, damage: str) -> None:
    config = data_config()
    give_origins(tmp_path, "text")
    (tmp_path / "manifest.json").write_text(DAMAGED[damage])
    for read in (
        lambda: read_manifest(tmp_path / "text"),
        lambda: Mixture(config, 16),
        lambda: Origins(IndexedDataset(tmp_path / "text")),
    ):
        with pytest.raises(DataError, match=r"E-TOK-08 .*manifest.json"):
            read()
    assert "damaged" in card._licences(str(tmp_path / "text"))


def test_a_manifest_that_may_not_be_read(data_config, tmp_path: Path) -> None:
    config = data_config()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DataError, match=r"E-TOK-08 .*manifest.json"):
        Mixture(config, 16)


@pytest.mark.parametrize("other", [None, "[]", "{}", '{"kind": "image", "tokenizer": 3}', '"kind"'])
def test_of_another_tool_nothing_is_known(data_config, tmp_path: Path, other: str | None) -> None:
    if other is not None:
        (tmp_path / "manifest.json").write_text(other)
    Mixture(data_config(), 16)
    assert read_manifest(tmp_path / "text") is None
    assert "no manifest" in card._licences(str(tmp_path / "text"))


def test_licences(tmp_path: Path) -> None:
    sources = {name: {"licence": licence, "inputs": []} for name, licence in (("a", "CC0"), ("b", "PSF"), ("c", "CC0"))}
    (tmp_path / "manifest.json").write_text(json.dumps(WHOLE | {"sources": sources}))
    assert card._licences(str(tmp_path / "text")) == "CC0; PSF"
