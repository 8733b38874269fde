"""What a run directory remembers: which changes it refuses, when a report is made again, where a saved run loads."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coca_train.checkpoint.record import versions
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.report.render import pictures
from coca_train.runtime.errors import CheckpointError, DataError, StorageError
from coca_train.settings import load, load_saved
from coca_train.training import ending
from coca_train.training.ending import Finished, final_report, write_sample
from tests.states import begin_record


@pytest.fixture(autouse=True)
def _empty_pictures(monkeypatch):
    monkeypatch.setattr(pictures, "_saved", lambda sheet, kind, dpi=0: b"")


def test_settings_are_fixed_once_a_checkpoint_depends_on_them(tmp_path):
    def start(*overrides, data="same"):
        loaded = load(list(overrides))
        return begin_record(tmp_path, loaded, {"data": data})

    first = start()
    assert start()["settings"] == first["settings"]
    assert start("model.n_layers=3", data="other")["settings"]["model.n_layers"] == 3  # nothing was saved yet

    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    again = start("model.n_layers=3", data="other")
    assert again["run_id"] == json.loads((tmp_path / "run.json").read_text())["run_id"]
    with pytest.raises(CheckpointError, match=r"E-CKP-24 .*model\.n_layers 3 -> 4; .*Fix: model\.n_layers=3, or"):
        start(data="other")
    with pytest.raises(DataError, match="E-TOK-14"):
        start("model.n_layers=3")
    start("model.n_layers=3", "optim.lr=0.002", data="other")  # announced, not refused
    with pytest.raises(
        CheckpointError, match=r"E-CKP-24 .*attention_pattern\.name 'causal' -> 'sliding_window'.*Fix: undo"
    ):
        start("model.n_layers=3", "attention_pattern=sliding_window", data="other")


def test_a_run_begun_with_another_default_is_told_the_words_that_keep_it(tmp_path):
    """T was of half width unless told otherwise."""

    def start(*overrides):
        loaded = load(["position=coca", *overrides])
        return begin_record(tmp_path, loaded, {"data": "same"})

    start("position.t_width=half")
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"E-CKP-24 .* Fix: position\.t_width=half, or .* run\.name=\S+$"):
        start()
    start("position.t_width=half")


def test_a_run_goes_on_without_a_word_unless_a_setting_changed(tmp_path, monkeypatch, capsys):

    def start(*overrides):
        loaded = load(overrides)
        return begin_record(tmp_path, loaded, {"data": "same"})

    record = start()
    assert record["folder"] == os.getcwd()
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    start()
    assert "CHANGED" not in capsys.readouterr().err
    start("data.upsample_factor=5", "data.upsample_from_tokens=9", "data.packing=segments")
    assert "CHANGED since this run began: data.packing 'windows' -> 'segments'" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert start()["folder"] == str(tmp_path)  # where relative paths of the data begin now


def test_a_report_is_made_again_when_the_evaluation_changes(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')

    def report(*overrides: str, step: int = 1) -> bool:
        config = load(["eval.extrapolation.enabled=false", "eval.sample_tokens=0", *overrides]).config
        final_report(config, tmp_path, cast(Any, None), cast(Any, None), {}, step)
        return "is there already" not in capsys.readouterr().err

    assert report()
    assert not report()
    assert not report("eval.extrapolation.every_steps=5")  # what was probed on the way is no other report
    assert report("eval.max_tokens=4096")
    assert report("eval.max_tokens=4096", step=2)


def test_a_saved_run_loads_on_a_machine_without_its_gpu(tmp_path):
    text = load(["tracking=tensorboard"]).record
    assert "device: auto" in text
    (tmp_path / "config.yaml").write_text(text.replace("device: auto", "device: cuda"))
    assert load_saved(tmp_path).config.engine.device == "cuda"


def test_a_sample_longer_than_a_learned_table_is_left_out(tmp_path, capsys):
    words = ["position=learned", "train.seq_len=16", "model.n_layers=1", "model.d_model=32", "model.n_heads=2"]
    config = load([*words, "eval.sample_prompt=abc", "eval.sample_tokens=13"]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=64, max_seq_len=16)
    init_weights(model, config.model, seed=0)
    tokenizer = SimpleNamespace(encode=lambda text: [1, 2, 3], decode=lambda tokens: f" {len(tokens)}", eod=None)
    finished = Finished(config, tmp_path, tmp_path, cast(Any, tokenizer), {}, 1, "")
    assert write_sample(finished, model) == "abc 13"
    assert (tmp_path / "sample.txt").read_text() == "abc 13\n"
    longer = replace(config, eval=replace(config.eval, sample_tokens=14))
    elsewhere = finished._replace(config=longer, directory=tmp_path / "other")
    assert write_sample(elsewhere, model) == ""
    assert "WARNING: no sample, eval.sample_tokens=14: " in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_memory_that_runs_out_leaves_the_sample_out(tmp_path, capsys, monkeypatch):
    def full(*_: Any, **__: Any) -> list[int]:
        raise MemoryError

    monkeypatch.setattr(ending, "generate", full)
    monkeypatch.setattr(ending, "check_positions", lambda *_: None)
    tokenizer = SimpleNamespace(encode=lambda text: [1, 2, 3], eod=None)
    assert write_sample(Finished(load([]).config, tmp_path, tmp_path, cast(Any, tokenizer), {}, 1, ""), None) == ""
    assert "WARNING: no sample, eval.sample_tokens=64: " in capsys.readouterr().err


def test_a_report_that_cannot_be_written_fails_no_run_and_is_made_later(tmp_path, capsys, monkeypatch):
    config = load(["eval.extrapolation.enabled=false", "eval.sample_tokens=0"]).config

    def full(*_: Any) -> None:
        raise StorageError("E-REPORT-01 report: No space left")

    with monkeypatch.context() as patch:
        patch.setattr(ending, "write_report", full)
        final_report(config, tmp_path, cast(Any, None), cast(Any, None), {}, 1)
    assert "E-REPORT-01" in capsys.readouterr().err
    assert not (tmp_path / "report" / "done.json").exists()
    final_report(config, tmp_path, cast(Any, None), cast(Any, None), {}, 1)
    assert (tmp_path / "report" / "report.html").is_file()


def test_a_report_of_another_format_is_made_anew(tmp_path):
    config = load(["eval.extrapolation.enabled=false", "eval.sample_tokens=0"]).config
    final_report(config, tmp_path, cast(Any, None), cast(Any, None), {}, 1)
    done = tmp_path / "report" / "done.json"
    for mark in (json.loads(done.read_text()) | {"format": 1}, {"step": 1}, [], "damaged"):
        done.write_text(json.dumps(mark)[:-1] if mark == "damaged" else json.dumps(mark))
        (tmp_path / "report" / "report.html").unlink()
        final_report(config, tmp_path, cast(Any, None), cast(Any, None), {}, 1)
        assert (tmp_path / "report" / "report.html").is_file()


def test_a_run_from_a_checkout_says_its_commit():
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    record = versions()
    assert record.get("commit", "") == commit.stdout.strip()
    assert ("uncommitted" in record) == (commit.returncode == 0)
