"""Tokenizing to parts: what is in them, and that workers, shards, chunks in flight and other inputs leave no trace."""

import json
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coca_train.data.corpus_config import load
from coca_train.data.readers import all_inputs, chunks, inputs
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from data_prep.parts import DOCS
from data_prep.selection import digest_of
from data_prep.verbs import tokenize as tokenizing
from data_prep.verbs.tokenize import Encoder, Task, unfinished
from tests.data_prep.tokenizing import (
    bytes_of,
    configured,
    documents,
    ids,
    model,
    overrides,
    records,
    run,
    texts,
    write_inputs,
    write_jsonl,
)

SHARED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def reference(raw: Path) -> Path:
    run(raw, raw.parent / "reference")
    return raw.parent / "reference"


def test_parts_hold_the_documents_with_an_end_token_each(raw: Path, reference: Path):
    tokenizer = Tokenizer(model())
    for number in range(3):
        expected = texts(40, number)
        rows = documents(reference, number)
        assert rows["line"].tolist() == list(range(1, 41))
        assert rows["characters"].tolist() == [len(text) for text in expected]
        assert rows["bytes"].tolist() == [len(text.encode()) for text in expected]
        assert [digest.tobytes() for digest in rows["digest"]] == [digest_of(text) for text in expected]
        assert not any(identity.tobytes().strip(b"\0") for identity in rows["id"])
        assert 0 < rows["split"].sum() < 40
        for split, name in enumerate(("train", "valid")):
            chosen = [text for text, row in zip(expected, rows, strict=True) if row["split"] == split]
            encoded = [[*tokenizer.encode(text), tokenizer.eod] for text in chosen]
            assert ids(reference, name, number).tolist() == list(chain(*encoded))
            assert rows["tokens"][rows["split"] == split].tolist() == [len(row) for row in encoded]


def test_a_part_ends_with_the_chunk_that_fills_it(raw: Path, reference: Path):
    source = configured(raw, reference)
    part_records = records(reference, 1)
    (_, input, _) = inputs("text", source.corpus.sources["text"])
    cut = list(chunks(input, source.corpus.sources["text"], source.work, None))
    ends, size = [], 0
    for chunk in cut:
        size += chunk.n_bytes
        if size >= 4000 or chunk is cut[-1]:
            ends.append(chunk.after)
            size = 0
    assert len(ends) > 2
    assert [record["after"] for record in part_records] == ends
    assert [record["first"] for record in part_records] == [None, *ends[:-1]]
    assert [record["last"] for record in part_records] == [False] * (len(ends) - 1) + [True]
    assert sum(record["counts"]["documents"] for record in part_records) == 40
    assert sum(record["counts"]["characters"] for record in part_records) == sum(map(len, texts(40, 1)))
    assert all(record["input"] == input.identity() for record in part_records)


@pytest.mark.usefixtures("forked_workers")
def test_three_workers_give_the_same_bytes(raw: Path, reference: Path, tmp_path: Path):
    run(raw, tmp_path, work_workers=3)
    assert bytes_of(tmp_path) == bytes_of(reference)


def test_shards_together_give_the_same_bytes(raw: Path, reference: Path, tmp_path: Path):
    config = run(raw, tmp_path, work_shard="1/2")
    assert [input.number for input in unfinished(config, all_inputs(config.corpus.sources))] == [0, 2]
    run(raw, tmp_path, work_shard="0/2")
    assert unfinished(config, all_inputs(config.corpus.sources)) == []
    assert bytes_of(tmp_path) == bytes_of(reference)


def test_shards_count_the_inputs_over_all_sources(raw: Path, tmp_path: Path):
    more = {"corpus_sources.more.files": f"[{raw}/0.jsonl]", "corpus_sources.more.hold_out": "all"}
    words = [f"+{word}" if "more" in word else word for word in overrides(raw, tmp_path, work_shard="0/2", **more)]
    config = load(words)
    tokenizing.tokenize(config, all_inputs(config.corpus.sources))
    assert sorted(path.parent.name + path.name for path in tmp_path.glob("parts/*/*")) == ["more00000", "text00001"]
    assert documents(tmp_path, source="more")["split"].tolist() == [1] * 40
    assert [(i.source, i.number) for i in unfinished(config, all_inputs(config.corpus.sources))] == [
        ("text", 0),
        ("text", 2),
    ]


def test_more_shards_than_inputs_leave_some_with_nothing(raw: Path, tmp_path: Path):
    run(raw, tmp_path, work_shard="5/9")
    assert not (tmp_path / "parts").exists()


def test_a_second_run_changes_nothing(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run(raw, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    monkeypatch.setattr(tokenizing, "chunks", None)  # nothing is read
    run(raw, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == before


def test_what_rules_leave_out_is_counted(tmp_path: Path):
    lines = ["", "  \n", "a", "bc", "d" * 50, "", "def"]
    write_jsonl(tmp_path / "raw" / "a.jsonl", lines)
    more = {"text_filter.min_chars": 2, "text_filter.max_chars": 49}
    run(tmp_path / "raw", tmp_path / "out", **more)
    (record,) = records(tmp_path / "out")
    expected = {"documents": 2, "characters": 5, "bytes": 5, "empty": 3, "short": 1, "long": 1}
    assert record["counts"] == expected
    assert documents(tmp_path / "out")["line"].tolist() == [4, 7]


def of_repositories(files: list[tuple[str | None, str]]) -> list[bytes]:
    return [json.dumps({"text": text, "repository": {"name": name}}).encode() for name, text in files]


def test_files_of_a_repository_are_one_document(tmp_path: Path):
    files = [("a", "one\n"), ("a", "two"), ("b", "three"), (None, "four"), (None, "five"), ("a", "six"), ("a", " ")]
    write_jsonl(tmp_path / "raw" / "a.jsonl", [*of_repositories(files), b'{"text": "seven"}'])
    run(
        tmp_path / "raw",
        tmp_path / "out",
        text_join_field="repository.name",
        work_on_error="skip",
        work_max_reject_share=0.5,
    )
    (record,) = records(tmp_path / "out")
    expected = ["one\n\ntwo\n", "three", "four", "five", "six"]
    assert [row.tobytes() for row in documents(tmp_path / "out")["digest"]] == [digest_of(text) for text in expected]
    assert documents(tmp_path / "out")["line"].tolist() == [1, 3, 4, 5, 6]
    assert {"joined": 1, "empty": 1, "documents": 5}.items() <= record["counts"].items()
    assert [(each["line"], each["code"]) for each in record["rejects"]] == [(8, "E-RAW-06")]
    assert "no field 'repository'" in record["rejects"][0]["reason"]


def test_a_repository_ends_with_its_chunk(tmp_path: Path):
    lines = of_repositories([("a", "x" * 50)] * 6)
    write_jsonl(tmp_path / "raw" / "a.jsonl", lines)
    size = 3 * (len(lines[0]) + 1)
    for workers in (1, 2):
        more = {"work_chunk_bytes": size, "work_workers": workers}
        run(tmp_path / "raw", tmp_path / f"out{workers}", text_join_field="repository.name", **more)
    assert documents(tmp_path / "out1")["line"].tolist() == [1, 4]
    assert documents(tmp_path / "out1").tobytes() == documents(tmp_path / "out2").tobytes()


def test_text_files_of_a_folder_are_one_document(tmp_path: Path):
    for name, text in {"p/a.txt": "one", "p/b.txt": "two", "q/a.txt": "three"}.items():
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_text(text)
    files = f"[{tmp_path}/raw/*/*.txt]"
    run(tmp_path, tmp_path / "out", text_kind="text", text_files=files, text_join_field="folder")
    expected = [digest_of("one\n\ntwo\n"), digest_of("three")]
    assert [row.tobytes() for row in documents(tmp_path / "out")["digest"]] == expected


def test_ids_are_kept_as_digests(tmp_path: Path):
    lines = [json.dumps({"text": "x", "meta": {"id": name}}).encode() for name in ("a", 7)]
    write_jsonl(tmp_path / "raw" / "a.jsonl", lines)
    run(tmp_path / "raw", tmp_path / "out", text_id_field="meta.id")
    assert [row.tobytes() for row in documents(tmp_path / "out")["id"]] == [digest_of("a"), digest_of("7")]


def test_text_folders_are_one_input_and_their_paths_decide_nothing(tmp_path: Path):
    for folder in ("one", "two"):
        for i, text in enumerate(texts(9)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / f"{i}.txt").write_text(text)
        files = f"[{tmp_path}/{folder}/*.txt]"
        run(tmp_path, tmp_path / f"{folder}.out", text_kind="text", text_files=files)
    one, two = (documents(tmp_path / f"{folder}.out") for folder in ("one", "two"))
    assert one.tobytes() == two.tobytes() and len(one) == 9


def test_a_large_vocabulary_takes_int32(tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("data_prep.verbs.tokenize.best_dtype", lambda vocab_size: np.int32)
    run(raw, tmp_path)
    monkeypatch.undo()
    run(raw, tmp_path / "small")
    for split in ("train", "valid"):
        assert ids(tmp_path, split, dtype="<i4").tolist() == ids(tmp_path / "small", split).tolist()


def test_the_tokenizer_must_not_change_under_a_worker(raw: Path, tmp_path: Path):
    config = configured(raw, tmp_path)
    with pytest.raises(DataError, match="E-TOK-11 "):
        Encoder(config, "0" * 64)


class Bar:
    """What is used of tqdm."""

    instances: ClassVar[list["Bar"]] = []
    disable, n, initial, postfix = False, 0, 0, ""

    def __init__(self, total: int | None, **_: object) -> None:
        self.total = total
        self.instances.append(self)

    def update(self, n: int) -> None:
        assert n >= 0
        self.n += n

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.postfix = text

    def close(self) -> None:
        pass


def test_progress_counts_bytes_on_disk_documents_and_what_was_done_before(raw: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tqdm.tqdm", Bar)
    size = sum(path.stat().st_size for path in raw.glob("*.jsonl"))
    run(raw, tmp_path)
    bar = Bar.instances.pop()
    assert (bar.n, bar.total, bar.initial, bar.postfix) == (size, size, 0, "120 documents")
    for path in sorted((tmp_path / "parts" / "text" / "00002").glob("0000[1-9]*")):
        path.unlink()
    run(raw, tmp_path)
    bar = Bar.instances.pop()
    done = size - (raw / "2.jsonl").stat().st_size + records(tmp_path, 2)[0]["after"]["byte"]
    assert (bar.n, bar.total) == (size, size) and done <= bar.initial < done + 1100


def test_progress_of_inputs_of_unknown_size_counts_their_text(raw: Path, tmp_path: Path, monkeypatch):
    write_jsonl(tmp_path / "hub" / "train.jsonl", texts(20))
    config = configured(raw, tmp_path, text_kind="hub", text_hub=tmp_path / "hub", text_files="[]")
    every = all_inputs(config.corpus.sources)
    monkeypatch.setattr("tqdm.tqdm", Bar)
    tokenizing.tokenize(config, every)
    bar = Bar.instances.pop()
    assert (bar.total, bar.postfix) == (None, "20 documents")
    assert len("".join(texts(20))) <= bar.n <= len("".join(texts(20))) + 100
    assert len(documents(tmp_path)) == 20


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)))
@SHARED
def test_decoded_tokens_are_the_text(tmp_path: Path, drawn: list[str]):
    drawn = [text for text in drawn if not text.isspace()] + ["end"]
    path = write_jsonl(tmp_path / "raw" / "a.jsonl", drawn)
    config = configured(path.parent, tmp_path / "out", text_hold_out="none", work_chunk_bytes=100)
    source, tokenizer = config.corpus.sources["text"], Tokenizer(model())
    encoder = Encoder(config, tokenizer.digest)
    decoded = []
    for chunk in chunks(inputs("text", source)[0], source, config.work, None):
        encoded = encoder(Task("text", str(path), chunk))
        assert encoded.documents.dtype == DOCS and not encoded.rejects
        ends = np.cumsum(encoded.documents["tokens"])[:-1]
        for tokens in np.split(encoded.tokens[0], ends):
            assert tokens[-1] == tokenizer.eod
            decoded.append(tokenizer.decode(tokens[:-1].tolist()))
    assert decoded == drawn


@given(st.data())
@SHARED
def test_documents_never_move_between_the_splits(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """Whatever is added, in whatever order, in whatever files: what was held out is, what was trained on is."""
    folder = tmp_path_factory.mktemp("split")
    old, new = (data.draw(st.lists(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1))) for _ in "ab")
    layouts = {"first": [old or ["x"]]}
    everything = data.draw(st.permutations([*old, *new, "x"]))
    cut = data.draw(st.integers(0, len(everything) - 1))
    layouts["second"] = [part for part in (everything[:cut], everything[cut:]) if part]
    share = data.draw(st.sampled_from([0.1, 0.5, 0.9]))
    splits: dict[str, dict[bytes, int]] = {}
    for name, files in layouts.items():
        for number, lines in enumerate(files):
            write_jsonl(folder / name / f"{number}.jsonl", lines)
        run(folder / name, folder / f"{name}.out", corpus_valid_share=share)
        rows = np.concatenate([documents(folder / f"{name}.out", number) for number in range(len(files))])
        splits[name] = dict(zip([digest.tobytes() for digest in rows["digest"]], rows["split"].tolist(), strict=True))
    assert splits["first"].items() <= splits["second"].items()
