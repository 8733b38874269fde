"""Who is best, by intervals: planted ties and planted differences, in tables and in sentences."""

from dataclasses import replace

import pytest

from coca_train.report.blocks import Row, Table, Value
from coca_train.report.render.contents import best_places, legend
from coca_train.report.render.html_blocks import block_html
from coca_train.report.render.plain import latex_text, markdown_text, terminal_text
from coca_train.report.ties import headline, tied
from tests.evaluation.demo import document


def figure(number, half=None, form="{:.2f}"):
    return Value.of(
        number, form, low=None if half is None else number - half, high=None if half is None else number + half
    )


NOISE = [figure(number, 20.0) for number in (602.72, 602.55, 602.95)]  # 3 documents, nothing learnt
APART = [figure(20.0, 0.5), figure(22.0, 0.5), figure(21.2, 0.5)]


def test_figures_whose_intervals_meet_are_tied():
    assert tied(NOISE, "low") == tied(NOISE, "high") == [0, 1, 2]
    assert tied(APART, "low") == [0]
    assert tied(APART, "high") == [1, 2]  # 21.7 and 21.5 meet; 20.5 lies below
    touching = [figure(1.0, 0.5), figure(2.0, 0.5)]
    assert tied(touching, "low") == [0, 1]


def test_without_intervals_the_extreme_and_what_reads_the_same():
    assert tied([figure(5.0), figure(5.001), figure(5.1)], "low") == [0, 1]
    assert tied([figure(5.0, 0.2), figure(5.1), figure(5.3)], "low") == [0, 1]  # a figure alone inside the interval
    assert tied([Value.of(None), figure(float("inf")), figure(float("nan"))], "low") == []


@pytest.mark.parametrize("form", ["{:.2f}", "{:.0%}", "{:.1f} %"])
def test_nothing_found_is_never_the_best(form):
    nobody = [Value.of(0.0, form, low=0.0, high=0.1), Value.of(0.0, form, low=0.0, high=0.1)]
    assert tied(nobody, "high") == []
    assert tied([*nobody, Value.of(0.5, form, low=0.3, high=0.7)], "high") == [2]
    assert tied(nobody, "low") == [0, 1]
    hardly = Value.of(0.05, form, low=0.02, high=0.11)
    assert tied([*nobody, hardly], "high") == []  # as good as nothing, as far as anybody can tell
    assert tied([hardly, Value.of(0.5, form, low=0.3, high=0.7), *nobody], "high") == [1]


def sentence(figures, best="low"):
    return headline("In windows of 2,048 tokens", figures, best, "predicts best", "perplexity")


def test_a_headline_names_a_winner_only_apart_from_all_others():
    names = ("rope", "alibi", "coca")
    assert sentence(dict(zip(names, NOISE, strict=True))) == (
        "In windows of 2,048 tokens rope, alibi and coca cannot be told apart: perplexity 602.55 to 602.95."
    )
    assert sentence(dict(zip(names, APART, strict=True))) == (
        "In windows of 2,048 tokens rope predicts best: perplexity 20.00 (19.50 to 20.50)."
    )
    assert sentence(dict(zip(names, APART, strict=True)), "high") == (
        "In windows of 2,048 tokens the best of 3, alibi and coca, cannot be told apart: perplexity 21.20 to 22.00."
    )


@pytest.mark.parametrize("n", [1, 2, 3, 19])
def test_of_few_documents_or_prompts_nothing_is_best(n):
    one, other = (replace(figure(number, 0.5), n=n) for number in (20.0, 22.0))
    assert tied([one, other], "low") == tied([one, figure(22.0, 0.5)], "low") == []
    assert sentence({"rope": one, "coca": other}) == (
        f"In windows of 2,048 tokens rope and coca cannot be told apart by {n} document{'s' * (n > 1)}, 20 are needed: "
        "perplexity 20.00 to 22.00."
    )
    assert f"by {n} prompt" in headline("Of b", {"x": one, "y": other}, "high", "finds most", "share found", "prompts")
    nobody = {name: replace(Value.of(0.0, low=0.0, high=0.5), n=n) for name in "ab"}
    assert "there is no best: share found 0.00" in headline("Of b", nobody, "high", "is best", "share found")
    assert sentence({"rope": one}) == sentence({"rope": figure(20.0, 0.5)})


def test_of_twenty_there_is_a_best():
    one, other = (replace(figure(number, 0.5), n=20) for number in (20.0, 22.0))
    assert tied([one, other], "low") == [0]
    assert "rope predicts best" in sentence({"rope": one, "coca": other})
    assert "fewer than 20" not in legend(table([one, other, other]))
    assert "fewer than 20 documents" in legend(table([one, other, replace(other, n=3)]))


def test_a_headline_without_intervals_names_nobody():
    said = sentence({"rope": figure(10.0), "coca": figure(20.0)})
    assert said == (
        "In windows of 2,048 tokens rope and coca cannot be told apart without intervals: perplexity 10.00 to 20.00."
    )
    assert "cannot be told apart" in sentence({"rope": figure(10.0, 1.0), "coca": figure(20.0)})


def test_headlines_of_one_of_none_and_of_nothing():
    assert sentence({"rope": figure(10.0, 1.0)}) == "In windows of 2,048 tokens rope: perplexity 10.00 (9.00 to 11.00)."
    assert sentence({}) == sentence({"rope": Value.of(None)}) == ""
    nobody = {name: Value.of(0.0, low=0.0, high=0.1) for name in "ab"}
    said = headline("Of 512 tokens", nobody, "high", "is best", "share found")
    assert said == "Of 512 tokens there is no best: share found 0.00 for all 2."


def test_of_many_that_tie_two_are_named():
    said = sentence({f"m{i}": figure(10.0 + i / 100, 1.0) for i in range(7)})
    assert "tokens m0, m1 and 5 others cannot be told apart: perplexity 10.00 to 10.06." in said


def table(rows):
    return Table(
        name="t",
        title="T",
        label_columns=("model",),
        columns=("512",),
        rows=tuple(Row(label=(name,), values=(value,)) for name, value in zip("abc", rows, strict=True)),
        best="low",
    )


def test_a_table_marks_ties_alike_and_says_so_once():
    assert best_places(table(NOISE)) == {(0, 0), (1, 0), (2, 0)}
    assert best_places(table(APART)) == {(0, 0)}
    assert legend(table(APART)).count("nothing is surely better") == 1
    assert "0.00" not in legend(table(APART)) and "0.00 is among them" in legend(replace(table(APART), best="high"))
    assert "surely" not in legend(table([figure(1.0), figure(2.0), figure(3.0)]))


def test_every_form_carries_the_interval():
    shown = table(APART)
    assert "<strong>20.00</strong><small>19.50 to 20.50</small>" in block_html(shown)
    assert r"\textbf{20.00}~{\scriptsize(19.50 to 20.50)}" in latex_text(shown)
    assert "20.00 (19.50 to 20.50) |" in terminal_text(shown) and "(with its 95 % interval)" in terminal_text(shown)
    assert "**21.50** (20.64 to 22.57" in markdown_text(document())


def test_a_terminal_without_room_shows_the_figures_alone():
    wide = Table(
        name="t",
        title="T",
        label_columns=("model",),
        columns=tuple("abcdefghij"),
        rows=(Row(label=("m",), values=(figure(20.0, 0.5),) * 10),),
    )
    assert " to " not in terminal_text(wide) and "20.00 |" in terminal_text(wide)
