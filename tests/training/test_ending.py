"""A finished run's report, of real little runs: the numbers of an evaluation, cells that are kept, what cannot be."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from coca_train.evaluation import pipeline
from coca_train.evaluation.configuration import load as load_evaluation
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.suites import perplexity
from coca_train.evaluation.trainings import RunReport
from coca_train.runtime.durable import read_json
from coca_train.settings import load
from coca_train.tracking import trackers
from coca_train.training import ending
from tests.stages.support import Runs, leave_out, schedule, stage

NTK = "dynamic_ntk (alpha 4)"  # as a report calls it
REPORT = ["eval.extrapolation.enabled=true", "eval.extrapolation.multiples=[1,2]", "eval.extrapolation.max_documents=3"]
# Tests that look at pages or pictures; the others do without what takes longest.
WITH_PAGES = (
    "test_the_report_of_a_run_has_the_numbers_of_an_evaluation_of_its_checkpoint",
    "test_each_stage_has_a_report_on_its_own_weights_and_window",
    "test_trackers_get_what_the_report_found_once",
)


@pytest.fixture
def runs(corpus, tmp_path, monkeypatch, request) -> Runs:
    kept = ("draw", "write_report") if request.node.name in WITH_PAGES else ()
    leave_out(lambda where, name, value: name in kept or monkeypatch.setattr(where, name, value))
    return Runs(tmp_path, corpus, monkeypatch)


@pytest.fixture
def measured(monkeypatch) -> list[tuple[str, Any]]:
    """Frequencies and window of every cell that is measured from now on."""
    places: list[tuple[str, Any]] = []
    measure = perplexity.Evaluator.measure

    def counting(settings, subject, point, material, setup):
        places.append((subject.model.position.settings.rope_scaling.name, point))
        return measure(settings, subject, point, material, setup)

    monkeypatch.setattr(perplexity.Evaluator, "measure", counting)
    return places


def results(run_dir: Path, stage: str = "") -> Evaluation:
    return Evaluation.from_json(read_json(run_dir / "report" / stage / "results.json"))


def test_the_report_of_a_run_has_the_numbers_of_an_evaluation_of_its_checkpoint(runs, tmp_path):
    run_dir = runs.train("r", *REPORT)
    report = results(run_dir)
    assert [(s.name, s.step, s.training_window, s.variants) for s in report.subjects] == [("r", 3, 24, ("plain", NTK))]
    words = [f"checkpoint={run_dir}", "grid.rope_scalings=[trained,dynamic_ntk@alpha:4]", "grid.lengths=[1x,2x]"]
    config, _ = load_evaluation([*words, "text.max_documents=3", f"work.root={tmp_path / 'e'}"])
    other = read_json(pipeline.evaluate(config, "") / "results.json")
    assert report.points == tuple(other["points"]) == (24, 48)
    assert len(report.cells) == len(other["cells"]) == 4
    for cell in other["cells"]:
        mine = report.find("r", cell["variant"], cell["point"])
        assert mine is not None
        assert mine.status == cell["status"] == "done"
        for source in ("code", "text", "all"):
            one, two = mine.result["sources"][source], cell["result"]["sources"][source]
            assert one.pop("nll_sum") == pytest.approx(two.pop("nll_sum"), rel=1e-6)
            assert {key: one[key] for key in ("n_documents", "n_tokens", "n_bytes", "ends")} == {
                key: two[key] for key in ("n_documents", "n_tokens", "n_bytes", "ends")
            }
            assert one["ci_low"] == pytest.approx(two["ci_low"], rel=1e-6)
            assert one["loss_by_position"] == pytest.approx(two["loss_by_position"], rel=1e-6)
    assert {"report.html", "report.md", "results.json", "done.json"} < {p.name for p in (run_dir / "report").iterdir()}


def test_a_report_that_is_killed_goes_on_and_other_settings_measure_only_what_is_new(runs, measured, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ending, "_write", kill)
        with pytest.raises(Killed):
            runs.train("r", *REPORT)
    assert measured == [("plain", 48), ("plain", 24), ("dynamic_ntk", 48), ("dynamic_ntk", 24)]
    run_dir = runs.train("r", *REPORT)
    assert len(measured) == 4
    before = results(run_dir)
    runs.train("r", *REPORT, "eval.extrapolation.rope_scalings=[plain,dynamic_ntk@alpha:4,linear]")
    assert measured[4:] == [("linear", 48), ("linear", 24)]
    assert results(run_dir).cells[:4] == before.cells


def test_memory_that_runs_out_is_a_cell_and_the_run_is_finished(runs, monkeypatch, capsys):
    measure = perplexity.Evaluator.measure

    def small(settings, subject, point, material, setup):
        if point == 48:
            raise MemoryError
        return measure(settings, subject, point, material, setup)

    monkeypatch.setattr(perplexity.Evaluator, "measure", small)
    run_dir = runs.train("r", *REPORT)
    status = {(cell.variant, cell.point): cell.status for cell in results(run_dir).cells}
    assert status == {
        (name, window): "done" if window == 24 else "out_of_memory" for name in ("plain", NTK) for window in (24, 48)
    }
    assert (run_dir / "report" / "done.json").is_file()
    assert "r, plain at 48: " in capsys.readouterr().err


def test_each_stage_has_a_report_on_its_own_weights_and_window(runs):
    words = schedule(stage("one"), stage("two", "max_steps: 3, train: {seq_len: 12}"))
    run_dir = runs.train("r", *REPORT, *words)
    before, last = results(run_dir, "one"), results(run_dir)
    assert [(e.subjects[0].step, e.subjects[0].training_window, e.points) for e in (before, last)] == [
        (3, 24, (24, 48)),
        (6, 12, (12, 24)),
    ]
    assert before.subjects[0].weights != last.subjects[0].weights
    assert (run_dir / "loss_curve.png").stat().st_size > 10_000


def test_results_of_an_earlier_step_do_not_stay_beside_a_report_without_any(runs):
    run_dir = runs.train("r", *REPORT)
    runs.train("r", *REPORT, "train.max_steps=4", "eval.extrapolation.enabled=false")
    assert not (run_dir / "report" / "results.json").exists()
    assert json.loads((run_dir / "report" / "done.json").read_text())["step"] == 4


def test_a_report_on_nothing_is_a_warning_and_no_error(tmp_path, capsys):
    config = load([]).config
    assert ending.evaluate(ending.Finished(config, tmp_path, tmp_path, cast(Any, None), {}, 1, ""), None) is None
    assert "E-EVAL-04 data.sources: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_trackers_get_what_the_report_found_once(runs, capsys):
    """Settings, figures, sample and reach; a second start of a finished run adds nothing, a tracker that breaks costs
    nothing."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = [*schedule(stage("one"), stage("two")), "tracking.tensorboard=true", *REPORT, "eval.sample_tokens=3"]

    def read(folder: Path) -> Any:
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        return events

    for _ in range(2):
        run_dir = runs.train("r", *words, "eval.sample_prompt=The")
        logged = read(run_dir / "tensorboard")
        assert [event.step for event in logged.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
        shown = set()
        for place, step in (("report/one", 3), ("report", 6)):
            figures = {p.stem for p in (run_dir / place / "figures").glob("*.png")}
            shown |= {f"{place}/{name}" for name in figures}
            assert [image.step for image in logged.Images(f"{place}/loss")] == [step]
            (sample,) = logged.Tensors(f"{place}/sample/text_summary")
            assert sample.tensor_proto.string_val[0].decode().startswith("    The")
            (line,) = logged.Tensors(f"{place}/verdict/text_summary")
            assert "16 more documents" in line.tensor_proto.string_val[0].decode()
        assert set(logged.Tags()["images"]) == shown
        (settings,) = logged.Tensors("config/config/text_summary")
        assert "d_model: " in settings.tensor_proto.string_val[0].decode()
    (run_dir / "report" / "done.json").unlink()
    with runs.monkeypatch.context() as patch:
        patch.setattr(trackers.TensorBoardSink, "show", lambda *_: 1 / 0)
        runs.train("r", *words, "eval.sample_prompt=The")
    assert "WARNING: TensorBoard stopped: division by zero" in capsys.readouterr().err
    assert (run_dir / "report" / "done.json").exists()


def test_a_sample_moves_no_cursor(capsys):
    """A log is read in a terminal, whatever a model has learned to say."""
    report = RunReport(title="", records=[], evaluation=None, sample="a\x1b[2Jb\nc", facts=[], command="")
    ending._show(report)
    assert "a\\x1b[2Jb\nc" in capsys.readouterr().err
