"""Data sets through `datasets`, offline: local folders, and what happens when the hub cannot be reached."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coca_train.config.corpus_schema import CorpusSourceConfig
from coca_train.data.readers import chunks, documents, hub, inputs
from coca_train.data.readers.base import Document
from tests.data_prep.reading import complaint, line, parsed, rejects, source_of, texts, work_of

pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    hub._load.cache_clear()


def of(folder: Path | str, **more: Any) -> CorpusSourceConfig:
    return source_of(kind="hub", hub=str(folder), **more)


@pytest.fixture
def tables(tmp_path: Path) -> CorpusSourceConfig:
    """Three shards of ten rows."""
    (tmp_path / "set").mkdir()
    for shard in range(3):
        rows = [f"text {shard} {row} é" for row in range(10)]
        table = pa.table({"text": rows, "meta": [{"lang": "en"}] * 10, "id": list(range(10)), "other": rows})
        pq.write_table(table, tmp_path / "set" / f"train-{shard:05d}-of-00003.parquet", row_group_size=4)
    return of(tmp_path / "set", id_field="id")


def test_one_input_a_shard(tables: CorpusSourceConfig) -> None:
    listing = inputs("mine", tables)
    assert [(i.source, i.number, i.path, i.size) for i in listing] == [
        ("mine", shard, f"{tables.hub}[train] shard {shard}/3", 0) for shard in range(3)
    ]
    for shard, one in enumerate(listing):
        items = parsed(chunks(one, tables, work_of(), None), tables)
        assert items == [
            Document(row + 1, f"text {shard} {row} é", str(row), {"text": f"text {shard} {row} é", "id": row})
            for row in range(10)
        ]


@pytest.mark.parametrize("chunk_bytes", [1, 40, 1 << 20])
def test_from_any_cursor(tables: CorpusSourceConfig, chunk_bytes: int) -> None:
    one, work = inputs("mine", tables)[1], work_of(chunk_bytes=chunk_bytes)
    whole = list(chunks(one, tables, work, None))
    assert [chunk.first for chunk in whole] == [1, *(chunk.after["row"] for chunk in whole)][:-1]
    for i, chunk in enumerate(whole):
        assert list(chunks(one, tables, work, json.loads(json.dumps(chunk.after)))) == whole[i + 1 :]


def test_identity_tells_when_the_files_change(tables: CorpusSourceConfig, tmp_path: Path) -> None:
    first = [one.identity() for one in inputs("mine", tables)]
    assert json.loads(json.dumps(first)) == first and len({json.dumps(one) for one in first}) == 3
    assert {key: first[1][key] for key in ("hub", "config", "split", "shard", "shards")} == {
        "hub": tables.hub,
        "config": None,
        "split": "train",
        "shard": 1,
        "shards": 3,
    }
    hub._load.cache_clear()
    assert [one.identity() for one in inputs("mine", tables)] == first
    pq.write_table(pa.table({"text": ["new"], "id": [1]}), tmp_path / "set" / "train-00000-of-00003.parquet")
    hub._load.cache_clear()
    assert inputs("mine", tables)[0].identity() != first[0]


def test_only_some_of_its_files(tables: CorpusSourceConfig, tmp_path: Path) -> None:
    everything = inputs("mine", tables)[0].identity()
    for split, patterns, shards in (
        ("train", ["*-00001-*"], ["1"]),
        ("train", ["*-00002-*", "*-00000-*"], ["2", "0"]),
        ("mine", ["train-0000[12]*"], ["1", "2"]),
    ):
        some = of(str(tables.hub), hub_split=split, hub_files=patterns)
        listing = inputs("mine", some)
        first = [parsed(chunks(one, some, work_of(), None), some)[0] for one in listing]
        assert sorted(text.split()[1] for text in texts(first)) == sorted(shards)
        assert listing[0].path.startswith(f"{tables.hub}[{split}] shard 0/")
        assert listing[0].identity() != everything and listing[0].identity()["files"] == patterns
    assert "E-RAW-24" in complaint(of(str(tables.hub), hub_files=["*.csv"]))
    assert everything.keys() == {"hub", "config", "split", "shard", "shards", "fingerprint"}  # as before hub_files


def test_jsonl_folder_and_bad_records(tmp_path: Path) -> None:
    lines = [line("a", n=1), line(None, n=2), line("b\0", n=3), line("x" * 200, n=4), line("c", n=5)]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_bytes(b"".join(lines))
    source = of(tmp_path / "set")
    (one,) = inputs("mine", source)
    items = parsed(chunks(one, source, work_of(), None), source, work_of(max_line_bytes=100))
    assert texts(items) == ["a", "c"]
    assert [(r.line, r.code) for r in rejects(items)] == [(2, "E-RAW-06"), (3, "E-RAW-12"), (4, "E-RAW-13")]
    assert complaint(source).startswith(f"E-RAW-06 {tmp_path}/set[train] shard 0/1:2: 'text' is null")


def test_damaged_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_bytes(line("a") * 3 + b"{oops\n")
    text = complaint(of(tmp_path / "set"))
    assert text.startswith(f"E-RAW-24 {tmp_path}/set[train] shard 0/1:1: ") and "oops" not in text


def test_missing_fields(tables: CorpusSourceConfig) -> None:
    for more, name in (
        ({"text_field": "body"}, "body"),
        ({"text_field": "body.x"}, "body.x"),
        ({"id_field": "key"}, "key"),
    ):
        text = complaint(of(str(tables.hub), **more))
        assert text.startswith(f"E-RAW-06 {tables.hub}[train] shard 0/3: no field '{name}' (its")
    text = complaint(of(str(tables.hub), text_field="meta.text"))
    assert text.startswith(f"E-RAW-06 {tables.hub}[train] shard 0/3:1: no field 'meta.text'")


def test_empty(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("text,id\n")
    assert complaint(of(tmp_path / "set")).startswith(f"E-RAW-03 {tmp_path}/set[train] shard 0/1: ")
    assert complaint(source_of(kind="hub")).startswith("E-RAW-01 mine: hub ")


def test_cannot_be_had(tables: CorpusSourceConfig, tmp_path: Path) -> None:
    cases = [
        (of("no/such-set"), "'no/such-set'"),
        (of(tmp_path / "none"), "data file"),
        (of(str(tables.hub), hub_config="other"), "'other'"),
        (of(str(tables.hub), hub_split="tset"), ": tset"),
        (of("bad name\x1b[2J\n"), ""),
    ]
    for source, words in cases:
        text = complaint(source)
        assert text.startswith("E-RAW-24 ") and words in text and "made by a test. Fix: " in text


@pytest.mark.parametrize("given", ["set", "set/", "set/set.py"])
def test_code_of_a_data_set_is_never_run(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loading script is named; without it the folder is read."""
    folder, canary = tmp_path / "set", tmp_path / "canary"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(line("a"))
    (folder / "set.py").write_text(f"open({str(canary)!r}, 'w')")
    (folder / "sitecustomize.py").write_text(f"open({str(canary)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert complaint(of(given)).startswith("E-RAW-32 set")
    (folder / "set.py").unlink()
    if given != "set/set.py":
        (one,) = inputs("mine", of(given))
        assert texts(parsed(chunks(one, of(given), work_of(), None), of(given))) == ["a"]
    assert not canary.exists()


def test_workers_need_no_datasets(tables: CorpusSourceConfig) -> None:
    """Neither the readers nor a worker's part of them import `datasets`, pyarrow or torch before they are needed."""
    script = """
import sys
from coca_train.data.readers import documents
from coca_train.data.readers.base import Chunk
from tests.data_prep.reading import WORK, source_of
chunk = Chunk(1, 1, 0, [{"text": "a"}], {"row": 2})
assert [d.text for d in documents("x", source_of(kind="hub"), WORK, chunk)] == ["a"]
print(sorted({"datasets", "pyarrow", "torch", "zstandard"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
    assert callable(documents)
