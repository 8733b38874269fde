"""The papers' figures, held to what is printed there."""

import math

import pytest

from coca_train.report import paper


def test_figures_as_printed():
    assert paper.context() == (512, 1024, 2048, 4096, 8192, 16384, 32768)
    perplexity, passkey = paper.table("table1_perplexity"), paper.table("table2_passkey")
    assert perplexity["rope"] == (19.66, 411.5, 3276.0, 3026.0, 3028.0, math.inf, math.inf)
    assert perplexity["alibi"] == (18.69, 21.27, 28.2, 35.66, 37.03, None, None)
    assert passkey["coca+dynamic_ntk"] == (1.0, 1.0, 0.96, 0.89, 0.5, 0.23, 0.08)
    strict = paper.table("table3_slack_vs_strict")["ppl"]["strict_minus_slack"]
    assert strict["4"] == (0.07, -0.49, -0.66, -0.88, 3.16, -18.25, -2.57)
    assert paper.table("table4_pi")["passkey"]["llama7b+coca+pi"][-2:] == (0.99, 0.99)
    with pytest.raises(KeyError):
        paper.table("table9")


def test_opencompass_adds_up_to_the_totals_printed():
    table = dict(paper.table("table5_opencompass"))
    assert table.pop("columns") == ("llama7b", "llama7b+coca", "llama7b+pi", "llama7b+coca+pi")
    printed = table.pop("Total")
    assert printed == (776.2, 785.7, 791.2, 797.4)
    assert len(table) == 17
    totals = [sum(column) for column in zip(*table.values(), strict=True)]
    assert totals == pytest.approx(printed, abs=0.11)  # printed before the tasks were rounded


def test_tables_1_to_4_have_a_figure_for_each_length():
    one, two, four = (paper.table(name) for name in ("table1_perplexity", "table2_passkey", "table4_pi"))
    three = paper.table("table3_slack_vs_strict")
    every = [*one.values(), *two.values(), *(v for part in four.values() for v in part.values())]
    every += [v for kind in three.values() for form in kind.values() for v in form.values()]
    assert len(every) == 9 + 9 + 4 + 12
    assert {len(series) for series in every} == {7}
    assert three["ppl"]["slack"]["4"] == one["coca+dynamic_ntk"]
    assert three["passkey"]["slack"]["4"] == two["coca+dynamic_ntk"]


def test_rows_at_our_lengths():
    table = paper.table("table1_perplexity")
    row, other = paper.rows({name: table[name] for name in ("alibi", "rope")}, (1024, 1536, 32768))
    assert row.theirs and row.label == ("ALiBi",)
    assert [v.text for v in row.values] == ["21.27", "–", "–"]
    assert [v.note for v in row.values] == ["", "not in the paper", "out of memory in the paper"]
    assert [v.number for v in other.values] == [411.5, None, math.inf]
    (row,) = paper.rows({"coca+dynamic_ntk": (1.0,) * 7}, (512,), label=lambda name: (name, "α = 4"))
    assert (row.label, row.values[0].text) == (("coca+dynamic_ntk", "α = 4"), "1.00")
