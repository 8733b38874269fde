"""The page of trials that were never trained."""

import pytest

from coca_train.atlas.page import Matrix, page
from coca_train.report.render import write_report
from tests.atlas.trials import LENGTHS, trial

GOOD, BAD = (100, 95, 92), (100, 40, 10)


def trials():
    for seed in (1, 2, 3):
        less = seed  # seeds differ
        yield trial("rope", seed, {"copy": (100, 40 - less, 10), "left": (95, 30 + less, 0), "sort": BAD})
        yield trial("coca", seed, {"copy": (99, 95 - less, 92), "left": (98, 91 + less, 80), "sort": GOOD})
        yield trial("nope", seed, {"copy": (20, 20, 20), "left": (10, 10, 10), "sort": (89 + less, 60, 10)})


def test_the_page_says_who_is_first(tmp_path):
    document = page(list(trials()), "python -m coca_train atlas")
    assert document.finding[0] == "CoCA keeps the most of what it has learned beyond 64 tokens."
    ranks, reach = document.sections[0].blocks[0], document.sections[2].blocks[0]
    assert [row.label for row in ranks.rows] == [("CoCA",), ("RoPE",), ("NoPE",)]
    assert [row.values[0].text for row in ranks.rows] == ["1", "2", "–"]  # NoPE has one of three tasks
    assert ranks.rows[1].values[2].text == "–"
    assert ranks.rows[0].values[2].number > 0.5
    assert [value.text for value in reach.rows[0].values] == ["256", "128", "256"]
    assert [value.text for value in reach.rows[2].values] == ["–", "–", "64"]
    assert reach.rows[2].values[2].note == ""
    (separates,) = document.sections[1].blocks
    said = "* copy: 2 of 2 demonstrably keep some of it; right answers at 128 tokens: CoCA 93%, RoPE 38%. CoCA works to"
    assert f"{said} 256 tokens." in separates.text
    text = write_report(document, tmp_path)["report.md"].read_text()
    assert "not learned" in text


def test_the_matrix_counts_what_is_learned():
    matrix = Matrix({(each.row, each.seed): each for each in trials() if (each.row, each.seed) != ("coca", 3)})
    assert matrix.rows == ["rope", "coca", "nope"]
    assert matrix.lengths == list(LENGTHS)
    assert matrix.n_learned("coca", "copy") == (2, 2)
    assert matrix.n_learned("nope", "copy") == (0, 3)
    assert matrix.share("coca", "copy", 128).number == pytest.approx(0.935)
    assert matrix.share("nope", "copy", 128).text == "–"


def test_a_square_has_a_colour_where_it_outlasts_seeds():
    shares = [(100, 90, 10), (100, 10, 10), (100, 10, 10)]  # one seed of three
    worse = (100, 2, 1)  # than guessing
    each = [trial(seed=i, shares={"copy": each, "left": GOOD, "sort": worse}) for i, each in enumerate(shares)]
    document = page(each, "")
    (panel,) = document.sections[2].blocks[1].panels
    assert panel.doubtful == {(0, 0), (0, 2)}


def test_one_seed_names_no_winner():
    document = page([trial("rope", 1, {"copy": BAD, "left": BAD}), trial("coca", 1, {"copy": GOOD, "left": GOOD})], "")
    assert document.finding == ["One seed of 2 rows: nothing is known of which differences outlast seeds."]


def test_where_nothing_is_learned_the_page_says_so():
    document = page([trial(shares={"copy": (10, 10, 10)})], "python -m coca_train atlas")
    assert document.finding == ["No method has learned most of the tasks at 64 tokens."]
