"""The tokenizer that weights go with is the run's, or nothing begins."""

import shutil
from pathlib import Path

import pytest

from coca_train.runtime.errors import DataError
from tests.stages.support import LLAMA, STILL, Runs, begin, imported, other_tokenizer, weights


def test_another_tokenizer_is_refused(
    runs: Runs, llama: Path, corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run, of an imported run, of a folder: both files, both digests, and the way out; nothing is written."""
    mine = other_tokenizer(runs.folder / "mine.model", corpus)
    source = runs.train("source", *LLAMA, *STILL)
    theirs = {
        source: source / "tokenizer.model",  # its own copy
        imported(llama, runs.folder, "import"): runs.folder / "import" / "tokenizer.model",
        llama: llama / "tokenizer.model",
    }
    for folder, file in theirs.items():
        with pytest.raises(DataError, match=r"E-STA-01 .*Fix: .*start\.check_tokenizer=false") as raised:
            begin(runs, folder, f"data.tokenizer={mine}")
        message = str(raised.value)
        assert f"start.path={folder}" in message and f"data.tokenizer={mine} is " in message
        assert f"Fix: data.tokenizer={file} " in message
        assert f"tokenizer.import_from={folder}" in message and "\n" not in message
        assert not (runs.folder / "r").exists()
    capsys.readouterr()
    run = begin(runs, source, f"data.tokenizer={mine}", "start.check_tokenizer=false")
    assert "WARNING: start.path=" in capsys.readouterr().err
    assert weights(run, 1) == weights(source, 1)


def test_the_file_of_a_run_that_is_gone(runs: Runs, corpus: list[str]) -> None:
    mine = other_tokenizer(runs.folder / "mine.model", corpus)
    source = runs.train("source", *LLAMA, *STILL, f"data.tokenizer={mine}")
    mine.write_bytes(b"something else")
    kept = source / "tokenizer.model"
    with pytest.raises(DataError, match=rf"E-STA-01 .*Fix: data.tokenizer={kept} where"):
        begin(runs, source)
    kept.unlink()
    shutil.rmtree(source / "tokenizer")
    with pytest.raises(DataError, match=r"E-STA-01 .*mine\.model "):
        begin(runs, source)


def test_a_moved_import_and_a_tokenizer_in_two_forms(
    runs: Runs, spoilt: Path, corpus: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The copies in the run count, and so does each file of the same release."""
    shutil.copy(spoilt / "tokenizer.model", spoilt / "tokenizer.json")
    other_tokenizer(spoilt / "tokenizer.model", corpus)
    source = imported(spoilt, runs.folder, "import", tokenizer=str(spoilt / "tokenizer.model"))
    moved = source.rename(runs.folder / "moved")
    begin(runs, moved)
    begin(runs, spoilt, name="s")
    assert "tokenizer of its weights" not in capsys.readouterr().err


def test_a_run_that_does_not_say_its_tokenizer(
    runs: Runs, llama: Path, spoilt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and it begins."""
    (spoilt / "tokenizer.model").unlink()
    bare = imported(llama, runs.folder, "bare", tokenizer="none")
    for number, folder in enumerate((bare, spoilt)):
        capsys.readouterr()
        begin(runs, folder, name=f"r{number}")
        assert capsys.readouterr().err.count("does not name the tokenizer of its weights") == 1
