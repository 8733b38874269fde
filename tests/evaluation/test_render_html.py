"""The page of a report, as source; test_page_in_browser.py opens it."""

import base64
import csv
import hashlib
import html
import io
import itertools
import re
from dataclasses import replace
from urllib.parse import unquote

import pytest

from coca_train.report.blocks import HeatMap, HeatMaps, Line, Lines, Row, Section, Table, Value
from coca_train.report.render import scales
from coca_train.report.render.chart import SYMBOLS, looks, plots
from coca_train.report.render.contents import SIGNS
from coca_train.report.render.page import render_page
from coca_train.report.render.scales import MARKERS
from tests.evaluation.demo import document, document_of, heat_maps, lines_of, perplexity_table
from tests.evaluation.page_parser import Page, render


@pytest.fixture(scope="module")
def source():
    return render_page(document())


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def test_tags_close_ids_are_unique_references_live(page):
    ids = page.ids()
    assert len(ids) == len(set(ids)) > 10
    assert page.references() - set(ids) == set()
    assert len(page.references()) == 1 + 3 + 1 + 1  # section, blocks, the skip link, curves behind others


def test_loads_nothing_from_outside(source, page):
    assert not re.findall(r"https?://|@import|url\((?!#)", source.replace(html.escape(document().command), ""))
    for tag, attributes in page.elements:
        assert "src" not in attributes and "srcset" not in attributes
        assert not [name for name in attributes if name.startswith("on")]
        if tag in ("a", "link"):
            assert attributes["href"].startswith(("#", "data:")), attributes
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")


def test_its_script_is_the_one_the_policy_lets_run(source):
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in source


def test_words_are_escaped_in_every_field():
    bad = "<i x=\"y'>&"
    line = Line(label=bad, x=(1.0, 2.0), y=(1.0, 2.0))
    lines = Lines(name="l", title=bad, alt=bad, x_label=bad, y_label=bad, lines=(line,), marks=((1.0, bad),), note=bad)
    panel = HeatMap(title=bad, x_names=(bad,), y_names=(bad,), values=((1.0,),))
    maps = HeatMaps(name="h", title=bad, alt=bad, x_label=bad, y_label=bad, panels=(panel,), low=0, high=1, note=bad)
    row = Row(label=(bad,), values=(Value(bad, None, bad), Value(bad, 1.0, bad)))
    table = Table(name="t", title=bad, label_columns=(bad,), columns=(bad, bad), rows=(row, row), note=bad, best="low")
    section = Section(title=bad, blocks=(lines, maps, table))
    whole = document_of(title=bad, summary=(bad,), facts=((bad, bad),), command=bad)
    page = Page(render_page(replace(whole, sections=(section,))))
    assert not [tag for tag, _ in page.elements if tag == "i"]
    assert page.text.count(bad) > 20
    assert [a["aria-label"] for tag, a in page.elements if tag == "svg" and "aria-label" in a] == [bad, bad]


def cells_of(source, row):
    """The cells of a row of the table of perplexities, by what its head begins with."""
    source = source[source.index('id="block-perplexity"') :]
    return re.findall(r"<td[^>]*>(.*?)</td>", re.findall(rf'<tr[^>]*><th scope="row">{row}.*?</tr>', source)[0])


def test_best_in_bold_missing_explained_theirs_marked(source):
    alibi = cells_of(source, "ALiBi<")
    assert alibi[1].startswith("<strong>23.22</strong><small") and alibi[6] == "–<sup>a</sup>"
    assert cells_of(source, "RoPE<")[1].startswith("90.30<small")
    theirs = cells_of(source, 'ALiBi <span class="tag">paper</span>')
    assert theirs[0] == "<strong>18.69</strong>" and theirs[1] == "21.27" and theirs[6] == "–<sup>c</sup>"
    assert source.count('<tr class="theirs">') == 4 + 3
    assert "<li><sup>c</sup> " in source
    assert '<td title="out of memory">' in source


def test_numbers_to_sort_by_are_whole():
    texts = re.findall(r'data-number="([^"]*)"', render("block", perplexity_table()))
    numbers = [v.number for row in perplexity_table().rows for v in row.values if v.number is not None]
    assert [float(text) for text in texts] == numbers


def test_downloads_carry_the_tables(page):
    (text,) = [unquote(a["href"].split(",", 1)[1]) for _, a in page.elements if a.get("download") == "perplexity.csv"]
    head, first, *_ = csv.reader(io.StringIO(text))
    assert head[:4] == ["model", "rope_scaling", "steps", "512"] and float(first[3]) == 21.5
    names = [a["download"] for _, a in page.elements if "download" in a]
    assert names == ["perplexity-curves.csv", "perplexity.csv", "perplexity.tex", "passkey.csv"]


def test_headings_and_landmarks(page):
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    tags = [tag for tag, _ in page.elements]
    assert [tags.count(name) for name in ("header", "main", "nav")] == [1, 1, 1]
    assert tags.count("caption") == tags.count("table") == 2 + 2 + 6  # ours and the paper's
    assert all("scope" in attributes for tag, attributes in page.elements if tag == "th")


def test_curves_can_be_told_apart_without_colour():
    ours = [looks(index, False)[1:] for index in range(14)]
    theirs = [looks(index, True)[1:] for index in range(14)]
    assert len(set(ours)) == len(set(theirs)) == 14
    assert not {dashes for _, dashes in ours} & {dashes for _, dashes in theirs}
    assert set(SYMBOLS) == set(MARKERS)
    assert len({looks(index, False) for index in range(49)}) == 49


def test_chart_puts_points_where_they_belong():
    line = Line(label="a", x=(1.0, 10.0, 100.0, 1000.0), y=(1.0, 2.0, float("inf"), 3.0))
    block = lines_of(line, x_log=True, marks=((10.0, "here"),))
    drawn = render("chart", plots(block)[0])
    places = [
        tuple(map(float, p)) for p in re.findall(r'class="dot" transform="translate\(([\d.]+) ([\d.]+)\)"', drawn)
    ]
    (x0, y0), (x1, y1), (x3, y3) = places
    assert (x3 - x0) == pytest.approx(3 * (x1 - x0), abs=0.3)
    assert (y0 - y3) == pytest.approx(2 * (y0 - y1), abs=0.3) and y3 < y0
    assert f'<path class="mark" d="M{x1} ' in drawn
    assert "<title>a at 10: 2</title>" in drawn
    ((x2, y2),) = re.findall(r'class="beyond" transform="translate\(([\d.]+) ([\d.]+)\)"', drawn)
    assert (x1 + x3) / 2 == pytest.approx(float(x2), abs=0.2) and float(y2) < y3  # infinity: at the upper edge
    assert drawn.count('<path class="stroke"') == 1


@pytest.mark.parametrize("n_lines", [1, 3, 4, 28])
def test_every_interval_is_drawn_however_many_curves(n_lines):
    """Of many, each has a panel of its own as well, in front of all the others, and the picture shows it on a hover."""
    line = Line(label="one", x=(1.0, 2.0), y=(1.0, 2.0), low=(0.5, 1.5), high=(1.5, 2.5))
    block = lines_of(*(line,) * n_lines, name="b")
    drawn = render("chart", plots(block)[0])
    assert drawn.count('class="band"') == n_lines
    many = n_lines > 3
    assert ('class="chart wide hushed"' in drawn) == many
    source = render("block", block)
    assert source.count('class="chart panel"') == (n_lines if many else 0)
    assert source.count('class="band"') == n_lines * (3 if many else 2)  # wide, narrow, and its panel
    assert source.count('class="other"') == (n_lines if many else 0)  # drawn once, used in every other panel
    assert source.count('<use href="#behind-b"/>') == (n_lines - 1 if many else 0)
    assert Page(source).references() - {"title-b"} <= set(Page(source).ids())


def test_the_interval_of_a_point_alone():
    line = Line(label="one", x=(1.0,), y=(1.0,), low=(0.5,), high=(1.5,))
    drawn = render("block", lines_of(line))
    assert drawn.count('class="whisker"') == 2 and "one at 1: 1 (0.5 to 1.5)" in drawn


def test_the_page_opens_with_verdicts_a_picture_and_a_table(source, page):
    """State in a sign and in words, the first two for the smallest screen; what is one click away is folded."""
    marks = re.findall(
        r'<li class="(\w+)"><span class="sign" title="[a-z ]+"><span aria-hidden="true">(.)</span>'
        r'<span class="sr">([a-z ]+):</span></span>',
        source,
    )
    assert marks == [(state, *SIGNS[state]) for state in ("reads", "none", "unknown", "partly")]
    assert len(set(SIGNS.values())) == len(SIGNS) == 4
    assert "<ALiBi> no verdict: 17 of 20 documents missing" in page.text
    assert "holds 2,048 · uses 1,024 · finds 512" in page.text
    assert '<details class="more few" open><summary>2 more</summary>' in source
    order = ["<h1>", 'class="verdicts', "What was run", 'class="lead', 'id="block-perplexity-curves"']
    order += ['id="block-perplexity"', 'aria-label="At a glance"', "<nav", 'id="section-1"']
    places = [source.index(words) for words in order]
    assert places == sorted(places)
    folds = re.findall(r'<details class="fold"><summary><h2>(.*?)</h2>', source)
    assert folds == ["What was run", "Definitions"]
    assert [link for link in re.findall(r'href="#section-\d">(.*?)<', source)] == ["Passkey retrieval"]


def test_without_a_verdict_the_sentences_stand_in_its_place():
    known = replace(document(), verdicts=(), summary=[f"Sentence {i}." for i in range(5)])
    source = render_page(known)
    assert 'class="verdicts' not in source
    assert source.index("Sentence 0") < source.index('class="lead')
    assert "<details><summary>2 more</summary><ul><li>Sentence 3.</li>" in source


def test_the_papers_rows_are_folded(source):
    """In a table of the same columns; a table that is all theirs is folded whole."""
    folded = re.findall(r"(?s)<details><summary>(The paper's figures[^<]*)</summary>(.*?)</details>", source)
    assert [inner.count('<tr class="theirs">') for _, inner in folded] == [3, 4]
    outside = re.sub(r"(?s)<details>.*?</details>", "", source)
    assert '<tr class="theirs">' not in outside
    whole = replace(perplexity_table(), rows=[row for row in perplexity_table().rows if row.theirs])
    assert render("block", whole).count("<table") == 1 and "(4 rows)" in render("block", whole)


def test_chart_of_nothing_and_of_one_point():
    for x, y in (((), ()), ((5.0,), (5.0,)), ((0.0,), (-1.0,))):
        for log in (False, True):
            block = lines_of(Line(label="a", x=x, y=y), x_log=log, y_log=log, marks=((0.0, "zero"),))
            assert ("zero" in Page(render("block", block)).text) == (not log)


def test_heat_map_squares(source):
    both = r"light-dark\((#\w{6}), (#\w{6})\)"
    squares = re.findall(rf'<td(?: class="edge")? style="background:{both};color:{both}">([\d.]+)</td>', source)
    values = [v for panel in heat_maps().panels for row in panel.values for v in row if v is not None]
    assert len(squares) == len(values) == 6 * 42 - 12
    assert [text for *_, text in squares] == [f"{value:.2f}" for value in values]
    for theme in (0, 1):
        assert all(scales.contrast(rgb(square[theme]), rgb(square[2 + theme])) >= 4.5 for square in squares)
        shades = [sum(rgb(square[theme])) for _, square in sorted(zip(values, squares, strict=True))]
        # The higher, the further from the page's ground: dark on light pages, light on dark ones.
        assert shades == sorted(shades, reverse=theme == 0) and len(set(shades)) > 40
    assert source.count('<td title="nothing measured">') == 12
    assert source.count('<th scope="col" class="edge">512</th>') == 6


def rgb(text):
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))
