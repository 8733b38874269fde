"""All files of a report: which there are, the same bytes each time, and what its pictures show."""

import hashlib
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from coca_train.report.blocks import HeatMap, HeatMaps, Line, Table, Text
from coca_train.report.render import pictures, write_report
from coca_train.report.render.scales import COLOURS, limits, tick_text, ticks, x_ticks
from tests.evaluation.demo import GROWTH, curves, document_of, heat_maps, lines_of, perplexity_table
from tests.evaluation.page_parser import Page, render

PLACES = {
    "report.html",
    "report.md",
    "summary.json",
    *(f"tables/{name}.csv" for name in ("perplexity", "perplexity-curves", "passkey")),
    "tables/perplexity.tex",
    *(f"figures/{name}.{kind}" for name in ("perplexity-curves", "passkey") for kind in ("png", "svg")),
}


def test_writes_everything_and_the_same_each_time(tmp_path):
    small = document_of(perplexity_table(), curves(), small_maps())
    digests = []
    for name in ("one", "two"):
        paths = write_report(small, tmp_path / name)
        assert set(paths) == PLACES
        assert {str(p.relative_to(tmp_path / name)) for p in (tmp_path / name).rglob("*") if p.is_file()} == PLACES
        digests.append({place: hashlib.sha256(path.read_bytes()).hexdigest() for place, path in paths.items()})
    assert digests[0] == digests[1]


def small_maps():
    maps = heat_maps()
    return type(maps)(**{**vars(maps), "title": "$\\x$ is not mathematics", "panels": maps.panels[2:3]})


def test_a_name_twice_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="perplexity-curves"):
        write_report(document_of(curves(), curves()), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_picture_of_curves(monkeypatch):
    seen = []
    original = pictures._saved
    monkeypatch.setattr(pictures, "_saved", lambda sheet, kind: seen.append(sheet) or original(sheet, kind))
    files = pictures.picture(curves())
    image = np.asarray(Image.open(io.BytesIO(files["png"])))
    assert image.shape[0] > 600 and image.std() > 10
    svg = files["svg"].decode()
    assert "<text" not in svg and "dc:date" not in svg
    (axes,) = seen[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["512", "1,024", "2,048", "4,096", "8,192", "16k", "32k"]
    drawn = {line.get_label(): line for line in axes.lines}
    np.testing.assert_array_equal(drawn["ALiBi"].get_ydata(), curves().lines[2].y)
    assert [words.get_text() for words in axes.texts] == ["training window (512)", "▲", "▲"]  # two are infinite
    assert [512, 512] in [list(line.get_xdata()) for line in axes.lines]
    assert drawn["RoPE (paper)"].get_linestyle() == "--" and drawn["RoPE"].get_linestyle() == "-"
    assert len(drawn["RoPE (paper)"].get_xdata()) == 5  # inf is left out
    assert drawn["CoCA + dynamic NTK (alpha 4) (paper)"].get_color() == COLOURS[0]
    assert {t.get_text() for t in seen[0].legends[0].get_texts()} == {label for label in drawn if label[0] != "_"}


def test_a_picture_of_many_intervals_has_a_panel_for_each_curve(monkeypatch):
    """All others grey behind it, every interval drawn, one axis for all."""
    seen = []
    monkeypatch.setattr(pictures, "_saved", lambda sheet, kind: seen.append(sheet) or b"")
    block = curves(GROWTH)
    pictures.picture(block)
    axes = [one for one in seen[0].axes if one.get_visible()]
    titles = [one.get_title().replace("\n", " ").removesuffix(" (paper)") for one in axes]
    assert titles == [line.label for line in block.lines]
    assert [len(one.collections) for one in axes] == [1] * 5 + [0] * 3  # those of the paper have none
    assert len({one.get_ylim() for one in axes}) == 1
    for one, line in zip(axes, block.lines, strict=True):
        marked = [drawn for drawn in one.lines if drawn.get_marker() not in ("None", None)]
        assert len(one.lines) == 1 + 7 + 1 and len(marked) == 1  # the training window, all others, its own
        np.testing.assert_array_equal(marked[0].get_ydata(), [y for y in line.y if math.isfinite(y)])


def test_picture_of_a_heat_map(monkeypatch):
    seen = []
    monkeypatch.setattr(pictures, "_saved", lambda sheet, kind: seen.append(sheet) or b"")
    pictures.picture(small_maps())
    (axes,) = seen[0].axes
    values = heat_maps().panels[2].values
    assert [t.get_text() for t in axes.texts] == ["–" if v is None else f"{v:.2f}" for row in values for v in row]
    assert axes.images[0].get_clim() == (0.0, 1.0)
    assert list(axes.lines[0].get_xdata()) == [0.5, 0.5]
    assert re.search("training window", seen[0].get_supxlabel())


def test_a_report_of_nothing(tmp_path):
    lines = lines_of(x_log=True, y_log=True)
    maps = HeatMaps(name="h", title="", alt="", x_label="", y_label="", panels=(), low=0, high=0)
    table = Table(name="t", title="", label_columns=("l",), columns=(), rows=(), best="low")
    paths = write_report(document_of(Text(text=""), lines, maps, table), tmp_path)
    assert Page(paths["report.html"].read_text()).open == []


def test_squares_without_a_finite_figure():
    panel = HeatMap(title="p", x_names=("1", "2", "3"), y_names=("y",), values=((math.inf, math.nan, 0.0),))
    maps = HeatMaps(name="h", title="", alt="", x_label="", y_label="", panels=(panel,), low=0, high=0)
    assert pictures.picture(maps)["png"]
    squares = re.findall(r"<td( style[^>]*)?>(\w[^<]*)</td>", render("block", maps))
    assert [(bool(look), text) for look, text in squares] == [(False, "inf"), (False, "nan"), (True, "0.00")]


def test_limits():
    assert limits([1.0, 3.0], log=False) == pytest.approx((0.92, 3.08))
    assert limits([1.0, 100.0, float("inf"), -5.0], log=True) == pytest.approx((100**-0.04, 100**1.04))
    assert limits([1.0, 3.0], False, (0.0, 1.0)) == (0.0, 1.0)
    assert limits([2.0], False)[0] < 2 < limits([2.0], False)[1]
    low, high = limits([], True)
    assert 0 < low < 1 < high


def test_ticks():
    assert ticks(0, 1, False, 6) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0.92, 3.08, False, 5) == [1.0, 2.0, 3.0]
    assert ticks(15, 9000, True, 9) == [20, 50, 100, 200, 500, 1000, 2000, 5000]
    assert ticks(15, 9000, True, 7) == [30, 100, 300, 1000, 3000]
    assert ticks(1, 1e12, True, 7) == [1, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12]
    assert ticks(20, 22, True, 9) == pytest.approx([20, 20.25, 20.5, 20.75, 21, 21.25, 21.5, 21.75, 22])
    assert x_ticks(curves(), 400, 40000, 10) == [512, 1024, 2048, 4096, 8192, 16384, 32768]
    assert x_ticks(curves(), 400, 40000, 5) == [512, 2048, 8192, 32768]
    xs = (64.0, 128.0, 192.0, 256.0, 512.0, 1024.0, 2048.0)
    beside = replace(curves(), lines=(Line(label="one", x=xs, y=xs),))
    assert x_ticks(beside, 60, 2200, 6) == [64, 128, 256, 512, 1024, 2048]
    assert x_ticks(beside, 60, 2200, 4) == [128, 512, 2048]
    places = (512, 8192, 16384, 131072, 20000, 0.25, 2e6, 1e12)
    texts = ["512", "8,192", "16k", "128k", "20,000", "0.25", "2e6", "1e12"]
    assert [tick_text(t) for t in places] == texts
