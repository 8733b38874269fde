"""Who is best: planted ties and planted differences, in tables and in sentences."""

from dataclasses import replace

import numpy as np
import pytest

from coca_train.report.blocks import Row, Table, Value
from coca_train.report.headlines import POINTS, headline
from coca_train.report.render.contents import best_places, explain_marks
from coca_train.report.render.plain import latex_text, markdown_text, terminal_text
from coca_train.statistics.pairs import Sample, standings
from tests.evaluation.demo import document
from tests.evaluation.page_parser import render

HARD_D = np.random.default_rng(0).normal(4, 1, 24)


def figure(number, half=None, form="{:.2f}"):
    """Of no known documents."""
    return Value.of(
        number, form, low=None if half is None else number - half, high=None if half is None else number + half
    )


def loss(gain, noise=0.01, n=24, seed=0):
    """Of documents that are hard or easy for everybody: levels overlap, whatever the gain."""
    losses_D = HARD_D[:n] - gain - noise * np.random.default_rng(seed).normal(size=n)
    sums_SU2 = np.stack((losses_D * 100, np.full(n, 100.0)), -1)[None]
    mean = float(losses_D.mean())
    return Value.of(mean, low=mean - 1, high=mean + 1, n=n, sample=Sample(sums_SU2=sums_SU2, units=f"books {n}"))


def shares(*found):
    hits = [Value.of(sum(each) / len(each), low=0.0, high=1.0, n=len(each)) for each in found]
    samples = (Sample.of_shares(list(map(bool, each)), "p") for each in found)
    return [replace(value, sample=sample) for value, sample in zip(hits, samples, strict=True)]


APART = [figure(20.0, 0.5), figure(22.0, 0.5), figure(21.2, 0.5)]
PAIRED = [loss(0.1), loss(0.0, seed=1), loss(0.099, seed=2)]


def best(figures, direction):
    return list(standings([figures], direction)[0].best)


def table(rows, best="low"):
    return Table(
        name="t",
        title="T",
        label_columns=("model",),
        columns=("512",),
        rows=tuple(Row(label=(name,), values=(value,)) for name, value in zip("abcdefgh", rows, strict=False)),
        best=best,
    )


def sentence(figures, best="low", **more):
    names = [name for name, _ in zip("abcdefgh", figures, strict=False)]
    return headline(table(figures, best), 0, names, "In windows of 512 tokens", "predicts best", "perplexity", **more)


def test_what_documents_say_one_by_one_and_not_whether_intervals_meet():
    assert best(PAIRED, "low") == [0, 2] and best(PAIRED, "high") == [1]
    assert best(APART, "low") == [0]
    wide = [figure(20.0, 1.0), figure(21.5, 1.0)]  # they overlap, and the difference of two means is sure
    assert best(wide, "low") == [0]
    assert best([figure(20.0, 1.0), figure(21.2, 1.0)], "low") == [0, 1]


def test_without_intervals_the_extreme_and_what_reads_the_same():
    assert best([figure(5.0), figure(5.001), figure(5.1)], "low") == [0, 1]
    assert best([figure(5.0, 0.2), figure(5.1), figure(5.3)], "low") == [0, 1]  # a figure alone inside the interval
    assert best([Value.of(None), figure(float("inf")), figure(float("nan"))], "low") == []


@pytest.mark.parametrize("form", ["{:.2f}", "{:.0%}", "{:.1f} %"])
def test_nothing_found_is_never_the_best(form):
    nobody = [Value.of(0.0, form, low=0.0, high=0.1), Value.of(0.0, form, low=0.0, high=0.1)]
    assert best(nobody, "high") == []
    assert best([*nobody, Value.of(0.5, form, low=0.3, high=0.7)], "high") == [2]
    assert best(nobody, "low") == [0, 1]
    hardly = Value.of(0.05, form, low=0.02, high=0.11)
    assert best([*nobody, hardly], "high") == []  # as good as nothing, as far as anybody can tell


def test_shares_are_compared_prompt_by_prompt():
    ours, theirs, others = shares([1] * 30 + [0] * 10, [1] * 20 + [0] * 20, [1] * 28 + [0] * 10 + [1] * 2)
    assert best([ours, theirs], "high") == [0] and best([ours, others], "high") == [0, 1]
    said = sentence([ours, theirs], "high", unit=POINTS, of="prompts")
    assert "25 percentage points" in said and "in 10 of 40 prompts" in said


def test_a_headline_names_a_winner_with_how_sure():
    said = sentence(PAIRED[:2])
    assert "tokens a predicts best: " in said
    assert "0.1" in said and "better than b (" in said and "in 24 of 24 documents)" in said
    tie = sentence(PAIRED)
    assert "a and c, cannot" in tie
    assert "a and b cannot" in sentence([loss(0.0), loss(0.0, seed=3)])


@pytest.mark.parametrize("n", [1, 2, 3, 19])
def test_of_few_documents_or_prompts_nothing_is_best(n):
    few = [loss(0.5, n=n), loss(0.0, n=n, seed=1)]
    assert best(few, "low") == []
    assert f"inconclusive, {n} of the 20" in sentence(few)
    assert best([replace(each, n=20) for each in few], "low")  # n is what is looked at
    assert "fewer than 20" in explain_marks(table(few)) and "fewer than 20" not in explain_marks(table(PAIRED))


def test_a_headline_without_intervals_names_nobody():
    assert "cannot" in sentence([figure(10.0), figure(20.0)])
    assert "cannot" in sentence([figure(10.0, 1.0), figure(20.0)])


def test_headlines_of_one_of_none_and_of_nothing():
    assert sentence([figure(10.0, 1.0)]).endswith(" a: perplexity 10.00 (9.00 to 11.00).")
    assert sentence([]) == sentence([Value.of(None)]) == ""
    nobody = [Value.of(0.0, low=0.0, high=0.1)] * 2
    assert "no best: perplexity 0.00" in sentence(nobody, "high")


def test_of_many_that_tie_two_are_named():
    assert "a, b and 5 others" in sentence([figure(10.0 + i / 100, 1.0) for i in range(7)])


def test_bold_and_sentence_never_disagree():
    """One column is what another one is judged with; the sentence is made of the very same judgement."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        figures = [loss(float(gain), noise=0.05, seed=int(rng.integers(999))) for gain in rng.normal(0, 0.02, 3)]
        shown = table(figures)
        bold = {row for row, _ in best_places(shown)}
        said = sentence(figures)
        assert ("predicts best" in said) == (len(bold) == 1)
        if len(bold) == 1:
            assert f"tokens {'abc'[bold.pop()]} predicts best" in said


def test_a_table_marks_ties_alike_and_says_how():
    assert best_places(table(PAIRED)) == {(0, 0), (2, 0)}
    assert explain_marks(table(PAIRED)).count("not distinguishable") == 1
    assert "the same documents" in explain_marks(table(PAIRED)) and "same documents" not in explain_marks(table(APART))
    assert "0.00" not in explain_marks(table(APART)) and "0.00 is among them" in explain_marks(
        replace(table(APART), best="high")
    )
    assert "distinguishable" not in explain_marks(table([figure(1.0), figure(2.0), figure(3.0)]))


def test_every_form_carries_the_interval():
    shown = table(APART)
    assert "<strong>20.00</strong><small>19.50 to 20.50</small>" in render("block", shown)
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
