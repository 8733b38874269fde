"""Tables and pictures of a comparison, from made-up reports."""

import math
from itertools import pairwise

import numpy as np
import pytest

from coca_train.evaluation.extrapolation import pages
from coca_train.report import figures
from coca_train.runtime import durable
from tests.report.support import facts, pixels, report


def test_comparison_of_few(tmp_path, drawn):
    results = {"rope": report("rope"), "alibi": report("alibi", {"plain": (3.0, 3.0, 3.0)})}
    table, paths = pages.write_comparison(
        results, {"rope": facts(), "alibi": facts(loss=3.2, ms_per_step=55.0, peak_memory_mib=None)}, tmp_path, ["same"]
    )
    assert set(paths) == {"perplexity", "positions", "cost", "tables", "numbers"}
    rows = [line.split("|")[1].strip() for line in table.split("\n\n")[0].splitlines()[2:]]
    assert rows == ["rope", "rope + dynamic_ntk", "alibi"]
    alibi = [cell.strip() for cell in table.split("\n\n")[1].splitlines()[3].split("|")[1:-1]]
    assert alibi == ["alibi", "1,000", "3.200", "3.250", "55 (1.10x)", "-"]
    saved = durable.read_json(paths["numbers"])
    assert saved["checks"] == ["same"]
    assert saved["runs"]["alibi"]["loss"] == 3.2
    assert "* same" in paths["tables"].read_text()
    labels = [t.get_text() for t in drawn[0].get_legend().get_texts()]
    assert labels[1:] == rows
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in drawn[0].lines}
    assert looks["rope"][0] == looks["rope + dynamic_ntk"][0] != looks["alibi"][0]
    assert looks["rope"][1] != looks["rope + dynamic_ntk"][1]
    for kind in ("perplexity", "positions", "cost"):
        assert pixels(paths[kind]).std() > 0.02


MANY = {f"scheme{i}": report(f"scheme{i}", {"plain": (3.0, 3.0, 3.0 + i / 50)}) for i in range(20)} | {
    "rope": report("rope"),
    "wild": report("wild", {"plain": (3.0, 9.0, 800.0)}),
    "learned": report("learned", {"plain": (3.2, None, None)}),
}


def test_comparison_of_many(tmp_path, drawn):
    table, paths = pages.write_comparison(MANY, {name: facts() for name in MANY}, tmp_path, [])
    assert {"perplexity", "variants", "positions", "cost"} < set(paths)
    axes = drawn[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert set(MANY) < set(lines)
    assert "rope + dynamic_ntk" not in lines
    texts = [t.get_text() for t in axes.get_legend().get_texts()]
    assert [text.split()[0] for text in texts] == [
        "wild",
        "rope",
        *[f"scheme{i}" for i in range(19, -1, -1)],
        "learned",
    ]
    assert texts[1] == f"rope  {math.exp(5.25):.4g}"
    assert texts[-1] == f"learned  {math.exp(3.36):.4g} (to 128)"
    bottom, top = axes.get_ylim()
    assert bottom < math.exp(3.15) < math.exp(3.55) < top < math.exp(9)
    panel = next(axes for axes in drawn if axes.get_title().startswith("dynamic_ntk"))
    assert [t.get_text().split()[0] for t in panel.get_legend().get_texts()] == ["rope"]
    np.testing.assert_allclose(panel.lines[1].get_ydata(), np.exp(1.05 * np.array([3.0, 3.1, 3.2])))
    assert panel.lines[1].get_color() == lines["rope"].get_color()
    assert "* learned at 256, 512: learned has 128 positions" in table
    for kind in ("perplexity", "variants", "positions", "cost"):
        assert pixels(paths[kind]).std() > 0.02


def test_28_curves_can_be_told_apart_even_without_colour():
    looks = [figures.look(i) for i in range(28)]
    assert len(set(looks)) == 28
    assert len({(look.marker, look.dash) for look in looks}) == 28


def test_loss_by_position(tmp_path, drawn):
    losses = {"plain": (3.0, 3.0, 3.0), "dynamic_ntk": (3.0, 3.0, 3.0)}
    results = {
        "flat": report("flat", losses),
        "falls": report("falls", losses, slope=-0.25),
        "rises": report("rises", losses, slope=0.125),
        "learned": report("learned", {"plain": (3.0, None, None)}, slope=0.5),
    }
    pages.write_comparison(results, {name: facts() for name in results}, tmp_path, [])
    above, below = next((a, b) for a, b in pairwise(drawn) if a.get_ylabel().startswith("loss [nats"))
    assert (above.get_xscale(), above.get_yscale()) == ("log", "linear")
    assert "tokens of context" in below.get_xlabel()
    for axes in (above, below):
        assert any(list(line.get_xdata()) == [128, 128] for line in axes.lines)
    loss = {line.get_label(): line for line in above.lines}
    difference = {line.get_label(): line for line in below.lines}
    last = np.log2(512)
    assert loss["falls"].get_ydata()[-1] == pytest.approx(5 - 0.25 * last)
    assert max(loss["learned"].get_xdata()) < 128 < max(loss["falls"].get_xdata()) < 512
    assert difference["rises"].get_ydata()[-1] == pytest.approx(0.125 * last)  # flat is the median of those that reach
    assert difference["falls"].get_ydata()[-1] == pytest.approx(-0.25 * last)
    assert difference["learned"].get_ydata()[-1] == pytest.approx((0.5 - 0.0625) * np.log2(128))  # of four
    texts = [t.get_text() for t in below.figure.legends[0].get_texts()]
    assert texts == ["rises  +1.125", "flat  +0.000", "falls  -2.250", "learned  +3.062 (to 128)"]


def test_cost(tmp_path, drawn):
    known = {
        "rope": facts(),
        "slow": facts(ms_per_step=100.0, peak_memory_mib=900.0),
        "old": facts(peak_memory_mib=None),
    }
    pages.write_comparison({name: report(name) for name in known}, known, tmp_path, [])
    time, memory = drawn[-2:]
    assert [bar.get_width() for bar in time.patches] == [50, 100, 50]
    assert [bar.get_width() for bar in memory.patches] == [600, 900, 0]
    assert [t.get_text() for t in time.texts] == ["50  (1.00x)", "100  (2.00x)", "50  (1.00x)"]
    assert [t.get_text() for t in memory.texts] == ["600  (1.00x)", "900  (1.50x)", "not recorded"]
    assert [t.get_text() for t in time.get_yticklabels()] == list(known)
    assert time.patches[0].get_y() > time.patches[1].get_y()  # from the top


def test_schemes_whose_trained_variant_has_no_result_break_nothing(tmp_path):
    only_segments = {"plain": (None, None, None), "segments": (3.0, 3.0, 3.0)}
    results = {"learned": report("learned", only_segments)}
    _, paths = pages.write_comparison(results, {"learned": facts(ms_per_step=None)}, tmp_path / "one", [])
    assert "positions" not in paths
    assert all(path.is_file() for path in paths.values())
    results |= MANY
    _, paths = pages.write_comparison(results, {name: facts() for name in results}, tmp_path / "many", [])
    assert pixels(paths["positions"]).std() > 0.02
