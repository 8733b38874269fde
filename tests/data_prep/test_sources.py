"""The list of sources: what is there, what is missing, how to get it; without the network."""

import gzip
import importlib.util
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from data_prep import manifest
from data_prep.__main__ import main
from data_prep.verbs.sources import describe_place, look
from tests.data.vocabularies import trained
from tests.data_prep.support_corpus import Made, configuration, write

HUB = {"kind": "hub", "files": [], "hub_config": "20231101.en"}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def raw(tmp_path: Path) -> dict[str, Made]:
    """Sources of every kind; `wiki` is missing."""
    line = b'{"text": "some words"}\n'
    (tmp_path / "raw" / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "raw" / "a.jsonl").write_bytes(line)
    (tmp_path / "raw" / "b.jsonl.gz").write_bytes(gzip.compress(line))
    for name in ("notes/one.txt", "notes/deep/two.txt"):
        (tmp_path / "raw" / name).write_text("some words")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    (tmp_path / "hub" / "data" / "x.parquet").write_bytes(b"12345")
    os.symlink(tmp_path / "nowhere", tmp_path / "hub" / "data" / "broken")
    settings: dict[str, dict[str, Any]] = {
        "jsonl": {"files": [f"{tmp_path}/raw/*.jsonl", f"{tmp_path}/raw/b.jsonl.gz"], "licence": "MIT | others " * 9},
        "notes": {"kind": "text", "files": [f"{tmp_path}/raw/notes/**/*.txt"], "hold_out": "all"},
        "wiki": {"files": [f"{tmp_path}/raw/wiki-*.jsonl.gz"], "about": "From dumps.example,\n  then `extract`."},
        "hub": HUB | {"hub": "someone/data", "hold_out": "none"},
        "folder": HUB | {"hub": f"{tmp_path}/hub", "hub_config": None},
    }
    return {name: Made(settings=one) for name, one in settings.items()}


def test_what_is_found(tmp_path: Path) -> None:
    config = configuration(tmp_path, raw(tmp_path))
    by_source = {one.source: (one.files, one.size, one.state) for one in look(config.corpus)}
    packed = (tmp_path / "raw" / "b.jsonl.gz").stat().st_size
    assert by_source == {
        "jsonl": (2, 23 + packed, "ready"),
        "notes": (2, 20, "ready"),
        "wiki": (0, 0, "missing"),
        "hub": (None, None, "streamed"),
        "folder": (1, 5, "ready"),
    }
    problems = {one.source: one.problem for one in look(config.corpus)}
    assert problems.pop("wiki").startswith("E-RAW-01") and not any(problems.values())
    assert describe_place(config.corpus.sources["hub"]) == "someone/data, 20231101.en, train"
    assert describe_place(config.corpus.sources["folder"]) == f"{tmp_path}/hub, train"


def test_without_the_library_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(tmp_path, raw(tmp_path))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "datasets" else find(name, *a))
    by_source = {one.source: one for one in look(config.corpus)}
    for name in ("hub", "folder"):
        assert by_source[name].state == "missing"
        assert re.match(r"E-RAW-25 .*`datasets` .* Fix: pip install", by_source[name].problem)
    assert by_source["jsonl"].state == "ready"


def test_what_is_made_already(tmp_path: Path) -> None:
    sources = raw(tmp_path)
    config = configuration(tmp_path, sources)
    (tmp_path / "tiny" / "parts" / "notes").mkdir(parents=True)
    states = {one.source: one.state for one in look(config.corpus)}
    assert states["notes"] == "begun" and states["jsonl"] == "ready"
    (tmp_path / "tiny" / "parts" / "jsonl").mkdir()
    trained(tmp_path / "tiny" / "tokenizer.model")
    write(tmp_path / "tiny", {name: sources[name] for name in ("jsonl", "wiki", "hub")})
    by_source = {one.source: one for one in look(config.corpus)}
    assert {name: one.state for name, one in by_source.items()} == {
        **{"jsonl": "tokenized", "notes": "begun", "wiki": "tokenized", "hub": "tokenized", "folder": "ready"},
    }
    assert by_source["wiki"].problem.startswith("E-RAW-01")  # the raw files are gone by now: said, but no fault


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configuration(tmp_path, raw(tmp_path))
    arguments = ["sources", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    table, _, rest = out.partition("\n\n")
    assert max(map(len, table.splitlines())) <= 120
    rows = {line.split()[0]: line for line in table.splitlines()}
    assert re.match(r"jsonl +jsonl +text +as fits +ready +MIT \| others .*… +2 +\d+ B$", rows["jsonl"])
    assert re.match(r"hub +hub +text +none +streamed +unknown +\? +\?$", rows["hub"])
    assert re.match(r"notes +text +text +all +ready", rows["notes"])
    assert "wiki: From dumps.example, then `extract`." in rest
    assert re.search(r"^  E-RAW-01 .*wiki-", rest, re.MULTILINE)
    assert rest.rstrip().endswith("5 sources; missing: wiki")
    (tmp_path / "raw" / "wiki-1.jsonl.gz").write_bytes(gzip.compress(b"{}"))
    assert main(arguments) == 0
    assert capsys.readouterr().out.rstrip().endswith("5 sources; missing: none")


def test_a_folder_that_holds_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configuration(tmp_path, raw(tmp_path))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "manifest.json").write_bytes(manifest.dump({"kind": "other", "format": 1}))
    assert main(["sources", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]) == 3
    assert capsys.readouterr().err.startswith("E-PREP-02")
