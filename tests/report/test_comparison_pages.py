"""The page of a comparison, from made-up evaluations: its tables and pictures, of few and of many."""

import math

import numpy as np
import pytest

from coca_train.evaluation.perplexity_page import perplexity_text
from coca_train.evaluation.trainings import comparison_page
from coca_train.report.render import write_report
from coca_train.report.render.plain import terminal_text
from tests.evaluation.grids import blocks
from tests.report.support import facts, pixels, report, several


def page(results, known=None, checks=()):
    evaluation = several(*results.values())
    return comparison_page(evaluation, known or {name: facts() for name in results}, checks)


def test_comparison_of_few(tmp_path):
    results = {"rope": report("rope"), "alibi": report("alibi", {"plain": (3.0, 3.0, 3.0)})}
    known = {"rope": facts(), "alibi": facts(loss=3.2, ms_per_step=55.0, peak_memory_mib=None)}
    document = page(results, known, ["the same batches"])
    by_name = blocks(document)
    assert document.title.endswith(": rope, alibi, 128 to 512 tokens")
    labels = ["RoPE", "RoPE + dynamic NTK", "ALiBi"]
    assert [line.label for line in by_name["perplexity-curves-text"].lines] == labels
    assert by_name["perplexity-curves-text"].lines[0].y == pytest.approx(np.exp(1.05 * np.array([3.0, 4.0, 5.0])))
    assert by_name["perplexity-curves-text"].y_limits == (None, None)
    assert [row.label for row in by_name["perplexity-text"].rows if not row.theirs] == [
        ("rope", "plain"),
        ("rope", "dynamic_ntk"),
        ("alibi", "plain"),
    ]
    training = by_name["training"]
    assert training.columns == ("parameters", "train loss", "valid/text", "ms a step", "peak memory [MiB]")
    assert [[value.text for value in row.values] for row in training.rows] == [
        ["1,000", "3.100", "3.250", "50 (1.00x)", "600 (1.00x)"],
        ["1,000", "3.200", "3.250", "55 (1.10x)", "–"],
    ]
    paths = write_report(document, tmp_path)
    assert all("the same batches" in paths[name].read_text() for name in ("report.md", "report.html"))
    assert {"figures/perplexity-curves-text.png", "figures/loss-by-position-compared-text.png"} < set(paths)
    for name, path in paths.items():
        if name.endswith(".png"):
            assert pixels(path).std() > 0.02


MANY = {f"scheme{i}": report(f"scheme{i}", {"plain": (3.0, 3.0, 3.0 + i / 20)}) for i in range(8)} | {
    "rope": report("rope"),
    "wild": report("wild", {"plain": (3.0, 9.0, 800.0)}),
    "learned": report("learned", {"plain": (3.2, None, None)}),
}


def test_comparison_of_many(tmp_path):
    document = page(MANY)
    by_name = blocks(document)
    curves = by_name["perplexity-curves-text"]
    lines = {line.label: line for line in curves.lines}
    assert set(lines) == {{"rope": "RoPE", "learned": "learned positions"}.get(name, name) for name in MANY}
    assert lines["learned positions"].x == (128.0,)
    bottom, top = curves.y_limits
    assert bottom < math.exp(3.15) < math.exp(3.55) < top < math.exp(9)
    assert curves.note
    (own,) = by_name["perplexity-curves-text-dynamic-ntk"].lines
    assert (own.label, own.y) == ("RoPE + dynamic NTK", pytest.approx(np.exp(1.05 * np.array([3.0, 3.1, 3.2]))))
    assert "* learned, plain at 256, 512: " in write_report(document, tmp_path)["report.md"].read_text().replace(
        "\\", ""
    )
    assert pixels(tmp_path / "figures" / "perplexity-curves-text.png").std() > 0.02


def test_loss_by_position():
    losses = {"plain": (3.0, 3.0, 3.0), "dynamic_ntk": (3.0, 3.0, 3.0)}
    results = {
        "flat": report("flat", losses),
        "falls": report("falls", losses, slope=-0.25),
        "rises": report("rises", losses, slope=0.125),
        "learned": report("learned", {"plain": (3.0, None, None)}, slope=0.5),
    }
    by_name = blocks(page(results))
    whole = {line.label: line for line in by_name["loss-by-position-text"].lines}
    assert len(whole) == 7
    differences = {line.label: line for line in by_name["loss-by-position-compared-text"].lines}
    assert set(differences) == {"flat", "falls", "rises", "learned positions"}  # as they were trained
    levels = by_name["loss-by-position-text"].lines
    assert {name: levels[line.look].label for name, line in differences.items()} == {name: name for name in differences}
    for block in (by_name["loss-by-position-text"], by_name["loss-by-position-compared-text"]):
        assert block.x_log and not block.y_log
        assert block.marks == ((128.0, "training window"),)
    assert whole["flat"].low == (4.5,) * len(whole["flat"].x)
    assert all(line.low is None for line in differences.values())  # the documents' own, which cancels
    last = np.log2(512)
    assert whole["falls"].y[-1] == pytest.approx(5 - 0.25 * last)
    assert max(whole["learned positions"].x) < 128 < max(whole["falls"].x) < 512
    assert differences["flat"].y[-1] == pytest.approx(0)  # the median of those that reach
    assert differences["rises"].y[-1] == pytest.approx(0.125 * last)
    assert differences["falls"].y[-1] == pytest.approx(-0.25 * last)
    assert differences["learned positions"].y[-1] == pytest.approx((0.5 - 0.0625) * np.log2(128))  # of four
    assert by_name["loss-by-position-compared-text"].y_limits == (None, 1.0)  # learned leaves it
    assert "loss-by-position-compared-text" not in blocks(page({"flat": results["flat"]}))


def test_the_tables_in_a_terminal():
    results = {"rope": report("rope"), "learned": report("learned", {"plain": (3.2, None, None)})}
    lines = perplexity_text(several(*results.values())).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len({len(line) for line in table}) == 1
    assert [cell.strip() for cell in table[0].split("|")[1:-1]] == [
        "model",
        "variant",
        "128 (1×)",
        "256 (2×)",
        "512 (4×)",
    ]
    figures = [[cell.strip().partition(" (")[0] for cell in line.split("|")[1:-1]] for line in table]
    assert figures[2][2:] == [f"{math.exp(1.05 * loss):.2f}" for loss in (3, 4, 5)]
    assert figures[4] == ["learned positions", "plain", "28.79", "–", "–"]
    assert "200 predictions, 600 bytes at 128" in lines[-2]
    assert "learned, plain at 256, 512: " in lines[-1]
    known = {"rope": facts(), "slow": facts(ms_per_step=100.0, peak_memory_mib=None), "old": facts(ms_per_step=None)}
    shown = terminal_text(blocks(page({"rope": report("rope")}, known))["training"])
    assert [row.split("|")[-3].strip() for row in shown.splitlines()[4:]] == ["50 (1.00x)", "100 (2.00x)", "–"]


def test_schemes_whose_trained_variant_has_no_result_break_nothing(tmp_path):
    only_segments = {"plain": (None, None, None), "segments": (3.0, 3.0, 3.0)}
    results = {"learned": report("learned", only_segments)}
    paths = write_report(page(results, {"learned": facts(ms_per_step=None)}), tmp_path / "one")
    assert all(path.is_file() for path in paths.values())
    results |= {name: one for name, one in MANY.items() if name != "learned"}
    document = page(results)
    assert "learned positions" not in {line.label for line in blocks(document)["loss-by-position-compared-text"].lines}
