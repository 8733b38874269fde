"""The papers' figures, held to what is printed there."""

import math

import pytest

from coca_train.report import paper

PRINTED = """
alibi 18.69 21.27 28.20 35.66 37.03 OOM OOM
rope 19.66 411.50 3276.00 3026.00 3028.00 inf inf
rope+dynamic_ntk 19.66 22.30 38.00 75.75 138.13 370.75 380.75
coca 20.11 33.47 69.06 113.19 157.38 141.00 171.63
coca+dynamic_ntk 20.11 20.81 25.88 34.16 55.75 89.31 101.13
llama7b 9.25 7.56 7.30 9673.14 inf inf inf
llama7b+dynamic_ntk 9.25 7.56 7.30 9.40 14.40 63.62 133.87
llama7b+coca 9.91 8.49 8.27 24.23 42.00 23.83 29.95
llama7b+coca+dynamic_ntk 9.91 8.49 8.27 8.61 9.56 11.10 13.98

alibi 0.82 0.65 0.28 0.18 0.12 OOM OOM
rope 0.99 0.53 0.30 0.18 0.04 0.02 0.04
rope+dynamic_ntk 0.99 1.00 0.95 0.70 0.41 0.16 0.06
coca 1.00 0.64 0.33 0.19 0.06 0.02 0.04
coca+dynamic_ntk 1.00 1.00 0.96 0.89 0.50 0.23 0.08
llama7b 1.00 1.00 1.00 0.61 0.21 0.07 0.09
llama7b+dynamic_ntk 1.00 1.00 1.00 0.81 0.26 0.06 0.03
llama7b+coca 1.00 1.00 1.00 0.71 0.28 0.11 0.10
llama7b+coca+dynamic_ntk 1.00 1.00 1.00 1.00 0.85 0.51 0.30

2 20.11 19.02 24.92 40.53 68.38 92.75 103.44
4 20.11 20.81 25.88 34.16 55.75 89.31 101.13
8 20.11 23.66 29.05 37.47 55.5 88.88 111.38

2 0.07 0.61 -1.58 -4.03 15.37 12.38 1.94
4 0.07 -0.49 -0.66 -0.88 3.16 -18.25 -2.57
8 0.07 -1.74 -0.64 1.16 0.03 0.5 0.31

2 1.0 0.99 0.94 0.77 0.47 0.27 0.15
4 1.0 1.0 0.96 0.89 0.5 0.23 0.08
8 1.0 0.98 0.99 0.85 0.5 0.11 0.02

2 0.0 -0.12 -0.3 -0.42 -0.34 -0.22 -0.07
4 0.0 -0.11 -0.38 -0.46 -0.38 -0.19 -0.02
8 0.0 -0.05 -0.34 -0.51 -0.4 -0.07 -0.01

llama7b+pi 9.06 7.55 7.74 7.16 7.04 6.93 7.11
llama7b+coca+pi 9.65 8.19 8.37 7.87 7.84 7.83 7.96

llama7b+pi 1.0 1.0 1.0 1.0 1.0 1.0 0.99
llama7b+coca+pi 1.0 1.0 1.0 1.0 1.0 0.99 0.99
"""


def test_every_figure_of_tables_1_to_4_as_printed():
    """Read off the pages of the paper once more, into this file."""
    three, four = paper.table("table3_slack_vs_strict"), paper.table("table4_pi")
    tables = [paper.table("table1_perplexity"), paper.table("table2_passkey")]
    tables += [three[kind][form] for kind in ("ppl", "passkey") for form in ("slack", "strict_minus_slack")]
    tables += [four["ppl"], four["passkey"]]
    for table, text in zip(tables, PRINTED.strip().split("\n\n"), strict=True):
        lines = [line.split() for line in text.splitlines()]
        printed = {name: tuple(None if f == "OOM" else float(f) for f in figures) for name, *figures in lines}
        assert dict(table) == printed


def test_opencompass_adds_up_to_the_totals_printed():
    table = dict(paper.table("table5_opencompass"))
    assert table.pop("columns") == ("llama7b", "llama7b+coca", "llama7b+pi", "llama7b+coca+pi")
    printed = table.pop("Total")
    assert printed == (776.2, 785.7, 791.2, 797.4)
    assert len(table) == 17
    totals = [sum(column) for column in zip(*table.values(), strict=True)]
    assert totals == pytest.approx(printed, abs=0.11)  # printed before the tasks were rounded


def test_rows_at_our_lengths():
    table = paper.table("table1_perplexity")
    row, other = paper.rows({name: table[name] for name in ("alibi", "rope")}, (1024, 1536, 32768))
    assert row.theirs and row.label == ("ALiBi",)
    assert [v.text for v in row.values] == ["21.27", "–", "–"]
    assert [v.note for v in row.values] == ["", "not in the paper", "out of memory in the paper"]
    assert [v.number for v in other.values] == [411.5, None, math.inf]
    (row,) = paper.rows({"coca+dynamic_ntk": (1.0,) * 7}, (512,), label=lambda name: (name, "α = 4"))
    assert (row.label, row.values[0].text) == (("coca+dynamic_ntk", "α = 4"), "1.00")
