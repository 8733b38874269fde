"""What a run directory remembers: which changes it refuses, when a report is made again, where a saved run loads."""

import json
from typing import Any, cast

import pytest

from coca_train.config.errors import CheckpointError, DataError
from coca_train.config.load import load, load_saved
from coca_train.final import final_report
from coca_train.record import open_record


def test_settings_are_fixed_once_a_checkpoint_depends_on_them(tmp_path):
    def start(*overrides, data="same"):
        return open_record(tmp_path, load(list(overrides)), {"data": data}, dict)

    first = start()
    assert start()["settings"] == first["settings"]
    assert start("model.n_layers=3", data="other")["settings"]["model.n_layers"] == 3  # nothing was saved yet

    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    again = start("model.n_layers=3", data="other")
    assert again["run_id"] == json.loads((tmp_path / "run.json").read_text())["run_id"]
    with pytest.raises(CheckpointError, match=r"E-CKP-24 .*model\.n_layers 3 -> 6"):
        start(data="other")
    with pytest.raises(DataError, match="E-TOK-14"):
        start("model.n_layers=3")
    start("model.n_layers=3", "optim.lr=0.002", data="other")  # announced, not refused


def test_a_report_is_made_again_when_the_evaluation_changes(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')

    def report(*overrides: str, step: int = 1) -> bool:
        config = load(["eval.extrapolation.enabled=false", "eval.sample_tokens=0", *overrides]).config
        final_report(config, tmp_path, cast(Any, None), cast(Any, None), step)
        return "is there already" not in capsys.readouterr().err

    assert report()
    assert not report()
    assert report("eval.max_tokens=4096")
    assert report("eval.max_tokens=4096", step=2)


def test_a_saved_run_loads_on_a_machine_without_its_gpu(tmp_path):
    text = load(["tracking=tensorboard"]).yaml
    assert "device: auto" in text
    (tmp_path / "config.yaml").write_text(text.replace("device: auto", "device: cuda"))
    assert load_saved(tmp_path).config.engine.device == "cuda"
