"""What trackers are told besides the records of steps, read back with their own packages."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coca_train.runtime.trees import flatten
from coca_train.tracking.records import read_jsonl
from coca_train.tracking.trackers import Findings, WandbSink, _run_id, as_code, scalars
from tests.tracking import offline
from tests.tracking.support import DEFAULTS, SETTINGS, metrics_writer

NTK = "dynamic_ntk (alpha 4)"


def found(tmp_path: Path, stage: str = "", shade: int = 200) -> Findings:
    figure = tmp_path / "perplexity.png"
    Image.fromarray(np.full((4, 6, 3), shade, np.uint8)).save(figure)
    texts = {"verdict": "demo: reads to 256 tokens", "sample": "# The cat\nsat *down*"}
    page = tmp_path / "report.html"
    page.write_text("<p>the report</p>")
    return Findings(stage, {"perplexity": figure}, texts, {"reads/own": 256.0, f"holds/{NTK}": 512.0}, page)


def accumulated(folder: Path) -> Any:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def text(events: Any, tag: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in events.Tensors(f"{tag}/text_summary")]


def test_tensorboard_has_one_run_with_the_settings_the_figures_the_texts_and_the_reach(tmp_path):
    for shade in (200, 90):  # a report that is made again takes the place of the first
        tracked = metrics_writer(tmp_path, 3, tensorboard=True)
        tracked.log(4, {"loss": 1.5, "valid/text": 2.0, "probe/plain/256": 3.0, "batch_digest": "x"})
        tracked.show(4, found(tmp_path, shade=shade))
        tracked.close()
    assert not [path for path in (tmp_path / "tensorboard").iterdir() if path.is_dir()]
    run = accumulated(tmp_path / "tensorboard")
    assert text(run, "config/config") == [
        "    model:\n      d_model: 64\n      name: small\n    train:\n      seq_len: 128\n    layers: null\n"
    ]
    assert text(run, "config/changed") == ["    train.seq_len: 128\n"]
    (image,) = run.Images("report/perplexity")
    assert (image.step, image.width, image.height) == (4, 6, 4)
    folder = tmp_path / "decoded.png"
    folder.write_bytes(image.encoded_image_string)
    assert np.asarray(Image.open(folder)).max() == 90
    assert text(run, "report/sample") == ["    # The cat\n    sat *down*\n"]
    assert text(run, "report/verdict") == ["    demo: reads to 256 tokens\n"]
    assert {tag: [(e.step, e.value) for e in run.Scalars(tag)] for tag in run.Tags()["scalars"]} == {
        "train/loss": [(4, 1.5)],
        "valid/text": [(4, 2.0)],
        "reach/plain/256": [(4, 3.0)],
        "reach/reads/own": [(4, 256.0)],
        f"reach/holds/{NTK}": [(4, 512.0)],
    }
    plugin = run.summary_metadata
    assert {tag for tag, data in plugin.items() if data.plugin_data.plugin_name == "hparams"} == {
        "_hparams_/experiment",
        "_hparams_/session_start_info",
        "_hparams_/session_end_info",
    }


def test_stages_have_reports_of_their_own_and_later_records_are_of_the_same_run(tmp_path):
    tracked = metrics_writer(tmp_path, tensorboard=True)
    tracked.log(1, {"loss": 1.0})
    tracked.show(1, found(tmp_path, "warm_up"))
    tracked.log(2, {"loss": 2.0})
    tracked.end_records()
    assert list(tracked._sinks) == ["TensorBoard"]
    tracked.show(4, found(tmp_path))
    tracked.close()
    run = accumulated(tmp_path / "tensorboard")
    # Two files of one second: TensorBoard reads them by name.
    assert sorted((e.step, e.value) for e in run.Scalars("train/loss")) == [(1, 1.0), (2, 2.0)]
    assert [(e.step, e.value) for e in run.Scalars("reach/warm_up/reads/own")] == [(1, 256.0)]
    assert [(e.step, e.value) for e in run.Scalars("reach/reads/own")] == [(4, 256.0)]
    assert len(run.Images("report/perplexity")) == len(run.Images("report/warm_up/perplexity")) == 1


def test_the_table_of_runs_has_reach_and_the_settings_that_somebody_chose(tmp_path, monkeypatch):
    monkeypatch.setitem(SETTINGS, "optim", {"lr": 0.5, "eps": 0.1})
    monkeypatch.setitem(DEFAULTS, "optim", {"lr": 0.5, "eps": 0.1})
    tracked = metrics_writer(tmp_path, tensorboard=True)
    tracked.show(3, found(tmp_path))
    tracked.close()
    data = accumulated(tmp_path / "tensorboard").summary_metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    begun = HParamsPluginData.FromString(data["_hparams_/session_start_info"].plugin_data.content)
    settings = begun.session_start_info.hparams
    assert {key: settings[key].number_value or settings[key].string_value for key in settings} == {
        "train.seq_len": 128.0,
        "optim.lr": 0.5,
    }
    named = HParamsPluginData.FromString(data["_hparams_/experiment"].plugin_data.content).experiment
    assert [info.name for info in named.hparam_infos] == ["train.seq_len", "optim.lr"]
    assert [metric.name.tag for metric in named.metric_infos] == ["reach/reads/own", f"reach/holds/{NTK}"]


def test_a_run_that_begins_again_leaves_no_step_twice(tmp_path):
    """Killed at step 3: before the first save, and after that of step 2."""
    for start_step in (0, 0, 2):
        tracked = metrics_writer(tmp_path, start_step, tensorboard=True)
        for step in range(start_step + 1, 4):
            tracked.log(step, {"loss": 10.0 * start_step + step})
        tracked.close()
    events = accumulated(tmp_path / "tensorboard")
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1.0), (2, 2.0), (3, 23.0)]


def test_findings_that_cannot_be_shown_cost_a_warning(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    tracked = metrics_writer(tmp_path, tensorboard=True)
    tracked.show(1, found(tmp_path)._replace(figures={"lost": tmp_path / "nowhere.png"}))
    tracked.log(2, {"loss": 1.0})
    tracked.close()
    assert capsys.readouterr().err.startswith("WARNING: TensorBoard stopped: [Errno 2]")
    assert [record["loss"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [1.0]


def test_wandb_has_the_settings_the_figures_the_texts_and_the_reach(tmp_path):
    pytest.importorskip("wandb")
    for start_step in (0, 2):  # and again, when the run goes on
        tracked = metrics_writer(tmp_path, start_step, wandb="offline")
        for step in range(start_step + 1, 4):
            tracked.log(step, {"loss": 1.0 / step})
        tracked.show(3, found(tmp_path))
        tracked.show(3, found(tmp_path, "warm_up"))
        tracked.close()
    told = offline.read(tmp_path)
    assert len(told["ids"]) == 1
    assert {key: told["config"][key] for key in SETTINGS} == SETTINGS
    summary = told["summary"]
    assert summary["reach/reads/own"] == summary["reach/warm_up/reads/own"] == 256.0
    assert summary[f"reach/holds/{NTK}"] == 512.0
    assert summary["report/verdict"] == "demo: reads to 256 tokens"
    assert summary["report/sample"] == "# The cat\nsat *down*"
    # Images stand in the row of the last step, so that the row of a run that goes on takes the place of the first.
    assert list(told["history"]) == [1, 2, 3]
    for row in told["history"][3]:
        assert row["train/loss"] == pytest.approx(1 / 3)
        assert row["report/perplexity/_type"] == row["report/warm_up/perplexity/_type"] == "image-file"
        assert row["report/page/_type"] == row["report/warm_up/page/_type"] == "html-file"
    assert len(told["images"]) == 4  # two a session


def test_wandb_that_cannot_show_a_figure_warns_and_never_raises(tmp_path):
    pytest.importorskip("wandb")
    warnings: list[str] = []
    sink = WandbSink(tmp_path, "offline", "p", "demo", {}, warnings.append)
    sink.show(1, found(tmp_path)._replace(figures={"lost": tmp_path / "nowhere.png"}))
    sink.write(2, {"loss": 1.0})
    sink.close()
    assert len(warnings) == 1 and "wandb stopped" in warnings[0]


def test_tags_are_in_groups_and_settings_have_full_names():
    record = {"loss": 1.0, "mfu": None, "batch_digest": "x", "valid/text": 2.0, "probe/seconds": 3.0}
    assert scalars(record) == {"train/loss": 1.0, "valid/text": 2.0, "reach/seconds": 3.0}
    full = {"model.d_model": 64, "model.name": "small", "train.seq_len": 128, "layers": None}
    assert flatten(SETTINGS) == full
    assert as_code("a\n\nb") == "    a\n    \n    b\n"


def test_a_copy_of_a_run_is_a_wandb_run_of_its_own(tmp_path, capsys):
    original, copy, moved = tmp_path / "original", tmp_path / "copy", tmp_path / "moved"
    original.mkdir()
    known = _run_id(original)
    assert _run_id(original) == known
    shutil.copytree(original, copy)
    own = _run_id(copy)
    assert own != known
    assert known in capsys.readouterr().err
    assert (_run_id(copy), _run_id(original)) == (own, known)
    original.rename(moved)
    assert _run_id(moved) == known
    (copy / "wandb_id.txt").write_text(f"{known}\n")
    assert _run_id(copy) == known
