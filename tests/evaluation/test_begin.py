"""What is put in front of every text: text.begin, for a Hugging Face folder and a run of its weights alike."""

import json
import shutil
from pathlib import Path

import pytest

from coca_train.evaluation.subject import open_folder, subject_of
from coca_train.evaluation.variants import Choice
from tests.stages.support import imported


def begin(path: Path, choice: str) -> tuple[int, ...]:
    opened = open_folder(str(path), "cpu", "auto")
    return subject_of(opened, str(path), "one", [Choice()], choice).begin  # type: ignore[arg-type]


@pytest.mark.parametrize(("said", "auto"), [(None, (1,)), (True, (1,)), (False, ())])
def test_a_folder_and_the_run_of_its_weights_begin_alike(folders, tmp_path, said, auto):
    folder = tmp_path / "llama"
    shutil.copytree(folders("one"), folder)
    if said is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": said}))
    run = imported(folder, tmp_path, "run")
    for path in (folder, run):
        assert begin(path, "auto") == auto
        assert begin(path, "bos") == (1,)
        assert begin(path, "none") == ()


def test_a_run_that_was_trained_from_nothing_has_none(folders, tmp_path):
    run = imported(folders("one"), tmp_path, "run")
    record = json.loads((run / "run.json").read_text())
    del record["imported"]
    (run / "run.json").write_text(json.dumps(record))
    assert begin(run, "auto") == () and begin(run, "bos") == (1,)
    record["start"] = {"origin": {"folder": "llama", "model_type": "llama"}}  # as of one that start.path began
    (run / "run.json").write_text(json.dumps(record))
    assert begin(run, "auto") == (1,)
    record["start"] = {"origin": {"run": "another", "imported": None}}
    (run / "run.json").write_text(json.dumps(record))
    assert begin(run, "auto") == ()
