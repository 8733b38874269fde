import dataclasses
import json
import math

import numpy as np
import pytest

from coca_train.evaluation.extrapolation import pages, tables
from coca_train.evaluation.extrapolation.measure import Absent
from coca_train.report import figures
from coca_train.runtime import durable
from coca_train.runtime.errors import DataError, StorageError
from tests.report.support import pixels, report


def test_extrapolation_report(tmp_path, drawn):
    paths = pages.write_extrapolation(report(), tmp_path)
    assert pages.read_extrapolation(paths["json"]) == report()
    image = pixels(paths["png"])
    assert image.shape[0] > 600
    assert image.std() > 0.05
    (axes,) = drawn
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "context window [tokens]"
    assert "perplexity" in axes.get_ylabel()
    assert [t.get_text() for t in axes.get_xticklabels()] == ["128", "256", "512"]
    labels = [t.get_text() for t in axes.get_legend().get_texts()]
    assert labels == ["training window (128)", "text, plain", "text, dynamic_ntk"]
    marked = [line for line in axes.lines if list(line.get_xdata()) == [128, 128]]
    assert len(marked) == 1
    plain = next(line for line in axes.lines if line.get_label() == "text, plain")
    np.testing.assert_allclose(plain.get_ydata(), np.exp(np.array([3.0, 4.0, 5.0]) * 1.05))
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert looks["text, plain"][0] == looks["text, dynamic_ntk"][0]
    assert looks["text, plain"][1] != looks["text, dynamic_ntk"][1]
    assert "quickstart (coca)" in axes.figure.get_suptitle()
    page = paths["md"].read_text()
    assert "stride 128" in page
    assert "513 tokens" in page
    assert "2 documents, 200 predictions" in page
    assert not list(tmp_path.glob(".*"))


def test_infinite_perplexities_do_not_break_report_or_json(tmp_path):
    result = report(losses={"plain": (3.0, 800.0, 900.0)})
    paths = pages.write_extrapolation(result, tmp_path)
    json.loads(paths["json"].read_text(), parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    assert pages.read_extrapolation(paths["json"]).find("text", "plain", 512).perplexity == math.inf
    assert " inf |" in tables.extrapolation_table(result)
    assert pixels(paths["png"]).std() > 0.02


def test_table_is_aligned_markdown():
    lines = tables.extrapolation_table(report()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 4
    assert lines[0].split("|")[3].strip() == "128 (1x)"
    assert lines[0].split("|")[5].strip() == "512 (4x)"
    assert lines[2].split("|")[5].strip() == f"{math.exp(5.25):.2f}"


def test_a_run_s_bare_name_is_what_it_was_trained_with():
    result = report(losses={"yarn": (3.0, 3.1, 3.2), "plain": (3.0, 3.1, 3.2)})
    assert [tables.label("rope-yarn", result, name) for name in result.variants] == ["rope-yarn", "rope-yarn + plain"]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (math.nan, "-"), (math.inf, "inf"), (12.345, "12.35"), (12345.6, "12,346")]
)
def test_numbers(value, shown):
    assert tables.number(value) == shown


def test_what_is_absent_is_shown_as_such_everywhere(tmp_path, drawn):
    result = report("learned", {"plain": (3.0, None, None), "segments": (3.0, 3.0, 3.0), "sinks": (None, None, None)})
    paths = pages.write_extrapolation(result, tmp_path)
    assert pages.read_extrapolation(paths["json"]) == result
    rows = [
        [cell.strip() for cell in line.split("|")[2:-1]] for line in tables.extrapolation_table(result).splitlines()
    ]
    assert rows[2:] == [["plain", "23.34", "–", "–"], ["segments", *["23.34"] * 3], ["sinks", "–", "–", "–"]]
    page = paths["md"].read_text()
    assert "Not scored:" in page
    assert "* plain at 256, 512: learned has 128 positions\n" in page
    assert "not scored: plain at 256, 512: learned has 128 positions\n" in pages.text_of(result)
    lines = {line.get_label(): list(line.get_xdata()) for line in drawn[0].lines}
    assert lines["text, plain"] == [128]
    assert "text, sinks" not in lines


def test_a_variant_that_cannot_be_has_its_reason_and_no_windows(tmp_path):
    absent = (Absent(variant="rerope", window=None, reason="nope knows no distances"),)
    result = dataclasses.replace(report("nope"), absent=absent)
    assert "\n* rerope: nope knows no distances\n" in pages.write_extrapolation(result, tmp_path)["md"].read_text()


def test_of_many_variants_the_picture_shows_the_texts_together(tmp_path, drawn):
    losses = {name: (3.0, 3.1, 3.2) for name in ("plain", "ntk", "yarn", "sinks", "segments")}
    pages.write_extrapolation(report(losses=losses, sources=("text", "code", "all")), tmp_path)
    assert [line.get_label() for line in drawn[0].lines][1:] == list(losses)
    assert len({line.get_color() for line in drawn[0].lines}) == 6


@pytest.mark.parametrize("text", ["{", "[]", '{"run": "x", "frequencies": ["plain"]}'])
def test_a_report_that_cannot_be_read_is_one_line(tmp_path, text):
    path = tmp_path / "extrapolation.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"^E-REPORT-02 report .*extrapolation.json: .*\. Fix: .*$") as error:
        pages.read_extrapolation(path)
    assert "\n" not in str(error.value)


def test_loss_curve(tmp_path, drawn):
    records = [{"step": s, "loss": 5.0 / s} for s in range(1, 41)] + [
        {"step": 40, "valid/text": 0.3},
        {"step": 41, "loss": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    pixels(pages.write_loss_curve(tmp_path, "demo"))
    (axes,) = drawn
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [
        "training, as logged",
        "training, smoothed",
        "held out: text",
    ]
    assert axes.get_xlabel()
    assert "nats" in axes.get_ylabel()


def test_loss_curve_of_a_run_without_records_is_still_a_picture(tmp_path):
    pixels(pages.write_loss_curve(tmp_path, "demo"))


def test_smoothing_keeps_lines_and_ends():
    line = np.arange(100.0)
    np.testing.assert_allclose(figures.smooth(line), line)
    noisy = np.where(np.arange(100) % 2, 1.0, -1.0)
    assert abs(figures.smooth(noisy)[20:80]).max() < 0.25


def test_files_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    durable.write_text(path, "old")
    monkeypatch.setattr(durable.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match=r"E-REPORT-01 .*No space left"):
        durable.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
