import json
import math
import os
import sys
import threading

import pytest

from coca_train.settings import load
from coca_train.tracking import records, writers
from coca_train.tracking.records import JsonlSink, read_jsonl
from coca_train.tracking.trackers import WandbSink
from coca_train.tracking.writers import shared_config
from tests.tracking.support import metrics_writer


def steps(path):
    """The steps of its records, each of which is a whole line."""
    found = [record["step"] for record in read_jsonl(path)]
    assert len(path.read_text().splitlines()) == len(found)
    return found


def test_each_line_is_one_flushed_json_object(tmp_path):
    writer = metrics_writer(tmp_path)
    writer.log(1, {"loss": 2.5, "valid/text": 2.0})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()  # before close
    assert [json.loads(line) for line in lines] == [{"step": 1, "loss": 2.5, "valid/text": 2.0}]
    writer.close()
    writer.close()


def test_resume_drops_records_of_steps_that_run_again_and_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": s, "loss": 1.0}) + "\n" for s in range(1, 8)) + '{"step": 8, "lo')
    writer = metrics_writer(tmp_path, 5)
    for step in (6, 7, 8):
        writer.log(step, {"loss": 0.5})
    writer.close()
    assert steps(path) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [r["loss"] for r in read_jsonl(path)] == [1.0] * 5 + [0.5] * 3


def test_not_finite_becomes_null(tmp_path):
    writer = metrics_writer(tmp_path)
    writer.log(1, {"loss": math.nan, "grad_norm": math.inf, "more": {"a": [math.nan, 1]}})
    line = {"step": 1, "loss": None, "grad_norm": None, "more": {"a": [None, 1]}}
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == line
    del line["more"]  # what is read of it are numbers
    assert read_jsonl(tmp_path / "metrics.jsonl") == [line]


def test_a_full_disk_warns_once_and_goes_on(tmp_path, monkeypatch):
    warnings = []
    sink = JsonlSink(tmp_path / "m.jsonl", 0, None, warnings.append)
    sink.write(1, {"loss": 1.0})
    write = os.write
    monkeypatch.setattr(records.os, "write", lambda fd, data: write(fd, data[:5]))  # what a filling disk does
    sink.write(2, {"loss": 1.0})

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "write", full)
    sink.write(3, {"loss": 1.0})
    monkeypatch.setattr(records.os, "write", write)
    sink.write(4, {"loss": 1.0})
    sink.close()
    assert steps(tmp_path / "m.jsonl") == [1, 4]
    assert len(warnings) == 2 and "No space left" in warnings[1]


def test_the_writer_warns_once_for_each_sink(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").mkdir()
    writer = metrics_writer(tmp_path)
    writer.log(1, {"loss": 1.0})
    writer.close()
    assert capsys.readouterr().err.count("WARNING") == 1


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    writer = metrics_writer(tmp_path, tensorboard=True, wandb="online")
    writer.log(1, {"loss": 1.0})
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_sink_that_fails_is_dropped_with_one_warning(tmp_path, monkeypatch, capsys):
    class Broken:
        def __init__(self, directory, start_step, hyper_parameters):
            pass

        def write(self, step, record):
            raise RuntimeError("no more events")

        def close(self):
            raise AssertionError("it is gone")

    monkeypatch.setattr(writers, "TensorBoardSink", Broken)
    writer = metrics_writer(tmp_path, tensorboard=True)
    for step in (1, 2):
        writer.log(step, {"loss": 1.0})
    writer.close()
    assert capsys.readouterr().err.count("TensorBoard stopped: no more events") == 1
    assert steps(tmp_path / "metrics.jsonl") == [1, 2]


class FakeWandb:
    """Stands in for the package; `fail` names the call that raises; init waits for `answers`."""

    def __init__(self, fail="", answers=None):
        self.fail, self.answers, self.logged, self.options = fail, answers, [], {}

    def Settings(self, **options):
        return options

    def init(self, **options):
        if self.answers is not None:
            self.answers.wait()
        if self.fail == "init":
            raise SystemExit("no network")
        self.options = options
        return self

    def log(self, record, step):
        if self.fail == "log":
            raise RuntimeError("server error")
        self.logged.append((step, record))

    def finish(self):
        self.logged.append("finished")


def wandb_sink(tmp_path, monkeypatch, fake, warnings, **options):
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return WandbSink(tmp_path, "online", "p", "demo", {"lr": 1.0}, warnings.append, **options)


def test_wandb_gets_numbers_and_one_id_for_the_run_directory(tmp_path, monkeypatch):
    ids, warnings = [], []
    for _ in range(2):
        fake = FakeWandb()
        sink = wandb_sink(tmp_path, monkeypatch, fake, warnings)
        sink.write(1, {"loss": 1.0, "batch_digest": "abc"})
        sink.close()
        assert fake.logged == [(1, {"train/loss": 1.0}), "finished"]
        assert (fake.options["resume"], fake.options["config"]) == ("allow", {"lr": 1.0})
        ids.append(fake.options["id"])
    assert ids[0] == ids[1] and not warnings


@pytest.mark.parametrize("fail", ["init", "log"])
def test_a_failing_wandb_warns_once_and_never_raises(tmp_path, monkeypatch, fail):
    warnings = []
    sink = wandb_sink(tmp_path, monkeypatch, FakeWandb(fail), warnings)
    for step in range(2000):  # more than the queue holds
        sink.write(step, {"loss": 1.0})
    sink.close()
    assert any("wandb stopped" in w for w in warnings)


def test_a_wandb_that_never_answers_blocks_nothing(tmp_path, monkeypatch):
    warnings, answers = [], threading.Event()
    sink = wandb_sink(tmp_path, monkeypatch, FakeWandb(answers=answers), warnings, close_s=0.1)
    for step in range(1500):
        sink.write(step, {"loss": 1.0})
    sink.close()
    assert not answers.is_set()
    assert any("too slow" in w for w in warnings)
    answers.set()  # lets its thread end


def test_trackers_get_no_paths():
    shared = shared_config(load(["run.root=/home/someone/runs", "data.dir=/home/someone/secret"]).config)
    assert "someone" not in json.dumps(shared)
    assert (shared["optim"]["lr"], shared["stages"]["all"]["trainable"]) == (0.004, ["*"])
    assert shared["data"].keys() == {"seed", "document_mask", "packing", "weights"}


def test_trackers_get_as_much_of_a_stages_own_data_as_of_the_runs():
    new = "{path:/home/someone/new,valid_path:null,weight:2.0,on_exhausted:repeat}"
    own = "{text:null,new:" + new + "}"
    words = [f"+stages.two.data.sources={own}", "+stages.two.data.seed=7", "+stages.two.optim.lr=0.5"]
    stages = shared_config(load(words).config)["stages"]
    assert "someone" not in json.dumps(stages)
    assert stages["two"]["data"] == {"seed": 7, "weights": {"text": None, "new": 2.0}}
    assert stages["two"]["optim"] == {"lr": 0.5} and stages["two"]["optimizer"] == "fresh"
    assert stages["all"]["data"] == {}
