"""Merging parts: what becomes of each document, byte for byte, and nothing half-published however it ends."""

import fcntl
import gc
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.config.corpus_schema import PrepareConfig
from coca_train.data import dataset
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, StorageError
from data_prep import collect, concatenate, duplicates
from data_prep import manifest as manifests
from data_prep.verbs.merge import merge
from tests.data.vocabularies import trained
from tests.data_prep.support_parts import (
    Doc,
    change_record,
    configuration,
    contents,
    is_held_out,
    text_digest,
    write_parts,
)
from tests.faults import inject

Corpus = dict[str, list[list[list[Doc]]]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("tokenizer") / "tokenizer.model")


def words(begin: int, end: int, lines: int = 3) -> list[Doc]:
    return [Doc(f"document {i}: " + "the cat sat\n" * (i % lines + 1)) for i in range(begin, end)]


SMALL: Corpus = {
    "books": [[words(0, 6), words(6, 9)], [words(20, 31)]],
    "code": [[[*words(40, 44), words(2, 3)[0], *words(44, 49)]]],
}


@pytest.fixture
def small(tmp_path: Path, tokenizer: Path) -> PrepareConfig:
    config = configuration(tmp_path, tokenizer, books={}, code={"group": "code", "licence": "MIT", "about": "programs"})
    write_parts(config, SMALL, {"short": 2})
    return config


def texts(config: PrepareConfig, name: str, tokenizer: Path) -> list[str]:
    data, model = IndexedDataset(Path(config.corpus.dir) / name), Tokenizer(tokenizer)
    documents = [data.document(i).tolist() for i in range(data.n_documents)]
    assert all(ids[-1] == model.eod and model.eod not in ids[:-1] for ids in documents)
    return [model.decode(ids[:-1]) for ids in documents]


def test_what_is_made(small: PrepareConfig, tokenizer: Path) -> None:
    manifest = merge(small)
    dir = Path(small.corpus.dir)
    every = {name: [doc.text for file in files for part in file for doc in part] for name, files in SMALL.items()}
    twice = words(2, 3)[0].text
    every["code"].remove(twice)
    expected = {
        f"{name}_{split}": [t for t in bodies if is_held_out(t, "hash") == (split == "valid")]
        for name, bodies in every.items()
        for split in ("train", "valid")
    }
    assert all(expected.values()), "the test wants every split"
    assert {name: texts(small, name, tokenizer) for name in expected} == expected
    ends = (".bin", ".idx", ".sums", ".origins.npy")
    file_names = sorted([f"{name}{end}" for name in expected for end in ends])
    assert sorted(contents(dir)) == sorted([*file_names, "manifest.json", ".merge.lock"])
    assert sorted(manifest["files"]) == file_names
    assert manifests.read(dir) == manifest
    assert sorted(manifest["datasets"]) == sorted(expected)
    for name, bodies in expected.items():
        data = IndexedDataset(dir / name)
        lengths = np.diff(data.document_bounds())
        assert manifest["datasets"][name] == {
            "documents": len(bodies),
            "tokens": data.n_tokens,
            "characters": sum(map(len, bodies)),
            "bytes": sum(len(text.encode()) for text in bodies),
            "longest_document": lengths.max(),
        }
        origins = np.load(dir / f"{name}.origins.npy", allow_pickle=False)
        assert origins.dtype == np.dtype([("input", "<u4"), ("line", "<u8"), ("digest", "V16")])
        inputs = sorted((dir.parent / "raw").glob(f"{name.split('_')[0]}-*"))
        lines = [inputs[row["input"]].read_text().split("\n")[row["line"] - 1] for row in origins]
        assert [json.loads(line)["text"] for line in lines] == bodies
    counts = manifest["sources"]["code"]["counts"]
    assert counts == {
        "read": 12, "kept": 9, "duplicates": 1, "duplicate_ids": 0, "rejected": 0, "short": 2
    }  # fmt: skip
    assert manifest["sources"]["code"]["licence"] == "MIT"
    assert len(manifest["sources"]["books"]["inputs"]) == 2
    assert manifest["tokenizer"]["sha256"] == Tokenizer(tokenizer).digest
    assert manifest["dtype"] == "uint16"


def test_the_end_does_not_depend_on_where_parts_end(tmp_path: Path, small: PrepareConfig, tokenizer: Path) -> None:
    merge(small)
    other = configuration(tmp_path / "other", tokenizer, books={}, code={})
    one_a_part = {name: [[[d] for part in file for d in part] for file in files] for name, files in SMALL.items()}
    write_parts(other, one_a_part)
    merge(other)
    mine, theirs = contents(Path(small.corpus.dir)), contents(Path(other.corpus.dir))
    assert {n: d for n, d in mine.items() if n != "manifest.json"} == {
        n: d for n, d in theirs.items() if n != "manifest.json"
    }


def test_a_second_call_does_nothing(small: PrepareConfig) -> None:
    manifest = merge(small)
    dir = Path(small.corpus.dir)
    before = {path.name: path.stat().st_mtime_ns for path in dir.iterdir()}
    assert merge(small) == manifest
    assert {path.name: path.stat().st_mtime_ns for path in dir.iterdir()} == before


@dataclass(frozen=True)
class Trial:
    """A random corpus. sources: hold_out, ids or not, documents by input and part."""

    sources: dict[str, tuple[str, bool, list[list[list[Doc]]]]]
    drop: bool


@st.composite
def trials(draw: st.DrawFn) -> Trial:
    document = st.builds(
        Doc,
        text=st.integers(0, 7).map(lambda i: f"text {i} " * (i + 1)),
        id=st.one_of(st.none(), st.integers(0, 5).map(str)),
    )
    parts = st.lists(st.lists(document, max_size=4), min_size=1, max_size=2)
    files = st.lists(parts, min_size=1, max_size=2)
    source = st.tuples(st.sampled_from(["hash", "none", "all"]), st.booleans(), files)
    return Trial(draw(st.dictionaries(st.sampled_from("abc"), source, min_size=1, max_size=3)), draw(st.booleans()))


def by_definition(trial: Trial) -> tuple[dict[str, list[tuple[int, int, str]]], dict[str, Counter[str]], list[str]]:
    """Dictionaries: dataset -> (input, line, text); source -> counts; where an id comes with another text."""
    every = []
    for name, (hold_out, named, files) in sorted(trial.sources.items()):
        for number, parts in enumerate(files):
            for line, doc in enumerate((doc for part in parts for doc in part), 1):
                every.append((name, number, line, doc, is_held_out(doc.text, hold_out), named and doc.id is not None))
    counts: dict[str, Counter[str]] = {name: Counter() for name in trial.sources}
    clashes, owner, left = [], {}, []
    for row in every:
        name, number, line, doc, _, has_id = row
        if has_id and owner.setdefault((name, doc.id), doc.text) != doc.text:
            counts[name]["duplicate_ids"] += 1
            clashes.append(f"{name}-{number:03d}.jsonl:{line}")
        else:
            left.append(row)
    seen = set()
    for row in sorted(left, key=lambda row: not row[4]):  # stable: what is held out comes first
        counts[row[0]]["duplicates"] += row[3].text in seen
        if row[3].text in seen and trial.drop:
            left = [other for other in left if other is not row]
        seen.add(row[3].text)
    datasets: dict[str, list[tuple[int, int, str]]] = {}
    for name, number, line, doc, held_out, _ in left:
        datasets.setdefault(f"{name}_{'valid' if held_out else 'train'}", []).append((number, line, doc.text))
    return datasets, counts, clashes


@pytest.fixture(scope="module")
def small_blocks() -> Iterator[None]:
    """Two documents are read at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collect, "BLOCK", 2)
        yield


@settings(max_examples=30, deadline=None)
@given(trial=trials(), stop=st.booleans())
@pytest.mark.usefixtures("small_blocks")
def test_merging_is_its_definition(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Path, trial: Trial, stop: bool
) -> None:
    folder = tmp_path_factory.mktemp("trial")
    sources = {name: {"hold_out": h, "id_field": "id" if ids else None} for name, (h, ids, _) in trial.sources.items()}
    config = configuration(folder, tokenizer, **sources)
    config = replace(
        config,
        corpus=replace(config.corpus, exact_duplicates="drop" if trial.drop else "keep"),
        work=replace(config.work, on_error="stop" if stop else "skip", max_reject_share=1.0),
    )
    write_parts(config, {name: files for name, (_, _, files) in trial.sources.items()})
    datasets, counts, clashes = by_definition(trial)
    dir = Path(config.corpus.dir)
    if clashes and stop:
        with pytest.raises(DataError, match=rf"E-RAW-22 .*{clashes[0]}"):
            merge(config)
        assert not (dir / "manifest.json").exists()
        return
    if gone := [
        name for name in trial.sources if not any(f"{name}_{split}" in datasets for split in ("train", "valid"))
    ]:
        with pytest.raises(DataError, match=rf"E-RAW-27 corpus.sources.{min(gone)}"):
            merge(config)
        assert not (dir / "manifest.json").exists()
        return
    manifest = merge(config)
    assert sorted(manifest["datasets"]) == sorted(datasets)
    for name, rows in datasets.items():
        assert texts(config, name, tokenizer) == [text for _, _, text in rows]
        origins = np.load(dir / f"{name}.origins.npy", allow_pickle=False)
        assert [(row["input"], row["line"]) for row in origins] == [(number, line) for number, line, _ in rows]
        assert [row["digest"].tobytes() for row in origins] == [text_digest(text) for _, _, text in rows]
    for name, expected in counts.items():
        tally = manifest["sources"][name]["counts"]
        assert {reason: tally[reason] for reason in expected} == expected
        assert tally["kept"] == sum(len(rows) for dataset, rows in datasets.items() if dataset[:-6] == name)
    rejects = sorted((dir / "rejects").glob("*"))
    listed = [json.loads(line) for path in rejects for line in path.read_text().splitlines()]
    assert [f"{Path(row['input']).name}:{row['line']}" for row in listed] == clashes
    trained = {text for name, rows in datasets.items() if name.endswith("train") for _, _, text in rows}
    held_out = {text for name, rows in datasets.items() if name.endswith("valid") for _, _, text in rows}
    assert not (trained & held_out) or not trial.drop


def test_too_many_taken_ids_are_a_mistake(tmp_path: Path, tokenizer: Path) -> None:
    """id_field names a constant: all but one document would vanish."""
    config = configuration(tmp_path, tokenizer, a={"id_field": "id"})
    config = replace(config, work=replace(config.work, on_error="skip"))
    write_parts(config, {"a": [[[Doc(f"text {i}", "same") for i in range(20)]]]})
    with pytest.raises(DataError, match=r"E-RAW-21 corpus.sources.a: 19 of 20 .*id_field"):
        merge(config)


def test_rejects_are_listed_with_taken_ids_in_order(tmp_path: Path, tokenizer: Path) -> None:
    config = configuration(tmp_path, tokenizer, a={"id_field": "id"})
    config = replace(config, work=replace(config.work, on_error="skip", max_reject_share=1.0))
    write_parts(config, {"a": [[[Doc("x", "1"), Doc("y", "1", line=5), Doc("z", "2", line=9)]]]})
    rejects = [{"line": n, "byte": 7, "code": "E-RAW-04", "reason": "malformed", "excerpt": "'{'"} for n in (3, 7)]
    change_record(Path(config.corpus.dir) / "parts" / "a" / "00000" / "00000", rejects=rejects)
    manifest = merge(config)
    lines = (Path(config.corpus.dir) / "rejects" / "a.jsonl").read_text().splitlines()
    assert [(row["line"], row["code"]) for row in map(json.loads, lines)] == [
        (3, "E-RAW-04"),
        (5, "E-RAW-22"),
        (7, "E-RAW-04"),
    ]
    counts = manifest["sources"]["a"]["counts"]
    assert (counts["read"], counts["kept"], counts["rejected"], counts["duplicate_ids"]) == (5, 2, 2, 1)


STEM = Path("parts/books/00000/00000")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def rewrite(path: Path, **changes: Any) -> None:
    """Other columns in a .docs.npy whose digest is right."""
    rows = np.load(path, allow_pickle=False)
    for name, value in changes.items():
        rows[name][1] = value
    np.save(path, rows, allow_pickle=False)
    stem = path.parent / path.name.split(".")[0]
    files = json.loads(Path(f"{stem}.json").read_text())["files"]
    files[path.name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    change_record(stem, files=files)


# what is done to the folder of the corpus, and code, file and value of what is said
BAD_PARTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "last part missing": (
        lambda dir: remove(dir / "parts/books/00000/00001.json"),
        "E-TOK-23 .*1 of 3 .*: books .*books-000.jsonl .* 1 ",
    ),
    "input missing": (lambda dir: shutil.rmtree(dir / "parts/code"), "E-TOK-23 .*code .*code-000.jsonl .* 0 "),
    "nothing there": (lambda dir: shutil.rmtree(dir / "parts"), "E-TOK-23 .*3 of 3 inputs"),
    "no folder": (lambda dir: shutil.rmtree(dir), "E-TOK-23 .*no such folder"),
    "bin of a part missing": (lambda dir: remove(dir / f"{STEM}.train.bin"), "E-TOK-08 .*train.bin .*missing"),
    "bit of a bin": (lambda dir: flip(dir / f"{STEM}.train.bin", 5), "E-TOK-08 .*train.bin .*SHA-256"),
    "bit of held-out ids": (lambda dir: flip(dir / f"{STEM}.valid.bin", 5), "E-TOK-08 .*valid.bin .*SHA-256"),
    "bit of docs": (lambda dir: flip(dir / f"{STEM}.docs.npy", -5), "E-TOK-08 .*docs.npy .*SHA-256"),
    "torn json": (lambda dir: (dir / f"{STEM}.json").write_text('{"plan"'), "E-TOK-08 .*json"),
    "lines fall": (lambda dir: rewrite(dir / f"{STEM}.docs.npy", line=0), "E-TOK-08 .*document 1 .*docs.npy"),
    "no tokens": (lambda dir: rewrite(dir / f"{STEM}.docs.npy", tokens=0), "E-TOK-08 .*document 1 .*docs.npy"),
    "too many tokens": (lambda dir: rewrite(dir / f"{STEM}.docs.npy", tokens=1 << 31), "E-TOK-08 .*document 1 "),
    "a third split": (lambda dir: rewrite(dir / f"{STEM}.docs.npy", split=2), "E-TOK-08 .*document 1 .*docs.npy"),
    "more tokens than there are": (
        lambda dir: rewrite(dir / f"{STEM}.docs.npy", tokens=5000),
        "E-TOK-08 .*(train|valid).bin .*fewer",
    ),
    "fewer tokens than there are": (
        lambda dir: rewrite(dir / f"{STEM}.docs.npy", tokens=1),
        "E-TOK-08 .*(train|valid).bin .*SHA-256",
    ),
    "input changed": (
        lambda dir: (dir.parent / "raw" / "books-000.jsonl").write_text('{"text": "new"}\n'),
        "E-RAW-19 .*books-000.jsonl: ",
    ),
    "files that are not ours": (
        lambda dir: (dir / "code_train.bin").write_bytes(b"mine"),
        "E-PREP-02 .*code_train.bin: ",
    ),
}


@pytest.mark.parametrize("case", BAD_PARTS)
def test_what_cannot_be_merged_is_reported(small: PrepareConfig, case: str) -> None:
    dir = Path(small.corpus.dir)
    change, message = BAD_PARTS[case]
    change(dir)
    before = contents(dir) if dir.exists() else {}
    with pytest.raises(DataError, match=message) as caught:
        merge(small)
    assert "\n" not in str(caught.value) and "Fix:" in str(caught.value)
    after = contents(dir) if dir.exists() else {}
    after.pop(".merge.lock", None)
    assert after == before, "nothing is published, nothing is lost"


def test_other_settings_are_refused_and_nothing_changes(small: PrepareConfig, tmp_path: Path) -> None:
    merge(small)
    dir = Path(small.corpus.dir)
    before = contents(dir)
    other_tokenizer = tmp_path / "other.model"
    other_tokenizer.write_bytes(Path(small.tokenizer.path).read_bytes() + b"\n\0")
    raw = dir.parent / "raw" / "books-002.jsonl"
    changes: dict[str, tuple[PrepareConfig, str]] = {
        "duplicates": (
            replace(small, corpus=replace(small.corpus, exact_duplicates="keep")),
            "exact_duplicates was 'drop'",
        ),
        "held out": (replace(small, corpus=replace(small.corpus, valid_share=0.5)), "valid_share"),
        "sources": (
            replace(small, corpus=replace(small.corpus, sources={"books": small.corpus.sources["books"]})),
            "sources.code",
        ),
    }
    for config, what in changes.values():
        with pytest.raises(DataError, match=rf"E-TOK-18 .*{what}"):
            merge(config)
    raw.write_text('{"text": "a new file"}\n')
    with pytest.raises(DataError, match=r"E-TOK-18 .*inputs of books"):
        merge(small)
    raw.unlink()
    os.utime(dir.parent / "raw" / "books-000.jsonl", (1, 1))
    assert merge(small), "a copy of the raw files is as good as they"
    shutil.rmtree(dir.parent / "raw")
    assert merge(small), "raw files that are gone are not missed"
    assert contents(dir) == before


def test_a_corpus_of_another_tokenizer_is_refused(small: PrepareConfig, tmp_path: Path) -> None:
    merge(small)
    other = trained(tmp_path / "other.model", 520)
    with pytest.raises(DataError, match="E-TOK-11 "):
        merge(replace(small, tokenizer=replace(small.tokenizer, path=str(other))))


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_corpus_with_a_file_gone_is_not_finished(small: PrepareConfig, how: str) -> None:
    merge(small)
    path = Path(small.corpus.dir) / "code_train.idx"
    path.unlink() if how == "gone" else path.write_bytes(b"MMIDIDX")
    with pytest.raises(DataError, match=r"E-PREP-03 .*code_train.idx: (missing|7 bytes)"):
        merge(small)


def in_child(body: Callable[[], Any]) -> int:
    """Exit code of a fork that runs body; negative: the signal it died of."""
    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


@pytest.fixture
def operations(small: PrepareConfig, tmp_path: Path) -> tuple[list[str], dict[str, bytes]]:
    """Every file operation of a merge, and what it ends with."""
    dir = Path(small.corpus.dir)
    shutil.copytree(dir, tmp_path / "template")

    def body() -> None:
        log = inject.install(str(dir))
        merge(small)
        (tmp_path / "log").write_text("\n".join(log))

    assert in_child(body) == 0
    return (tmp_path / "log").read_text().splitlines(), contents(dir)


def turns(log: list[str], every: bool) -> list[int]:
    """The operations at which another kind of them begins or ends; or every one."""
    kinds = ["", *(line.split()[0] for line in log), ""]
    return [at for at in range(len(log)) if every or not kinds[at] == kinds[at + 1] == kinds[at + 2]]


EVERY = [pytest.param(False, id="turns"), pytest.param(True, id="every", marks=pytest.mark.slow)]


@pytest.mark.parametrize("every", EVERY)
def test_killed_at_every_file_operation(
    small: PrepareConfig, tmp_path: Path, operations: tuple[list[str], dict[str, bytes]], every: bool
) -> None:
    """The same command ends with the same bytes; a manifest never stands beside files that it does not vouch for."""
    log, expected = operations
    dir = Path(small.corpus.dir)
    assert len(log) > 60
    n_finished = 0
    for at in turns(log, every):
        shutil.rmtree(dir)
        shutil.copytree(tmp_path / "template", dir)

        def body(at: int = at) -> None:
            inject.install(str(dir), at)
            merge(small)

        assert in_child(body) == -9, (at, log[at])
        if (dir / "manifest.json").exists():
            n_finished += 1
            for name, record in manifests.read(dir)["files"].items():
                data = (dir / name).read_bytes()
                assert (len(data), hashlib.sha256(data).hexdigest()) == (record["bytes"], record["sha256"]), log[at]
        merge(small)
        assert contents(dir) == expected, (at, log[at])
        assert not [path.name for path in dir.iterdir() if path.is_dir()]
    assert 0 < n_finished < len(turns(log, every))


@pytest.mark.parametrize("every", EVERY)
def test_a_failing_disk_is_reported_and_nothing_half_published(
    small: PrepareConfig, tmp_path: Path, operations: tuple[list[str], dict[str, bytes]], every: bool
) -> None:
    """A full disk and a failing one, in turn; of every operation both."""
    log, expected = operations
    dir = Path(small.corpus.dir)
    failed = 0
    modes = ["enospc", "eio"]
    trials = (
        [*product(turns(log, True), modes)] if every else [*zip(turns(log, False)[::2], cycle(modes), strict=False)]
    )
    for at, mode in trials:
        shutil.rmtree(dir)
        shutil.copytree(tmp_path / "template", dir)

        def body(at: int = at, mode: str = mode) -> None:
            inject.install(str(dir), at, mode)
            try:
                merge(small)
            except StorageError as error:
                (tmp_path / "message").write_text(str(error))
                raise SystemExit(7) from None

        code = in_child(body)
        if code == 0:
            assert all(name.startswith(("unlink", "rmdir", "remove")) for name in map(str, log[at:])), log[at:]
        else:
            failed += 1
            assert code == 7
            message = (tmp_path / "message").read_text()
            assert message.startswith("E-IO-01 ") and "\n" not in message
            finished = any(name.startswith("rename manifest") for name in log[:at])
            assert (dir / "manifest.json").exists() == finished
        merge(small)
        assert contents(dir) == expected, (at, log[at])
    assert failed > len(trials) / 2


def test_a_full_disk_is_reported_by_the_bytes_that_do_not_fit(small: PrepareConfig) -> None:
    dir = Path(small.corpus.dir)
    before = contents(dir)

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        with pytest.raises(StorageError, match="E-IO-01"):
            merge(small)

    assert in_child(limited) == 0
    after = contents(dir)
    assert after.pop(".merge.lock") == b""
    assert after == before


def test_too_little_room_is_reported_before_the_work(small: PrepareConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(StorageError, match=r"E-IO-01 .*0.00 GB .*0.00 GB"):
        merge(small)


def test_one_at_a_time(small: PrepareConfig) -> None:
    dir = Path(small.corpus.dir)
    with open(dir / ".merge.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as tokenize holds it
        with pytest.raises(DataError, match="E-TOK-15 "):
            merge(small)
        assert sorted(path.name for path in dir.iterdir()) == [".merge.lock", "parts"]
    assert merge(small)


def merge_peak(folder: Path, tokenizer: Path, n: int) -> int:
    """Most memory a merge of n documents held at once [bytes]."""
    config = configuration(folder, tokenizer, a={})
    every = [Doc(f"document {i % (n // 2)} of many, with some words in it") for i in range(n)]
    write_parts(config, {"a": [[every[i : i + n // 4] for i in range(0, n, n // 4)]]})
    gc.collect()
    tracemalloc.start()
    merge(config)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert IndexedDataset(Path(config.corpus.dir) / "a_train").n_documents > n // 4  # chunks of the index fit together
    return most


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times the documents and bytes, the same peak."""
    for name, value in {"CHUNK": 125, "KEYS_AT_A_TIME": 250}.items():
        monkeypatch.setattr(duplicates, name, value)
    monkeypatch.setattr(collect, "BLOCK", 50)
    for name, value in {"COPY_BYTES": 2500, "LENGTHS": 50}.items():
        monkeypatch.setattr(concatenate, name, value)
    monkeypatch.setattr(dataset, "CHUNK", 50)
    merge_peak(tmp_path / "warm", tokenizer, 400)
    small, large = (merge_peak(tmp_path / str(n), tokenizer, n) for n in (300, 2_400))
    print(f"\npeak {small / 1e3:.0f} KB for 300 documents, {large / 1e3:.0f} KB for 2 400")
    assert large < 1.25 * small + 20_000
