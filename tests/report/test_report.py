"""The page of a finished run, from made-up results; and files that appear whole or not at all."""

import json
import math

import numpy as np
import pytest

from coca_train.evaluation.perplexity_page import number, perplexity_text
from coca_train.evaluation.results import Evaluation
from coca_train.evaluation.trainings import POINTS, RunReport, loss_curves, run_page
from coca_train.report.render import write_report
from coca_train.runtime import durable
from coca_train.runtime.errors import StorageError
from tests.evaluation.grids import blocks
from tests.report.support import pixels, report

RECORDS = [{"step": s, "loss": 5.0 / s} for s in range(1, 41)] + [
    {"step": 40, "valid/text": 0.3},
    {"step": 41, "loss": None},
]


def page(evaluation, records=RECORDS, sample="The cat"):
    known = {"facts": (("computed on", "a test"),), "command": "python -m coca_train"}
    return run_page(RunReport(title="quickstart", records=records, evaluation=evaluation, sample=sample, **known))


def test_the_page_of_a_run(tmp_path):
    document = page(report())
    assert document.title.startswith("quickstart: ") and "128 to 512" in document.title
    assert [section.title for section in document.sections] == [
        "Perplexity, text",
        "Loss by position",
        "Training",
        "Sample (greedy)",
        "Definition",
    ]
    by_name = blocks(document)
    curves = by_name["perplexity-curves-text"]
    assert (curves.x_log, curves.y_log, curves.x_label) == (True, True, "context window [tokens]")
    assert "perplexity" in curves.y_label
    assert curves.marks == ((128.0, "training window"),)
    assert [line.label for line in curves.lines] == ["quickstart", "quickstart + dynamic NTK"]
    assert curves.lines[0].x == (128, 256, 512)
    np.testing.assert_allclose(curves.lines[0].y, np.exp(np.array([3.0, 4.0, 5.0]) * 1.05))
    assert curves.lines[0].low[0] < curves.lines[0].y[0] < curves.lines[0].high[0]
    paths = write_report(document, tmp_path)
    text = paths["report.md"].read_text()
    for words in ("quickstart", "2 documents, 200 predictions", "stride: 128 tokens", "The cat"):
        assert words in text
    assert "The cat" in paths["report.html"].read_text()
    assert pixels(paths["figures/loss.png"]).std() > 0.02
    assert not list(tmp_path.rglob(".*"))


def test_a_run_without_results_has_the_rest():
    document = page(None, sample="")
    assert [section.title for section in document.sections] == ["Training"]
    assert document.facts == (("computed on", "a test"),)


def test_infinite_perplexities_do_not_break_report_or_json(tmp_path):
    evaluation = report(losses={"plain": (3.0, 800.0, 900.0)})
    path = durable.write_json(tmp_path / "results.json", evaluation.to_json())
    json.loads(path.read_text(), parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    again = Evaluation.from_json(durable.read_json(path))
    assert again.find("quickstart", "plain", 512).result["sources"]["text"]["perplexity"] == math.inf
    assert " inf |" in perplexity_text(evaluation)
    paths = write_report(page(evaluation), tmp_path)
    assert pixels(paths["figures/perplexity-curves-text.png"]).std() > 0.02


@pytest.mark.parametrize(("value", "shown"), [(math.inf, "inf"), (12.345, "12.35"), (12345.6, "12,346")])
def test_numbers(value, shown):
    assert number(value) == shown


def test_what_is_absent_is_shown_as_such_everywhere(tmp_path):
    losses = {"plain": (3.0, None, None), "segments": (3.0, 3.0, 3.0), "sinks": (None, None, None)}
    evaluation = report("learned", losses)
    by_name = blocks(page(evaluation))
    assert [[v.text for v in row.values] for row in by_name["perplexity-text"].rows if not row.theirs] == [
        ["23.34", "–", "–"],
        ["23.34"] * 3,
    ]
    text = write_report(page(evaluation), tmp_path)["report.md"].read_text()
    assert "Not measured" in text
    assert "* learned, plain at 256, 512: " in text
    assert "* learned, sinks: " in text
    assert "learned, plain at 256, 512: " in perplexity_text(evaluation)
    lines = {line.label: line.x for line in by_name["perplexity-curves-text"].lines}
    assert lines == {"learned positions": (128.0,), "learned positions + segments": (128.0, 256.0, 512.0)}


def test_a_run_of_which_nothing_could_be_measured_says_why():
    evaluation = report("learned", {"plain": (None, None, None)})
    titles = [section.title for section in page(evaluation).sections]
    assert titles == ["Training", "Sample (greedy)", "Not measured", "Definition"]
    assert "learned, plain: " in perplexity_text(evaluation)


def test_the_picture_shows_the_texts_together():
    losses = {name: (3.0, 3.1, 3.2) for name in ("plain", "ntk", "yarn", "sinks", "segments")}
    by_name = blocks(page(report(losses=losses, sources=("text", "code", "all"))))
    variants = ("", " + NTK-aware", " + YaRN", " + sinks", " + segments")
    assert [line.label for line in by_name["perplexity-curves-all"].lines] == [f"quickstart{each}" for each in variants]
    assert {"perplexity-all", "perplexity-text", "perplexity-code"} < set(by_name)
    assert "perplexity-curves-text" not in by_name


def test_loss_curve():
    block = loss_curves(RECORDS)
    assert [line.label for line in block.lines] == ["training", "held out: text"]
    assert block.lines[0].x == tuple(map(float, range(1, 41)))
    assert block.lines[0].y == tuple(5.0 / s for s in range(1, 41))
    assert block.lines[0].low is None
    assert (block.lines[1].x, block.lines[1].y) == ((40.0,), (0.3,))
    assert block.x_label
    assert "nats" in block.y_label


def test_of_many_steps_a_point_is_a_stretch_with_its_lowest_and_highest():
    noisy = [{"step": s, "loss": 3.0 + (1.0 if s % 2 else -1.0)} for s in range(10 * POINTS)]
    (line,) = loss_curves(noisy).lines
    assert len(line.x) == POINTS
    assert line.y == pytest.approx([3.0] * POINTS)
    assert (set(line.low), set(line.high)) == ({2.0}, {4.0})
    straight = [{"step": s, "loss": float(s)} for s in range(1000)]
    (line,) = loss_curves(straight).lines
    np.testing.assert_allclose(line.x, line.y)


def test_loss_curve_of_a_run_without_records_is_still_a_picture(tmp_path):
    assert loss_curves([]).lines == ()
    assert pixels(write_report(page(None, records=[]), tmp_path)["figures/loss.png"]).shape[0] > 600


def test_files_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    durable.write_text(path, "old")
    monkeypatch.setattr(durable.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match=r"E-REPORT-01 .*No space left"):
        durable.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
