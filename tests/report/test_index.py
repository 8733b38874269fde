"""Verdicts in a terminal and in Markdown, and the page over several reports."""

import json
import os
from dataclasses import replace

from coca_train.report.render import write_index, write_report
from coca_train.report.render.plain import markdown_text, verdict_text
from tests.evaluation.demo import document, verdicts
from tests.evaluation.page_parser import Page


def bare(title, said):
    return replace(document(), title=title, sections=(), verdicts=said)


def test_verdicts_in_a_terminal():
    lines = verdict_text(verdicts()).splitlines()
    assert lines[0] == ("✓ CoCA + dynamic_ntk  holds 2,048 · uses 1,024 · finds 512")
    label, words = lines[2][2:].split("  ", 1)
    assert (lines[2][0], label, words.strip()) == ("?", "<ALiBi>", verdicts()[2].line)  # without parts, its line
    assert len({line.index(word) for line, word in zip(lines, ("holds", "holds", "no verdict"), strict=False)}) == 1
    assert verdict_text(()) == ""


def test_verdicts_in_markdown_come_first():
    lines = [line for line in markdown_text(document()).splitlines() if line]
    assert lines[1] == ("* ✓ **CoCA + dynamic\\_ntk** holds 2,048 · uses 1,024 · finds 512")
    assert lines[3] == "* ? **&lt;ALiBi&gt;** no verdict: 17 of 20 documents missing"
    assert lines[5].startswith("* CoCA with dynamic NTK keeps its perplexity")


def test_an_index_lists_every_report_the_newest_first(tmp_path):
    for age, (folder, title) in enumerate((("perplexity", "Of <b>"), ("a b/report", "Second"), ("passkey", "Third"))):
        paths = write_report(bare(title, verdicts() if age == 0 else ()), tmp_path / folder)
        os.utime(paths["summary.json"], (2_000_000_000 - age * 100,) * 2)
    path = write_index(tmp_path)
    source = path.read_text()
    page = Page(source)
    links = [a["href"] for tag, a in page.elements if tag == "a" and a["href"].endswith("report.html")]
    assert links == ["perplexity/report.html", "a%20b/report/report.html", "passkey/report.html"]
    assert "Of <b>" in page.text and "2033-05-18" in page.text and "holds 2,048 · uses 1,024" in page.text
    assert document().summary[0] in page.text  # in place of the verdicts that a report has not
    assert page.references() <= set(page.ids())
    assert write_index(tmp_path).read_text() == source


def test_what_a_finding_says_is_not_said_twice(tmp_path):
    write_report(replace(bare("One", verdicts()), finding=("It reaches to 2,048 tokens.",)), tmp_path / "one")
    text = Page(write_index(tmp_path).read_text()).text
    assert "It reaches to 2,048 tokens." in text and "holds 2,048 · uses 1,024" not in text


def test_what_cannot_be_read_is_left_out(tmp_path):
    write_report(bare("Whole", ()), tmp_path / "whole")
    known = json.loads((tmp_path / "whole" / "summary.json").read_text())
    odd = known | {"verdicts": [{"label": "a", "line": "b", "parts": [], "state": "perhaps"}]}
    lone = known | {"title": "\udcff"}  # no UTF-8 can write it
    damaged = {"torn": "{", "other": '{"title": 3}', "list": "[]", "long": '{"a": ' * 5000}
    for name, text in (damaged | {"odd": json.dumps(odd), "lone": json.dumps(lone)}).items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").touch()
        (tmp_path / name / "summary.json").write_text(text)
    gone = write_report(bare("Gone", ()), tmp_path / "gone")
    gone["report.html"].unlink()
    assert write_index(tmp_path).read_text().count("report.html") == 1


def test_a_folder_without_reports_gets_none(tmp_path):
    assert write_index(tmp_path) is None
    assert not list(tmp_path.iterdir())
