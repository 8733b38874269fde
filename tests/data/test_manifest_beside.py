"""What data_prep says of the data beside it is read, or said to be damaged; another tool's manifest says nothing."""

import json
from pathlib import Path

import pytest

from coca_train.data.dataset import IndexedDataset
from coca_train.data.mixture import Mixture
from coca_train.data.provenance import Origins, read_manifest
from coca_train.hub import card
from coca_train.runtime.errors import DataError
from tests.data.test_provenance import give_origins

WHOLE = {"kind": "corpus", "tokenizer": {"sha256": "0" * 64}, "sources": {"text": {"licence": "CC0", "inputs": []}}}
DAMAGED = {
    "cut": json.dumps(WHOLE)[:-9],
    "empty": "",
    "zeros": "\0" * 64,
    "tokenizer": json.dumps(WHOLE | {"tokenizer": {}}),
    "sources": json.dumps(WHOLE | {"sources": [1]}),
    "inputs": json.dumps(WHOLE | {"sources": {"text": {"inputs": [{}]}}}),
    "a shard": json.dumps(WHOLE | {"sources": {"text": {"inputs": [{"hub": "a", "name": "b"}]}}}),
    "licences": json.dumps(WHOLE | {"licences": "MIT"}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_told_by_every_reader(data_config, tmp_path: Path, damage: str) -> None:
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
    assert card._licences(str(tmp_path / "text")) == "the data have no manifest"


def test_licences(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(WHOLE | {"licences": {"code": "PSF"}}))
    assert card._licences(str(tmp_path / "text")) == "CC0; code: PSF"
