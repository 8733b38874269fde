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
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coca_train.data.dataset import IndexedDataset
from coca_train.data.mixture import check_tokenizer
from coca_train.data.provenance import Origins
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError, StorageError
from data_prep import made_here, overlap, parts
from data_prep.__main__ import main
from data_prep.verbs import embedded
from data_prep.verbs.embedded import Document, held_out_files, make
from tests.data.vocabularies import byte_tokenizer

ENDS = (".bin", ".idx", ".sums", ".origins.npy")
FILES = sorted(
    [f"{part}_{split}{end}" for part in ("text", "code") for split in ("train", "valid") for end in ENDS]
    + ["tokenizer.model", "manifest.json"]
)


@functools.cache
def corpus() -> list[Document]:
    """A handful of this repository's own files, in both parts."""
    sources = [Path(path).read_text(encoding="utf-8") for path in (embedded.__file__, overlap.__file__, __file__)]
    return [
        Document(part, f"f{i}_{n}.py", text)
        for n in range(12)
        for i, source in enumerate(sources)
        for part, text in (("code", f"# {n}\n{source}"), ("text", embedded.docstrings(source)[0] * (n + 1)))
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


def test_the_verbs_for_a_corpus_read_it(embedded_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["corpus.sources.text.files=[x.jsonl]", f"corpus.dir={embedded_dir}", "work.progress_bar=false"]
    assert main(["verify", *words]) == 0
    assert "verified, 17 files" in capsys.readouterr().out


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
    assert manifest["tokenizer"]["vocab_size"] == 512
    assert {path.name: path.stat().st_mtime_ns for path in embedded_dir.iterdir()} == before


@pytest.mark.parametrize("manifest", ["", '{"kind": "embedded"'])
def test_a_damaged_manifest_is_reported_as_damage(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(DataError, match=r"E-TOK-08 .*manifest.json"):
        make(tmp_path, 512, progress=False)


def test_a_folder_that_is_not_ours_is_left_alone(embedded_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match=r"E-PREP-02 .*mine"):
        make(tmp_path / "mine", 512, progress=False)
    with pytest.raises(DataError, match=r"E-PREP-02 .*512 token ids.*vocab_size=4096"):
        make(embedded_dir, 4096, progress=False)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


def test_a_damaged_corpus_is_named(embedded_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(embedded_dir, tmp_path / "x")
    with open(tmp_path / "x" / "code_train.bin", "ab") as file:
        file.write(b"\0")
    with pytest.raises(DataError, match=r"E-PREP-03 .*code_train.bin: \d+ bytes.*Fix: "):
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


def test_an_unwritable_place_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="E-IO-01"):
        make(tmp_path / "file" / "x", 512, progress=False, documents=corpus())


@pytest.fixture
def no_training(embedded_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text gives the same vocabulary, which is there already."""
    model = (embedded_dir / "tokenizer.model").read_bytes()
    monkeypatch.setattr(embedded, "train_tokenizer", lambda texts, path, vocab_size: path.write_bytes(model))


# Of each of the four datasets, four files are flushed after it is begun.
STEPS = (
    (embedded, "train_tokenizer"), (embedded, "_write_dataset"), (parts, "flush_to_disk"),
    (made_here, "flush_to_disk"), (made_here, "sync_folder"),
)  # fmt: skip


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
            for module, name in STEPS:
                setattr(module, name, mortal(getattr(module, name)))
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
@pytest.mark.parametrize("at", [0, 1, 3, 6, 20, 21, 22, 23])
def test_killed_anywhere_the_next_run_makes_it_whole(embedded_dir: Path, tmp_path: Path, at: int) -> None:
    folder = tmp_path / "embedded"
    process = start(folder, die_at=at)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert folder.exists() == (at == 23)  # after the rename, before the fsync of the folder above
    make(folder, 512, progress=False, documents=corpus())
    assert contents(folder) == contents(embedded_dir)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".embedded.lock", "embedded"]


def test_docstrings() -> None:
    source = '"""Top."""\nclass A:\n    """Of A."""\n    def f(self):\n        """Of f.\n\n        More.\n        """\n'
    assert embedded.docstrings(source) == ("Top.\n\n\nA\n\nOf A.\n\n\nA.f\n\nOf f.\n\nMore.\n", 1)
    assert embedded.docstrings("x = 1\n\ndef f():\n    'Of f.'\n") == ("f\n\nOf f.\n", 4)
    assert embedded.docstrings("x = 1\n") == embedded.docstrings("def (") == ("", 1)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of a package, a module and topics; and things that are no part of it."""
    monkeypatch.setattr(embedded, "MODULES", ["a", "b"])
    files = ("b.py", "a/__init__.py", "a/z.py", "a/test/t.py", "a/n.txt", "c.py", "_sysconfigdata_x.py")
    for number, name in enumerate((*files, "site-packages/s/s.py", "site-packages/s-1.dist-info/LICENSE")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}\n" * 100)
    (tmp_path / "pydoc_data").mkdir()
    source = "raise SystemExit('was run')\ntopics = {'a': 'inner text',\n 'b': 'outer inner text', 'c': 'other'}\n"
    (tmp_path / "pydoc_data" / "topics.py").write_text(source)
    return tmp_path


def test_only_the_modules_of_the_list_are_read_in_the_same_order(library: Path) -> None:
    read = [d.file for d in embedded.installation(library) if d.part == "code"]
    assert read == ["a/__init__.py", "a/z.py", "b.py"]
    (library / "b.py").write_bytes(b"x = '\xff'\n" * 100)  # not UTF-8: passed over
    assert [d.file for d in embedded.modules(library)] == ["a/__init__.py", "a/z.py"]


def test_topics_are_read_without_being_run(library: Path) -> None:
    topics = list(embedded.topics(library))
    assert [(d.text, d.line) for d in topics] == [("outer inner text\n", 3), ("other\n", 3)]
    assert not any(d.may_be_held_out for d in topics)


@pytest.mark.parametrize("lost", ["b.py", "pydoc_data/topics.py"])
def test_a_library_that_is_not_whole_is_refused(library: Path, lost: str) -> None:
    (library / lost).unlink()
    with pytest.raises(DataError, match=r"E-PREP-04 .*Fix: use a full Python"):
        list(embedded.installation(library))


def test_the_list_is_of_modules_that_are_here() -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    files = {path.relative_to(library).parts[0].removesuffix(".py") for path in embedded.python_files(library)}
    assert files == set(embedded.MODULES)


def test_every_document_has_its_file_and_line(embedded_dir: Path) -> None:
    for part in ("text", "code"):
        data = IndexedDataset(embedded_dir / f"{part}_train")
        origins = [Origins(data).find(i) for i in range(data.n_documents)]
        kept = [d for d in corpus() if d.part == part and d.file not in held_out_files(corpus())]
        assert [(o.input, o.line) for o in origins if o is not None] == [(d.file, d.line) for d in kept]


def test_a_file_is_held_out_as_a_whole_and_never_moves() -> None:
    documents = [Document(part, f"f{i}", "x" * 100) for i in range(2000) for part in ("code", "text")]
    documents += [Document("text", f"long{i}", "x" * 30_000) for i in range(20)]
    documents += [Document("text", "never", "x" * 30_000, may_be_held_out=False)]
    held_out = held_out_files(documents)
    assert 0.02 < sum(file[0] == "f" for file in held_out) / 2000 < 0.04
    assert 5 <= sum(file[:4] == "long" for file in held_out) <= 7
    assert "never" not in held_out
    assert held_out_files(documents[::-1]) == held_out
    assert "f5" in held_out or held_out == held_out_files([d for d in documents if d.file != "f5"])


@pytest.mark.slow
def test_the_real_one(tmp_path: Path) -> None:
    manifest = make(tmp_path / "embedded", progress=False)
    datasets = manifest["datasets"]
    assert datasets["text_train"]["tokens"] > 400_000
    assert sum(record["tokens"] for record in datasets.values()) > 2_300_000
    for part in ("text", "code"):
        train, valid = (datasets[f"{part}_{split}"]["tokens"] for split in ("train", "valid"))
        assert 0.04 < valid / (train + valid) < 0.2
        lengths = np.diff(IndexedDataset(tmp_path / "embedded" / f"{part}_valid").document_bounds())
        assert (lengths > 2048).sum() >= 8
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
