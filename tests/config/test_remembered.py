"""What a command line may leave unsaid: the run that it goes on with has said it."""

import json

import pytest

from coca_train.commands._training import load, remembered
from coca_train.config.load import FORMAT
from coca_train.runtime.errors import UserError


@pytest.fixture
def run(tmp_path):
    """A run that has a checkpoint, and was begun with one more stage than the files have."""
    folder = tmp_path / "r"
    (folder / "checkpoints" / "step-00000004").mkdir(parents=True)
    record = {
        "overrides": ["optim.lr=0.1", "+stages.more={max_steps: 400}"],
        "format": FORMAT,
        "schedule": ["+stages.more={max_steps: 400}"],
    }
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def words(run, *more):
    return [f"run.root={run.parent}", f"run.name={run.name}", *more]


def test_a_schedule_that_was_typed_is_the_runs(run, capsys):
    assert list(load(remembered(words(run), ())).config.stages) == ["all", "more"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stages ") and line.endswith(" '+stages.more={max_steps: 400}'")


@pytest.mark.parametrize(
    "word", ["stages=single", "+stages.other={max_steps: 3}", "~stages.all", "stages.all.max_steps=9"]
)
def test_what_is_said_now_is_all_there_is(run, word):
    assert remembered(words(run, word), ()) == words(run, word)


def test_a_run_that_begins_anew_has_said_nothing(run):
    (run / "checkpoints" / "step-00000004").rmdir()
    assert remembered(words(run), ()) == words(run)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"overrides": 3}'])
def test_a_damaged_record_is_told_by_who_reads_it(run, text):
    (run / "run.json").write_text(text)
    assert remembered(words(run), ()) == words(run)


def test_from_start_needs_a_start():
    with pytest.raises(UserError, match=r"E-CFG-71 model=from_start: .*Fix: start\.path="):
        load(["model=from_start"])
