"""The quickstart's corpus: complete or not there, the same every time, nothing held out that is trained on."""

import functools
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coca_train.data.dataset import IndexedDataset
from coca_train.data.mixture import check_tokenizer
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, StorageError
from data_prep import installation
from data_prep.__main__ import main
from data_prep.installation import Document
from data_prep.verbs import embedded
from data_prep.verbs.embedded import held_out_files, make
from tests.data.vocabularies import byte_tokenizer

ENDS = (".bin", ".idx", ".sums")
FILES = sorted(
    [f"{part}_{split}{end}" for part in ("text", "code") for split in ("train", "valid") for end in ENDS]
    + ["tokenizer.model", "manifest.json"]
)


@functools.cache
def corpus() -> list[Document]:
    """A handful of this repository's own files, in both parts."""
    sources = [Path(path).read_text(encoding="utf-8") for path in (embedded.__file__, installation.__file__, __file__)]
    return [
        Document(part, f"f{i}_{n}.py", text)
        for n in range(12)
        for i, source in enumerate(sources)
        for part, text in (("code", f"# {n}\n{source}"), ("text", installation.docstrings(source) * (n + 1)))
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def embedded_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "embedded"
    make(folder, 512, progress=False, documents=corpus())
    return folder


def test_what_is_made(embedded_dir: Path) -> None:
    assert sorted(contents(embedded_dir)) == FILES
    assert sorted(p.name for p in embedded_dir.parent.iterdir()) == [".embedded.lock", "embedded"]
    tokenizer = Tokenizer(embedded_dir / "tokenizer.model")
    manifest = json.loads((embedded_dir / "manifest.json").read_text())
    assert manifest["tokenizer"]["sha256"] == tokenizer.digest
    documents = corpus()
    held_out = held_out_files(documents)
    for part in ("text", "code"):
        for split in ("train", "valid"):
            data = IndexedDataset(embedded_dir / f"{part}_{split}")
            expected = [d.text for d in documents if d.part == part and (d.file in held_out) == (split == "valid")]
            assert data.dtype.name == "uint16"
            assert manifest["datasets"][f"{part}_{split}"]["tokens"] == data.n_tokens
            ids = [data.document(i).tolist() for i in range(data.n_documents)]
            assert [tokenizer.decode(i) for i in ids] == expected
            assert all(i[-1] == tokenizer.eod and tokenizer.eod not in i[:-1] for i in ids)


def test_the_same_text_gives_the_same_bytes(embedded_dir: Path, tmp_path: Path) -> None:
    make(tmp_path / "embedded", 512, progress=False, documents=corpus())
    assert contents(tmp_path / "embedded") == contents(embedded_dir)


def test_documents_end_as_the_weights_say(tmp_path: Path) -> None:
    """The other files of a tokenizer go along, which say its end of document where its own file has another guess."""
    (tmp_path / "chat").mkdir()
    byte_tokenizer(tmp_path / "chat" / "tokenizer.json")
    (tmp_path / "chat" / "config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    (tmp_path / "chat" / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    of_weights = tmp_path / "chat" / "tokenizer.json"
    manifest = make(tmp_path / "data", progress=False, documents=corpus(), tokenizer=of_weights)
    assert manifest["end_of_document"] == Tokenizer(of_weights).eod == 258
    assert Tokenizer(tmp_path / "data" / "tokenizer.model").eod == 258
    data = IndexedDataset(tmp_path / "data" / "text_train")
    assert all(data.document(i)[-1] == 258 for i in range(data.n_documents))
    check_tokenizer(str(of_weights), "data.sources.text.path", str(tmp_path / "data" / "text_train"))


def test_a_second_call_does_nothing(embedded_dir: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in embedded_dir.iterdir()}
    manifest = make(embedded_dir, 512, progress=False, documents=None)
    assert manifest["vocab_size"] == 512
    assert {path.name: path.stat().st_mtime_ns for path in embedded_dir.iterdir()} == before


@pytest.mark.parametrize("manifest", ["", '{"kind": "embedded"'])
def test_a_damaged_manifest_is_told_as_damage(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(DataError, match=r"E-TOK-08 .*manifest.json"):
        make(tmp_path, 512, progress=False)


def test_a_folder_that_is_not_ours_is_left_alone(embedded_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match=r"E-PREP-02 .*mine.*nothing is overwritten"):
        make(tmp_path / "mine", 512, progress=False)
    with pytest.raises(DataError, match=r"E-PREP-02 .*512 token ids.*vocab_size=4096"):
        make(embedded_dir, 4096, progress=False)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


def test_a_damaged_corpus_is_named(embedded_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(embedded_dir, tmp_path / "x")
    with open(tmp_path / "x" / "code_train.bin", "ab") as file:
        file.write(b"\0")
    with pytest.raises(DataError, match=r"E-PREP-03 .*code_train.bin: \d+ bytes.*Fix: remove"):
        make(tmp_path / "x", 512, progress=False)
    (tmp_path / "x" / "code_train.bin").unlink()
    with pytest.raises(DataError, match=r"E-PREP-03 .*code_train.bin: missing"):
        make(tmp_path / "x", 512, progress=False)


def test_too_little_is_refused_and_nothing_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="E-PREP-04"):
        make(tmp_path / "x", 512, progress=False, documents=[Document("code", "a", "x = 1\n" * 100)])
    with pytest.raises(DataError, match="E-PREP-01"):
        make(tmp_path / "x", 60_000, progress=False, documents=corpus())
    assert [p.name for p in tmp_path.iterdir()] == [".x.lock"]


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="E-IO-01"):
        make(tmp_path / "file" / "x", 512, progress=False, documents=corpus())


@pytest.fixture
def no_training(embedded_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text gives the same vocabulary, which is there already."""
    model = (embedded_dir / "tokenizer.model").read_bytes()
    monkeypatch.setattr(embedded, "train_tokenizer", lambda texts, path, vocab_size: path.write_bytes(model))


def start(folder: Path, die_at: int | None = None) -> multiprocessing.context.ForkProcess:
    """make() in a process of its own, which kills itself at the die_at-th of the steps below."""

    def body() -> None:
        left = itertools.count(die_at or 0, -1)

        def mortal(function: Callable) -> Callable:
            def call(*args, **kwargs):
                if next(left) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return call

        if die_at is not None:
            for name in ("train_tokenizer", "tokenize", "_manifest", "flush_to_disk", "sync_folder"):
                setattr(embedded, name, mortal(getattr(embedded, name)))
        make(folder, 512, progress=False, documents=corpus())

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    return process


@pytest.mark.usefixtures("no_training")
def test_several_at_once_make_one(embedded_dir: Path, tmp_path: Path) -> None:
    processes = [start(tmp_path / "embedded") for _ in range(3)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 3
    assert contents(tmp_path / "embedded") == contents(embedded_dir)


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("at", range(9))
def test_killed_anywhere_the_next_run_makes_it_whole(embedded_dir: Path, tmp_path: Path, at: int) -> None:
    folder = tmp_path / "embedded"
    process = start(folder, die_at=at)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert folder.exists() == (at == 8)  # after the rename, before the fsync of the folder above
    make(folder, 512, progress=False, documents=corpus())
    assert contents(folder) == contents(embedded_dir)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".embedded.lock", "embedded"]


def test_docstrings() -> None:
    source = '"""Top."""\nclass A:\n    """Of A."""\n    def f(self):\n        """Of f.\n\n        More.\n        """\n'
    assert installation.docstrings(source) == "Top.\n\n\nA\n\nOf A.\n\n\nA.f\n\nOf f.\n\nMore.\n"
    assert installation.docstrings("x = 1\n") == ""
    assert installation.docstrings("def (") == ""


def test_files_are_filtered_and_sorted(tmp_path: Path) -> None:
    for name in ("b.py", "a/z.py", "test/t.py", "site-packages/s.py", "a/tests/t.py", "_sysconfigdata_x.py", "n.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * 100)
    assert [p.relative_to(tmp_path).as_posix() for p in installation.python_files(tmp_path)] == ["a/z.py", "b.py"]
    (tmp_path / "b.py").write_bytes(b"x = '\xff'\n" * 100)  # not UTF-8: passed over
    assert [d.file for d in installation.modules(tmp_path, "lib", ("code",))] == ["lib/a/z.py"]


def test_licences_that_differ_in_the_copyright_line_count_once(tmp_path: Path) -> None:
    for name, owner in (("a", "Ann"), ("b", "Bob")):
        folder = tmp_path / "site-packages" / f"{name}-1.dist-info" / "licenses"
        folder.mkdir(parents=True)
        (folder / "LICENSE").write_text(f"Copyright {owner}\n\nDo  what you like.\n")
        (folder / "RECORD").write_text("not a licence")
    documents = list(installation.licences(tmp_path / "lib", tmp_path / "site-packages"))
    assert [d.file for d in documents] == ["licences/a-1.dist-info/licenses/LICENSE"]


def test_a_file_is_held_out_as_a_whole_and_never_moves() -> None:
    documents = [Document(part, f"f{i}", "x" * 100) for i in range(2000) for part in ("code", "text")]
    documents += [Document("text", f"long{i}", "x" * 30_000) for i in range(20)]
    documents += [Document("text", "never", "x" * 30_000, may_be_held_out=False)]
    held_out = held_out_files(documents)
    assert 0.02 < sum(file[0] == "f" for file in held_out) / 2000 < 0.04
    assert 7 <= sum(file[:4] == "long" for file in held_out) <= 9
    assert "never" not in held_out
    assert held_out_files(documents[::-1]) == held_out
    assert "f5" in held_out or held_out == held_out_files([d for d in documents if d.file != "f5"])


def test_topics_are_read_without_being_run(tmp_path: Path) -> None:
    (tmp_path / "pydoc_data").mkdir()
    source = "raise SystemExit('was run')\ntopics = {'a': 'inner text', 'b': 'outer inner text', 'c': 'other'}\n"
    (tmp_path / "pydoc_data" / "topics.py").write_text(source)
    assert [d.text for d in installation.topics(tmp_path)] == ["outer inner text\n", "other\n"]


@pytest.mark.slow
def test_the_real_one(tmp_path: Path) -> None:
    manifest = make(tmp_path / "embedded", progress=False)
    datasets = manifest["datasets"]
    assert datasets["text_train"]["tokens"] > 500_000
    assert sum(record["tokens"] for record in datasets.values()) > 2_500_000
    for part in ("text", "code"):
        train, valid = (datasets[f"{part}_{split}"]["tokens"] for split in ("train", "valid"))
        assert 0.04 < valid / (train + valid) < 0.12
        lengths = np.diff(IndexedDataset(tmp_path / "embedded" / f"{part}_valid").document_bounds())
        assert (lengths >= 8192).sum() >= 6
    make(tmp_path / "again", progress=False)
    assert contents(tmp_path / "again") == contents(tmp_path / "embedded")


def test_command_line(embedded_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [sys.executable, "-m", "data_prep", "embedded", f"dir={embedded_dir}", "vocab_size=512"]
    environment = os.environ | {"PYTHONPATH": str(Path(embedded.__file__).parents[2])}
    process = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0
    assert "is there already" in process.stdout
    assert "text_train" in process.stdout
    assert main(["embedded", "vocabsize=512"]) == 2
    error = "E-CFG-01 command line vocabsize=512: unknown key. Fix: did you mean vocab_size?\n"
    assert capsys.readouterr() == ("", error)
    assert main(["embedded", "vocab_size=many"]) == 2
    assert main(["embedded", f"dir={embedded_dir}"]) == 3
    assert main(["embedded", "--help"]) == 0
    assert "[token ids]" in capsys.readouterr().out
