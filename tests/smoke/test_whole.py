"""A copy of a run directory is whole: it works where neither its data nor its tokenizer are."""

import json
import shutil
from pathlib import Path

import pytest

from coca_train.commands import main
from coca_train.settings import HELD_OUT, load_saved, own_tokenizer
from tests.stages.support import leave_out

FEW = ["engine=local", "train.max_steps=4", "eval.extrapolation.enabled=false", "eval.sample_tokens=0"]


@pytest.fixture
def copied(words, corpus, tmp_path, capsys, monkeypatch) -> Path:
    """A run, copied to another place as another machine would have it: its data and tokenizer are not there."""
    leave_out(monkeypatch.setattr)
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    words = [*words, f"data.dir={data}", *FEW]
    assert main(words) == 0, capsys.readouterr().err
    copy = tmp_path / "elsewhere" / "copy"
    copy.parent.mkdir()
    shutil.copytree(tmp_path / "runs" / "quickstart", copy)
    (tmp_path / "runs").rename(tmp_path / "gone-runs")
    data.rename(tmp_path / "gone-data")
    monkeypatch.chdir(copy.parent)
    capsys.readouterr()
    return copy


def typed(capsys, *words: str) -> tuple[int, str]:
    code = main(list(words))
    return code, "".join(capsys.readouterr())


def test_a_copy_generates_evaluates_and_exports(copied, capsys):
    assert own_tokenizer(copied) == copied / "tokenizer.model"
    code, said = typed(capsys, "generate", f"run={copied}", "prompt=time", "max_new_tokens=3")
    assert code == 0, said
    code, said = typed(capsys, "evaluate", f"checkpoint={copied}", "grid.lengths=[32]", "eval.bootstrap_resamples=10")
    assert code == 0, said
    code, said = typed(capsys, "export", f"run={copied}", f"to={copied}-hf")
    assert code == 0, said
    assert (copied.parent / "copy-hf" / "tokenizer.model").read_bytes() == (copied / "tokenizer.model").read_bytes()


def test_held_out_text_that_was_changed_in_a_copy_is_refused(copied, capsys):
    file = copied / HELD_OUT / "text.bin"
    file.write_bytes(file.read_bytes()[::-1])
    (copied / HELD_OUT / "text.sums").unlink()
    code, said = typed(capsys, "evaluate", f"checkpoint={copied}", "grid.lengths=[32]")
    assert code == 3
    assert "E-TOK-14" in said


def test_a_tokenizer_that_was_exchanged_in_a_copy_is_refused(copied, capsys):
    (copied / "tokenizer.model").write_bytes((copied / "tokenizer.model").read_bytes() + b"\n\x02\n\x00")
    code, said = typed(capsys, "generate", f"run={copied}", "prompt=time", "max_new_tokens=3")
    assert code == 3
    assert "E-TKN-" in said


def test_a_copy_goes_on_with_its_data_and_says_what_it_needs(copied, words, tmp_path, capsys):
    words = [*words, *FEW, f"run.root={copied.parent}", "run.name=copy", "train.max_steps=6"]
    code, said = typed(capsys, *words, f"data.dir={tmp_path}/data")
    assert code == 3
    assert "E-TOK-01" in said
    assert f"{copied} goes on with the data" in said
    assert "data.dir=<folder>" in said

    (tmp_path / "gone-data" / "tokenizer.model").rename(tmp_path / "gone.model")
    code, said = typed(capsys, *words, f"data.dir={tmp_path}/gone-data")
    assert code == 0, said
    assert "from step 4" in said
    assert load_saved(copied).config.data.tokenizer == str(copied / "tokenizer.model")
    assert not (tmp_path / "runs").exists()


def test_what_is_kept_is_that_of_the_run(copied, tmp_path):
    fingerprint = json.loads((copied / "run.json").read_text())["stages"][0]["held_out"]
    for name in fingerprint:
        original = tmp_path / "gone-data" / f"{name}_valid.bin"
        assert (copied / HELD_OUT / f"{name}.bin").read_bytes() == original.read_bytes()
