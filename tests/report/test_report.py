import json
import math

import numpy as np
import pytest

from coca_train.config.errors import StorageError
from coca_train.evals.extrapolation import Cell, Extrapolation
from coca_train.evals.perplexity import summarise
from coca_train.report import figures, files, pages, tables

WINDOWS = (128, 256, 512)


def report(run="quickstart", losses=None, sources=("text",)):
    """losses: by frequencies, one for each window."""
    losses = losses or {"plain": (3.0, 4.0, 5.0), "dynamic_ntk": (3.0, 3.1, 3.2)}
    cells = [
        Cell(
            source=source,
            frequencies=name,
            window=window,
            result=summarise(np.array([[loss * 100, 100], [loss * 110, 100]]), n_bytes=600),
        )
        for source in sources
        for name, by_window in losses.items()
        for window, loss in zip(WINDOWS, by_window, strict=True)
    ]
    return Extrapolation(
        run=run,
        scheme="coca",
        training_window=128,
        stride=128,
        windows=WINDOWS,
        frequencies=tuple(losses),
        sources=sources,
        document_tokens=513,
        seed=0,
        cells=tuple(cells),
    )


def pixels(path):
    """The PNG as an array, through matplotlib's own reader; fails on a damaged file."""
    from matplotlib.image import imread

    return imread(str(path))


@pytest.fixture
def drawn(monkeypatch):
    """Every axes a figure was made with."""
    seen = []
    original = figures.Figure.subplots

    def subplots(self, *args, **kwargs):
        axes = original(self, *args, **kwargs)
        seen.append(axes)
        return axes

    monkeypatch.setattr(figures.Figure, "subplots", subplots)
    return seen


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
    assert pages.read_extrapolation(paths["json"]).cell("text", "plain", 512).perplexity == math.inf
    assert " inf |" in tables.extrapolation_table(result)
    assert pixels(paths["png"]).std() > 0.02


def test_table_is_aligned_markdown():
    lines = tables.extrapolation_table(report()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 4
    assert lines[0].split("|")[3].strip() == "128 (1x)"
    assert lines[0].split("|")[5].strip() == "512 (4x)"
    assert lines[2].split("|")[5].strip() == f"{math.exp(5.25):.2f}"


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (math.nan, "-"), (math.inf, "inf"), (12.345, "12.35"), (12345.6, "12,346")]
)
def test_numbers(value, shown):
    assert tables.number(value) == shown


def test_comparison(tmp_path, drawn):
    results = {"rope": report("rope"), "alibi": report("alibi", {"plain": (3.0, 3.0, 3.0)})}
    facts = {"rope": {"loss": 3.1, "tokens_per_s": 1234.0}, "alibi": {"loss": 3.2, "tokens_per_s": 1100.0}}
    table, paths = pages.write_comparison(results, facts, tmp_path, ["same batches"])
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert rows == ["rope", "rope + dynamic_ntk", "alibi"]
    assert "1,234" in table
    assert "3.20" in table
    saved = files.read_json(paths["json"])
    assert saved["checks"] == ["same batches"]
    assert saved["runs"]["alibi"]["loss"] == 3.2
    assert "* same batches" in paths["md"].read_text()
    labels = [t.get_text() for t in drawn[0].get_legend().get_texts()]
    assert labels[1:] == rows
    colours = {line.get_label(): line.get_color() for line in drawn[0].lines}
    assert colours["rope"] == colours["rope + dynamic_ntk"] != colours["alibi"]


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
    files.write_text(path, "old")
    monkeypatch.setattr(files.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match=r"E-REPORT-01 .*No space left"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
