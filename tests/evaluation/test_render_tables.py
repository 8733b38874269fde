"""Tables of a report as CSV, LaTeX and Markdown, and what all forms read out of a table."""

import csv
import io
import math
from dataclasses import replace

import pytest

from coca_train.report.blocks import ANSWERED, MISSING, Document, HeatMap, HeatMaps, Row, Section, Table, Text, Value
from coca_train.report.render.contents import (
    UNKNOWN,
    best_places,
    data_table,
    footnotes,
    format_number,
    named_blocks,
    picture_note,
    split_opening,
)
from coca_train.report.render.plain import csv_text, latex_text, markdown_text
from tests.evaluation.demo import curves, document, document_of, perplexity_table
from tests.evaluation.page_parser import render

OOM = Value("–", note="out of memory")


def table(*rows, best="low", note=""):
    """Rows of (label, figures, theirs)."""
    table_rows = tuple(Row(label=(label,), values=tuple(values), theirs=theirs) for label, values, theirs in rows)
    columns = tuple("abcdef"[: len(rows[0][1])])
    return Table(name="t", title="T", label_columns=("model",), columns=columns, rows=table_rows, best=best, note=note)


def values(*numbers):
    return [MISSING if n is None else Value(f"{n:.2f}", n) for n in numbers]


def test_best_among_ours_and_among_theirs():
    rows = (
        ("a", values(3.0, 5.0, None, math.inf), False),
        ("b", values(2.0, 5.001, None, math.nan), False),
        ("c", values(1.0, 1.0, 1.0, 1.0), True),
        ("d", values(9.0, 9.0, 9.0, 9.0), True),
    )
    low = {(1, 0), (0, 1), (1, 1), *((2, column) for column in range(4))}  # 5.001 reads the same as 5
    assert best_places(table(*rows)) == low
    high = {(0, 0), (1, 1), (0, 1), *((3, column) for column in range(4))}
    assert best_places(table(*rows, best="high")) == high
    assert best_places(table(*rows, best="")) == set()
    assert best_places(table(*rows[:1], *rows[2:])) == {(1, column) for column in range(4)}


def test_csv_gives_back_every_number():
    odd = [0.1 + 0.2, 1e-300, 123456789.123456789, math.inf, -0.0, 5]
    rows = (('x, "y"\nz', [Value("?", n) for n in odd], False), ("p", [OOM, *values(1, 2, 3, 4), Value("yes")], True))
    head, ours, theirs = csv.reader(io.StringIO(csv_text(table(*rows))))
    assert head == ["model", *"abcdef", "whose", "note: a"]
    assert ours[0] == 'x, "y"\nz'
    assert [float(text) for text in ours[1:7]] == odd
    assert math.copysign(1, float(ours[5])) == -1
    assert ours[7:] == ["ours", ""]
    assert theirs == ["p", "", "1", "2", "3", "4", "yes", "paper", "out of memory"]


def test_latex():
    text = latex_text(
        table(
            (r"50 % of_a & b#1 \x {~^} $α$ <λ>", values(1.0, 2.0), False),
            ("b", [Value("3.00", 3.0), OOM], False),
            ("c", values(0.5, 0.5), True),
            note="Of `books_test`.",
        )
    )
    assert r"50 \% of\_a \& b\#1 \textbackslash{}x \{\textasciitilde{}\textasciicircum{}\} \$$\alpha$\$" in text
    assert r"\textless{}$\lambda$\textgreater{} & \textbf{1.00} & \textbf{2.00} \\" in text
    assert r"b & 3.00 & --\rlap{$^{\mathrm{a}}$} \\" + "\n\\midrule\n" in text
    assert r"c\rlap{$^\dagger$} & 0.50 & 0.50 \\" + "\n\\bottomrule" in text
    assert r"\begin{tabular}{lrr}" in text and r"\label{tab:t}" in text
    assert r"Of \texttt{books\_test}." in text and r"$^{\mathrm{a}}$~out of memory." in text
    assert "with a dagger" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_markdown():
    text = markdown_text(document())
    assert "<script>" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| ALiBi *(paper)*")]
    assert [cell.strip() for cell in row.split("|")[4:7]] == ["**18.69**", "21.27", "28.20"]
    assert row.rstrip(" |").endswith("–<sup>c</sup>") and "<sup>c</sup> out" in text
    assert "](figures/perplexity-curves.png)" in text and "](figures/passkey.png)" in text
    assert "* documents shorter than the window are left out, which the table says." in text
    assert f"```\n{document().command}\n```" in text
    assert "tokens of `books_test`." in text


def test_markdown_of_words_that_look_like_it():
    section = Section(title="a*b_c", blocks=(Text(text="x `y_z*` [w]\n\n* one\n  more\n* two"),))
    text = markdown_text(Document(title="#", summary=(), sections=(section,), facts=(), command="a ``` b"))
    assert "## a\\*b\\_c" in text and "x `y_z*` \\[w\\]" in text and "* one more\n* two" in text
    assert "````\na ``` b\n````" in text


def test_reasons_once_in_order():
    reasons = ("out of memory", "max_positions < window & more", "out of memory in the paper")
    assert footnotes(perplexity_table()) == list(zip("abc", reasons, strict=True))
    many = footnotes(
        Table(
            name="t",
            title="",
            label_columns=("",),
            columns=("",),
            rows=(Row(label=("",), values=tuple(Value("–", note=str(i)) for i in range(703))),),
        )
    )
    assert [many[i][0] for i in (0, 25, 26, 51, 52, 701, 702)] == ["a", "z", "aa", "az", "ba", "zz", "aaa"]


def test_data_of_pictures():
    data = data_table(curves())
    assert data.columns == ("512", "1,024", "2,048", "4,096", "8,192", "16,384", "32,768")
    assert [row.theirs for row in data.rows] == [False] * 5 + [True] * 3
    first = data.rows[4].values[0]
    assert (first.interval, first.range) == ((21.5 * 0.9, 21.5 * 1.12), "19.35 to 24.08")
    assert data.rows[5].values[1].number == 411.5
    panel = HeatMap(title="p", x_names=("1", "2"), y_names=("top", "end"), values=((0.25, None), (1.0, 0.5)))
    maps = HeatMaps(name="h", title="h", alt="", x_label="x", y_label="y", panels=(panel,), low=0, high=1)
    rows = data_table(maps).rows
    assert [(row.label, [v.number for v in row.values]) for row in rows] == [
        (("p", "top"), [0.25, None]),
        (("p", "end"), [1.0, 0.5]),
    ]
    assert rows[0].values[0].text == "0.25"


def test_curves_without_any_interval_say_so():
    """Not where some have one, where all are theirs, or where there is nothing."""
    bare = replace(curves(()), note="")
    assert picture_note(bare) == UNKNOWN
    assert picture_note(replace(bare, note="Of three texts.")) == f"Of three texts. {UNKNOWN}"
    assert picture_note(curves()) == curves().note
    assert picture_note(replace(bare, lines=())) == picture_note(replace(bare, lines=bare.lines[5:])) == ""
    assert UNKNOWN in render("block", bare) and UNKNOWN in markdown_text(replace(document(), sections=[only(bare)]))


def only(*blocks):
    return Section(title="", blocks=blocks)


def test_csv_has_both_ends_of_every_interval():
    figures = [Value.of(2.0, low=1.5, high=2.5), Value.of(3.0, note="one case"), OOM]
    head, first = csv.reader(io.StringIO(csv_text(table(("m", figures, False)))))
    assert head == ["model", "a", "b", "c", "whose", "low: a", "high: a", "note: b", "note: c"]
    assert first == ["m", "2.0", "3.0", "", "ours", "1.5", "2.5", "one case", "out of memory"]


def test_the_first_picture_and_the_first_table_of_ours_lead():
    answers, picture, table, sections = split_opening(document())
    assert answers is None and table is not None and picture is not None
    assert (picture.name, table.name) == ("perplexity-curves", "perplexity")
    assert [section.title for section in sections] == ["Passkey retrieval", "Definitions"]
    theirs = replace(perplexity_table(), name="theirs", rows=perplexity_table().rows[-4:])
    folded = replace(only(curves()), folded=True)
    _, picture, table, sections = split_opening(
        replace(document(), sections=[only(theirs), folded, only(perplexity_table())])
    )
    assert picture is None and table is not None and table.name == "perplexity"
    assert [len(section.blocks) for section in sections] == [1, 1]
    # What is answered stands before all of them, wherever its section is.
    said = replace(perplexity_table(), name=ANSWERED)
    answers, _, table, sections = split_opening(replace(document(), sections=[*document().sections, only(said)]))
    assert answers == said and table is not None and table.name == "perplexity"
    assert [section.title for section in sections] == ["Passkey retrieval", "Definitions"]


def test_numbers_people_can_read():
    numbers = (512, 21.5, 0.0123446, 3899.69387, 98765.4, 2.5e7, math.inf, 1.0)
    assert [format_number(n) for n in numbers] == [
        "512",
        "21.5",
        "0.01234",
        "3,900",
        "98,765",
        "25,000,000",
        "inf",
        "1",
    ]


@pytest.mark.parametrize("names", [("a", "a"), ("a b",), ("../a",), ("",)])
def test_names_must_be_a_files_and_unique(names):
    blocks = [Table(name=n, title="", label_columns=("l",), columns=(), rows=()) for n in names]
    with pytest.raises(ValueError, match="block name"):
        list(named_blocks(document_of(*blocks)))
