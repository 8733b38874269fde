"""`data.path`: from a folder of texts to a run, in one command."""

import json
import re
from pathlib import Path

import pytest

from coca_train.commands import main
from coca_train.commands._training import load
from data_prep import text_folder
from data_prep.verbs import tokenize
from tests.data_prep.test_folder import mixed, prose, write
from tests.stages.support import leave_out

SMALL = [
    "engine=local", "model.n_layers=1", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "train.seq_len=32",
    "train.max_steps=2", "train.micro_batch_size=2", "train.global_batch_size=2", "optim.warmup_steps=1",
    "eval.max_tokens=64", "eval.sample_tokens=0", "eval.extrapolation.enabled=false",
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Where commands are typed; beside it lies the folder `my`."""
    leave_out(monkeypatch.setattr)
    monkeypatch.delenv("COCA_TRAIN_DATA", raising=False)
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    mixed(tmp_path / "my")
    return folder


def typed(capsys, *words: str) -> tuple[int, str]:
    code = main([*SMALL, *words])
    return code, "".join(capsys.readouterr())


def state(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_folder_becomes_a_trained_model_and_is_only_read(here, capsys, monkeypatch):
    before = state(here.parent / "my")
    code, said = typed(capsys, "data.path=../my")
    assert code == 0, said
    (run_dir,) = (here / "runs").iterdir()
    assert run_dir.name.startswith("my-")
    assert "(data.vocab_size=600)" in said
    assert "less than their share" not in said  # one source has no share
    assert int(re.search(r"train\.max_steps=(\d+)", said)[1]) > 2  # a part of the folder is read
    assert "(data.valid_share=" in said
    others = [line for line in said.splitlines() if "python -m coca_train" in line and " run.name=" in line]
    assert others and all("data.path=../my" in line for line in others), said
    assert state(here.parent / "my") == before
    settings = json.loads((run_dir / "run.json").read_text())["settings"]
    assert settings["data.vocab_size"] == 600
    assert (here / settings["data.dir"] / "manifest.json").is_file()

    monkeypatch.setattr(tokenize, "run", lambda config: pytest.fail("made again"))
    code, said = typed(capsys, "data.path=../my", "train.max_steps=3")
    assert code == 0, said
    assert "from step 2" in said


def test_a_changed_folder_is_other_data_and_a_run_goes_on_with_its_own(here, capsys):
    assert typed(capsys, "data.path=../my")[0] == 0
    first = load([*SMALL, "data.path=../my"]).config.data.dir
    capsys.readouterr()
    write(here.parent / "my", "new.txt", [prose(9, 2000)])
    again = load([*SMALL, "data.path=../my"]).config.data.dir
    assert again == first
    assert "1 file added" in capsys.readouterr().err
    other = load([*SMALL, "data.path=../my", "run.name=other"]).config.data.dir
    assert other != first
    assert "1 file added" in capsys.readouterr().err
    (here.parent / "my").rename(here.parent / "away")
    assert load([*SMALL, "data.path=../my"]).config.data.dir == first
    code, said = typed(capsys, "data.path=../my", "run.name=other")
    assert code == 3
    assert "E-RAW-01 data.path=../my" in said


def test_options_of_the_making_are_other_data(here):
    dirs = [
        load(["data.path=../my", *words]).config.data.dir
        for words in ([], ["data.vocab_size=700"], ["data.on_error=skip"])
    ]
    assert len(set(dirs)) == 3


def test_it_goes_with_an_experiment_and_a_plan_before_anything_is_made(here, capsys):
    data = load(["data.path=../my", "+experiment=coca_350m"], launch=False).config.data
    assert list(data.sources) == [text_folder.SOURCE]
    assert data.prepare == "none"
    assert main(["plan", "data.path=../my"]) == 0, capsys.readouterr().err
    assert not (here / "data").exists()


def test_the_tokenizer_that_is_given_is_taken(here, capsys):
    assert typed(capsys, "data.path=../my", "run.name=first")[0] == 0
    first = load(["data.path=../my"]).config.data
    code, said = typed(capsys, "data.path=../my", f"data.tokenizer={first.tokenizer}", "run.name=given")
    assert code == 0, said
    given = load(["data.path=../my", f"data.tokenizer={first.tokenizer}"]).config.data
    assert given.dir != first.dir
    assert given.vocab_size is None
    code, said = typed(capsys, "data.path=../my", "start.path=runs/first", "run.name=started")
    assert code == 0, said
    digests = {
        json.loads((here / "runs" / name / "run.json").read_text())["fingerprint"]["tokenizer"]["sha256"]
        for name in ("first", "given", "started")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("content", "words", "codes"),
    [
        ({"a.jsonl": b'{"body": "x"}\n'}, [], ["E-RAW-06", "body", "data.text_field", "data.on_error=skip"]),
        ({"a.txt": b"caf\xe9 " * 1000}, [], ["E-RAW-10", "data.on_error=skip"]),
        ({"a.txt": bytes(1000)}, [], ["E-RAW-12"]),
        ({"a.jsonl": b"\x1f\x8b000"}, [], ["E-RAW-15"]),
        ({"a.txt": b"a few words"}, [], ["E-RAW-33", "data.valid_share"]),
        ({"a.txt": b"caf\xe9 " * 1000}, ["data.on_error=skip"], ["E-RAW-33"]),
    ],
)
def test_mistakes_are_told_in_words_of_a_training(content, words, codes, here, capsys):
    (here.parent / "bad").mkdir()
    for name, data in content.items():
        (here.parent / "bad" / name).write_bytes(data)
    code, said = typed(capsys, "data.path=../bad", *words)
    assert code == 3, said
    assert all(each in said for each in codes), said
    assert "work.on_error" not in said
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["data.path=.."], "E-CFG-86"),
        (["data.path=../my", "data.prepare=embedded"], "E-CFG-85"),
        (["data.vocab_size=5000"], "E-CFG-85"),
        (["data.path=~/my"], "E-"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_made(words, problem, here, capsys):
    write(here.parent, "a.txt", ["text"])
    code, said = typed(capsys, *words)
    assert code in (2, 3)
    assert problem in said
    assert not any(here.iterdir())


def test_bad_documents_are_skipped_where_that_is_asked_for(here, capsys):
    (here.parent / "my" / "bad.txt").write_bytes(b"\xff\x00")
    code, said = typed(capsys, "data.path=../my", "data.on_error=skip")
    assert code == 0, said
    (rejects,) = (here / "data").rglob("rejects/*.jsonl")
    assert "bad.txt" in rejects.read_text()
