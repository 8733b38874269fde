"""Parts on disk: going on after a kill, and everything that may have changed meanwhile."""

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from coca_train.data.readers import all_inputs
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, StorageError
from data_prep import parts
from data_prep.verbs.tokenize import shared_corpus_lock, tokenize, unfinished
from tests.cases import slow_unless
from tests.data.vocabularies import trained
from tests.data_prep.tokenizing import (
    bytes_of,
    configured,
    documents,
    forked,
    message,
    model,
    records,
    run,
    texts,
    write_inputs,
    write_jsonl,
)
from tests.faults import inject


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"), n_inputs=2, n_documents=25)


@pytest.fixture(scope="module")
def reference(raw: Path) -> dict[str, str]:
    run(raw, raw.parent / "reference")
    digests = bytes_of(raw.parent / "reference")
    assert sum(name.endswith(".json") for name in digests) >= 4
    return digests


def operations(raw: Path, dir: Path) -> list[str]:
    """The file operations of an undisturbed run below dir."""

    def log() -> None:
        done = inject.install(str(dir))
        run(raw, dir)
        (raw.parent / "operations.json").write_text(json.dumps(done))

    assert forked(log) == 0
    return json.loads((raw.parent / "operations.json").read_text())


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["kill", "kill_after"])
def test_killed_at_any_file_operation_the_same_command_ends_with_the_same_bytes(raw, tmp_path, reference, mode, step):
    n_operations = len(operations(raw, tmp_path / "log"))
    assert n_operations > 50
    for at in range(0, n_operations, step):
        place = tmp_path / f"{at}"

        def die(at: int = at, place: Path = place) -> None:
            inject.install(str(place), at, mode)
            run(raw, place)

        assert forked(die) == -signal.SIGKILL, at
        run(raw, place)
        assert bytes_of(place) == reference, at
        shutil.rmtree(place)


def test_the_json_is_the_last_name_of_a_part(raw, tmp_path):
    names = [word.removeprefix("rename ") for word in operations(raw, tmp_path) if word.startswith("rename ")]
    assert len(names) % 4 == 0
    for i in range(0, len(names), 4):
        assert [name.endswith(".json.tmp") for name in names[i : i + 4]] == [False, False, False, True]


def test_finished_parts_are_not_made_again(raw, tmp_path, reference, monkeypatch):
    class Killed(BaseException):
        pass

    commit, done = parts.Part.commit, []

    def dying(part, *known):
        if len(done) == 2:
            raise Killed
        done.append(part.stem.name)
        commit(part, *known)

    monkeypatch.setattr(parts.Part, "commit", dying)
    with pytest.raises(Killed):
        run(raw, tmp_path)
    monkeypatch.undo()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("0000*.*")}
    assert len(before) == 2 * 4 and not list(tmp_path.rglob("*.tmp"))
    run(raw, tmp_path)
    assert all(path.stat().st_mtime_ns == mtime for path, mtime in before.items())
    assert bytes_of(tmp_path) == reference


@pytest.mark.parametrize(
    ("at", "kind"),
    slow_unless([(0, "eio"), (2, "enospc"), (9, "eio"), (13, "enospc"), (16, "eio"), (30, "enospc")],
                product([0, 2, 9, 13, 16, 30], ["enospc", "eio"])),
)  # fmt: skip
def test_a_full_or_failing_disk_is_reported_and_leaves_no_harm(raw, tmp_path, reference, at, kind):
    place = tmp_path / "out"

    def full() -> None:
        inject.install(str(place), at, kind)
        with pytest.raises(StorageError) as caught:
            run(raw, place)
        assert str(caught.value).startswith("E-IO-01") and "Fix: free space" in str(caught.value)
        os._exit(caught.value.exit_code)

    assert forked(full) == 7
    run(raw, place)
    assert bytes_of(place) == reference


def test_a_write_that_fails_is_reported(raw, tmp_path, reference):
    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
        with pytest.raises(StorageError, match=r"E-IO-01 .*parts/text/00000"):
            run(raw, tmp_path)
        os._exit(7)

    assert forked(full) == 7
    assert not [path for path in tmp_path.rglob("*.*") if "lock" not in path.name]
    run(raw, tmp_path)
    assert bytes_of(tmp_path) == reference


def test_a_read_only_folder_is_reported(raw, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StorageError, match=r"E-IO-01 .*Read-only file system"):
        run(raw, tmp_path / "out")


def test_two_writers_are_distinguished(raw, tmp_path):
    config = configured(raw, tmp_path)
    (_, second) = all_inputs(config.corpus.sources)
    other = parts.InputParts(config, second, parts.settings(config, "text", Tokenizer(model())))
    assert "E-TOK-15" in (text := message(raw, tmp_path)) and "1.jsonl: " in text
    assert len(records(tmp_path, 0)) > 1, "what came before it is finished"
    other.close()
    run(raw, tmp_path)


def test_nothing_is_tokenized_while_a_merge_is_at_work(raw, tmp_path):
    config = configured(raw, tmp_path)
    with (
        shared_corpus_lock(config),
        shared_corpus_lock(config),
        open(tmp_path / ".merge.lock", "ab") as merge,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(merge, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with open(tmp_path / ".merge.lock", "ab") as merge:
        fcntl.flock(merge, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(DataError, match="E-TOK-15 "), shared_corpus_lock(config):
            pass


def test_another_tokenizer_is_refused(raw, tmp_path):
    mine = tmp_path / "tokenizer.model"
    shutil.copy(model(), mine)
    run(raw, tmp_path, tokenizer_path=mine)
    before = bytes_of(tmp_path / "parts")
    trained(mine, 530)
    text = message(raw, tmp_path, tokenizer_path=mine)
    assert "E-TOK-11" in text and Tokenizer(mine).digest[:16] in text and Tokenizer(model()).digest[:16] in text
    assert bytes_of(tmp_path / "parts") == before


@pytest.mark.parametrize(
    ("more", "phrase"),
    [
        ({"text_filter.min_chars": 3}, "source.filter.min_chars was 1, is 3"),
        ({"corpus_valid_share": 0.25}, "valid_share was 0.2, is 0.25"),
        ({"text_hold_out": "none"}, "source.hold_out was 'hash', is 'none'"),
        ({"text_id_field": "text"}, "source.id_field was None, is 'text'"),
        ({"work_chunk_bytes": 1001}, "chunk_bytes was 1000, is 1001"),
        ({"work_part_bytes": 4001}, "part_bytes was 4000, is 4001"),
        ({"work_max_line_bytes": 10**6}, "max_line_bytes was"),
    ],
)
def test_other_settings_are_refused(raw, tmp_path, more, phrase):
    run(raw, tmp_path)
    text = message(raw, tmp_path, **more)
    assert "E-TOK-18" in text and phrase in text


@pytest.mark.usefixtures("forked_workers")
def test_what_decides_nothing_may_change(raw, tmp_path, reference):
    config = configured(raw, tmp_path)
    tokenize(config, all_inputs(config.corpus.sources))
    (tmp_path / "parts" / "text" / "00001" / "00001.json").unlink()
    source = replace(config.corpus.sources["text"], about="x", licence="y", group="z", weight=0.5)
    corpus = replace(config.corpus, sources={"text": source}, name="other", exact_duplicates="keep")
    work = replace(config.work, workers=2, max_reject_share=0.9, on_error="skip")
    changed = replace(config, corpus=corpus, work=work)
    tokenize(changed, all_inputs(changed.corpus.sources))
    assert bytes_of(tmp_path) == reference


def test_a_changed_input_is_refused(tmp_path):
    raw = write_inputs(tmp_path, n_inputs=1)
    run(raw, tmp_path / "out")
    (tmp_path / "out" / "parts" / "text" / "00000" / "00002.json").unlink()
    write_jsonl(raw / "0.jsonl", [*texts(40), "more"])
    text = message(raw, tmp_path / "out")
    assert "E-RAW-19" in text and "0.jsonl: " in text and "bytes was" in text


def test_an_input_that_changed_and_looks_the_same_is_refused_for_its_time(tmp_path):
    raw = write_inputs(tmp_path, n_inputs=1)
    run(raw, tmp_path / "out")
    os.utime(raw / "0.jsonl", ns=(1, 1))
    assert "mtime_ns was" in message(raw, tmp_path / "out")


def test_files_added_in_between_are_reported(tmp_path):
    raw = write_inputs(tmp_path, n_inputs=2)
    run(raw, tmp_path / "out")
    write_jsonl(raw / "00.jsonl", ["new"])
    text = message(raw, tmp_path / "out")
    assert "E-TOK-18" in text and "'1.jsonl'" in text and "00.jsonl" in text


def test_files_added_at_the_end_are_tokenized(tmp_path):
    raw = write_inputs(tmp_path, n_inputs=2)
    run(raw, tmp_path / "out")
    write_jsonl(raw / "9.jsonl", ["new"])
    run(raw, tmp_path / "out")
    assert len(documents(tmp_path / "out", 2)) == 1


@pytest.mark.parametrize(
    ("damage", "phrase"),
    [
        (lambda folder: (folder / "00001.train.bin").write_bytes(b"\0"), "00001.train.bin is 1 bytes"),
        (lambda folder: (folder / "00001.valid.bin").unlink(), "00001.valid.bin is missing"),
        (lambda folder: (folder / "00001.json").write_text("{"), "(JSONDecodeError)"),
        (lambda folder: (folder / "00001.json").write_text('{"format": 9}'), "(ValueError)"),
        (lambda folder: (folder / "00001.json").write_text("[]"), "(TypeError)"),
        (lambda folder: _edit(folder / "00001.json", first=None), "begins at None"),
    ],
)
def test_damaged_parts_are_reported(raw, tmp_path, damage, phrase):
    run(raw, tmp_path)
    damage(tmp_path / "parts" / "text" / "00000")
    text = message(raw, tmp_path)
    assert "E-TOK-08" in text and phrase in text


def _edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_foreign_files_among_parts_are_left_alone(raw, tmp_path, reference):
    folder = tmp_path / "parts" / "text" / "00000"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "00000.valid.bin").write_bytes(b"left by a kill")
    (folder / "00007.train.bin.tmp").write_bytes(b"left by a kill")
    (folder / "00099.train.bin").write_bytes(b"of a part whose .json was removed")
    config = run(raw, tmp_path)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").rename(tmp_path / "lock")
    assert bytes_of(tmp_path) == reference
    assert unfinished(config, all_inputs(config.corpus.sources)) == []
