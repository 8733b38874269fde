"""The page of trials that were never trained."""

from dataclasses import replace

import pytest

from coca_train.atlas.matrix import Matrix
from coca_train.atlas.page import page
from coca_train.report.render import write_report
from tests.atlas.trials import LENGTHS, trial

RATES = (0.5, 1.0, 2.0)
GOOD, BAD = (100, 95, 92), (100, 40, 10)


def trials():
    for seed in (1, 2, 3):
        less = seed  # seeds differ
        yield trial("rope", seed, {"copy": (100, 40 - less, 10), "left": (95, 30 + less, 0), "sort": BAD})
        yield trial("coca", seed, {"copy": (99, 95 - less, 92), "left": (98, 91 + less, 80), "sort": GOOD})
        yield trial("nope", seed, {"copy": (20, 20, 20), "left": (10, 10, 10), "sort": (89 + less, 60, 10)})


def section(document, title):
    (found,) = [each for each in document.sections if each.title == title]
    return found.blocks


def test_the_page_says_who_is_first(tmp_path):
    document = page(list(trials()), RATES, "python -m coca_train atlas")
    assert document.finding[0] == "CoCA has the highest mean score beyond the 64 tokens of its training."
    (ranks, groups, models), (reach, _) = section(document, "Ranks"), section(document, "How far each task still works")
    assert [row.label for row in ranks.rows] == [("CoCA",), ("RoPE",), ("NoPE",)]
    assert [row.values[0].text for row in ranks.rows] == ["1", "2", "–"]  # NoPE has one of three tasks
    assert ranks.rows[0].values[0].range == "1 to 1"
    assert ranks.rows[1].values[2].text == ranks.rows[1].values[4].text == "–"
    assert ranks.rows[0].values[2].low > 0.4
    assert ranks.rows[0].values[3].text == "3"
    assert 0 < ranks.rows[0].values[4].number < ranks.rows[0].values[2].number  # without the task that says most
    assert ranks.rows[0].values[4].text.endswith("(left)")
    assert ranks.rows[0].values[5].number > 0.5
    assert [row.values[6].text for row in ranks.rows] == ["3.0", "3.0", "1.0"]
    assert [value.text for value in groups.rows[1].values] == [
        ranks.rows[0].values[1].text,
        ranks.rows[0].values[2].text,
        "3",
        "–",
        "–",
        "–",
    ]
    assert [row.label for row in models.rows] == [("RoPE",), ("CoCA",), ("NoPE",)]
    assert [row.values[4].text for row in models.rows] == ["1.00×"] * 3
    assert [value.text for value in reach.rows[0].values] == ["256", "128", "256"]
    assert [value.text for value in reach.rows[2].values] == ["–", "–", "64"]
    assert reach.rows[2].values[2].note == ""
    separates, _ = section(document, "What separates them")
    said = "* copy: of 2 rows with a score 2 significantly above chance; right answers at 128, 256 tokens: "
    said += "CoCA 93%, 92%; RoPE 38%, 10%; a reader of the last 64 tokens 100%, 6%. "
    said += "The median seed of CoCA has at least 90% right up to 256 tokens. "
    said += "Significantly above RoPE: CoCA."
    assert said in separates.text
    text = write_report(document, tmp_path)["report.md"].read_text()
    assert "not learned" in text


def test_scores_by_where_what_is_needed_is():
    """Running sums follow from near tokens; of what lies far back this row has nothing left, and of near ones all."""
    near, far = {"running": (100, 100, 100)}, {"copy": (100, 10, 10), "left": (100, 10, 10)}
    each = [trial("rope", seed, {**far, "running": (100, 10 + seed, 10)}) for seed in (1, 2, 3)]
    each += [trial("fox", seed, {**far, **near}) for seed in (1, 2, 3)]
    document = page(each, RATES, "")
    alone = "a reader of the last 64 tokens alone"
    assert document.finding[-2:] == [
        f"Where what the answers need is far back (copy, left): RoPE 0.00, {alone} 0.22.",
        f"Where it is near (running): FoX 1.00, RoPE 0.01, {alone} 1.00.",
    ]
    groups = section(document, "Ranks")[1]
    reader = [value.text for value in groups.rows[0].values]  # of copy half, and all of a sum
    assert reader[0] == "0.22" and reader[3] == "1.00"
    assert [value.text for value in groups.rows[1].values] == ["0.00", "+0.00", "2", "1.00", "+0.99", "1"]


def test_a_task_that_is_guessed_has_no_score():
    """Where saying the last answer again has 62 % right, so that no look-up tells from none."""

    def guessed(row, seed, shares):
        one = trial(row, seed, {"copy": (100, 50, 10 + seed), "left": (100, 50, 10), "sort": shares})
        chances = replace(one.tasks["sort"], chance=[0.4, 0.62, 0.8])
        return replace(one, tasks={**one.tasks, "sort": chances})

    each = [guessed("rope", seed, BAD) for seed in (1, 2)] + [guessed("coca", seed, GOOD) for seed in (1, 2)]
    matrix = Matrix({(one.row, one.seed): one for one in each})
    assert matrix.scored == ["copy", "left"]
    document = page(each, RATES, "")
    assert "sort" not in " ".join(document.finding)
    said = "* sort: no score, as saying the last answer again is right in 62% at 128 tokens and 80% at 256 tokens."
    assert said in section(document, "What separates them")[0].text
    assert section(document, "Ranks")[-1].rows[0].values[1].text == "3.0"  # it is learned all the same


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
    document = page(each, RATES, "")
    (panel,) = section(document, "How far each task still works")[1].panels
    assert panel.doubtful == {(1, 0), (1, 2)}


def test_claims_are_tried_where_their_rows_are_and_curves_of_the_best_are_drawn(tmp_path):
    document = page(list(trials()), RATES, "")
    (claims,) = section(document, "What papers claim")
    assert [row.label[0] for row in claims.rows] == [
        "CoCA extrapolates better than RoPE",
        "NoPE extrapolates better than RoPE",
    ]
    assert claims.rows[0].values[0].text == "holds"
    assert claims.rows[0].values[3].text == "copy, left, sort"
    assert "Not tried, for want of a row:" in claims.note
    assert "PoPE extrapolates better than RoPE;" in claims.note
    crowd = [trial(f"row{i}", seed, {"copy": (100, 90 - 5 * i, 10)}) for i in range(7) for seed in (1, 2)]
    (curve,) = section(page([*crowd, trial("rope", 1, {"copy": (100, 1, 1)})], RATES, ""), "Curves")
    labels = ["RoPE", *(f"row{i}" for i in range(4)), "(a reader of the last 64 tokens)", "row4", "row5", "row6"]
    assert [line.label for line in curve.lines] == labels
    assert curve.lines[5].y == pytest.approx([1.0, 1.0, 1 / 16], abs=0.001)
    assert curve.n_shown == 6
    files = write_report(page(crowd, RATES, ""), tmp_path)
    assert "3 more curves are among the numbers of this picture. [SVG]" in files["report.md"].read_text()
    html = files["report.html"].read_text()
    assert html.count('aria-label="Curves; press') == html.count('aria-label="More curves; press') == 1
    assert "3 more curves" in html and html.count('aria-pressed="false" data-line') == 3
    assert html.count(' off" data-line') == 6  # on wide screens and on narrow ones


def test_how_soon_rows_learn_is_compared_with_the_reference():
    """A row whose losses are half of RoPE's in every seed, and one with a loss that was not finite."""

    def losses(seed, factor):
        return {step: {"copy": factor * seed / step, "left": factor * 3 * seed / step} for step in (1000, 2000)}

    half = [trial("coca", seed, valid_losses=losses(seed, 0.5)) for seed in (1, 2, 3)]
    lost = trial("nope", 1, valid_losses={1000: {"copy": None, "left": 0.1}, 2000: {"copy": 0.1, "left": 0.1}})
    whole = [trial("rope", seed, valid_losses=losses(seed, 1)) for seed in (1, 2, 3)]
    learning, first = section(
        page([*whole, *half, lost, trial("rope_ntk1", method="rope")], RATES, ""), "How soon they learn"
    )
    assert [row.label[0] for row in learning.rows] == ["CoCA", "RoPE", "NoPE"]
    assert learning.columns == ("1,000", "2,000", "of RoPE's at 1,000", "of RoPE's at 2,000")
    assert [value.text for value in learning.rows[0].values] == ["0.002", "0.001", "0.50×", "0.50×"]
    assert learning.rows[2].values[0].text == "–"
    assert first.rows[0].values[1].number == 3 * 2 / 1000  # the middle of three seeds


def test_one_seed_names_no_winner():
    document = page(
        [trial("rope", 1, {"copy": BAD, "left": BAD}), trial("coca", 1, {"copy": GOOD, "left": GOOD})], RATES, ""
    )
    assert document.finding[1:] == [
        "Nothing can be separated from seed noise: no two rows have two seeds and a task in common."
    ]


def test_where_nothing_is_learned_the_page_says_so():
    document = page([trial(shares={"copy": (10, 10, 10)})], RATES, "python -m coca_train atlas")
    assert document.finding == ["No method has learned most of the tasks at 64 tokens."]


def test_a_row_of_one_seed_is_not_called_as_good():
    """Its interval is infinite: nothing is known of it, not even that it might be the first."""
    document = page([*trials(), trial("pope", 1, {"copy": BAD, "left": BAD, "sort": BAD})], RATES, "")
    assert [each for each in document.finding if "PoPE" in each] == ["With one seed so far, and not judged: PoPE."]
    ranks = section(document, "Ranks")[0]
    of_pope = next(row for row in ranks.rows if row.label == ("PoPE",))
    assert [of_pope.values[k].text for k in (2, 3, 4, 5)] == ["–"] * 4
    assert of_pope.values[7].text == "1"


def test_a_row_of_one_seed_is_not_called_the_best():
    all_right = {"copy": (100, 100, 100), "left": (100, 100, 100), "sort": (100, 100, 100)}
    document = page([*trials(), trial("pope", 1, all_right)], RATES, "")
    assert document.finding[0].startswith("Of the rows with several seeds CoCA has the highest mean score")
    assert "With one seed so far, and not judged: PoPE." in document.finding


def test_rows_of_one_seed_are_named_where_there_is_nothing_to_compare():
    """A row of several seeds, good or bad, and others of one."""
    mine = [trial("mine", seed, {"copy": BAD, "left": BAD}) for seed in (1, 2)]
    said = page([*mine, trial("pope", 1)], RATES, "").finding
    assert said[0].startswith("Of the rows with several seeds mine has") and "not judged: PoPE." in said[1]
    assert said[2].startswith("Nothing can be separated from seed noise")
    nothing = {"copy": (10, 0, 0), "left": (10, 0, 0)}
    said = page([*(trial("mine", seed, nothing) for seed in (1, 2)), trial("pope", 1)], RATES, "").finding
    assert said[0] == "PoPE has the highest mean score beyond the 64 tokens of its training."


def test_a_row_alone_is_compared_with_nothing():
    document = page([trial("mine", seed) for seed in (1, 2)], RATES, "")
    assert document.finding == ["mine is the only row of this protocol: there is nothing to compare it with."]
    assert document.title == "Atlas: 1 position method from 1 trained model, 2 tasks, up to 2 seeds"


def test_an_end_of_the_sweep_is_one_of_the_rates_that_it_tries():
    each = [trial("rope", seed, rate=1.0) for seed in (1, 2)] + [trial("coca", seed, rate=0.5) for seed in (1, 2)]
    *_, models = section(page(each, RATES, ""), "Ranks")
    assert {row.label[0]: bool(row.values[2].note) for row in models.rows} == {"RoPE": False, "CoCA": True}


def test_nothing_learned_is_no_number_and_no_infinity():
    lost = {1000: {"copy": None, "left": 0.1}, 2000: {"copy": 0.1, "left": 0.1}}
    bad = {"copy": (10, 10, 10), "left": (10, 10, 10)}
    each = [trial(row, seed, bad, valid_losses=lost) for row in ("rope", "coca") for seed in (1, 2)]
    document = page(each, RATES, "")
    (claims,) = section(document, "What papers claim")
    assert claims.rows[0].values[1].note == "no task is learned by both"
    (_, first) = section(document, "How soon they learn")
    assert first.rows[0].values[0].note == "a loss was not finite"


def test_the_time_of_a_step_is_compared_on_one_processor():
    """Of two that trained the reference each with its own; none where the reference was not trained."""

    def at(row, seed, processor, tokens_per_s):
        return trial(row, seed, made_with={"torch": "2", "processor": processor}, tokens_per_s=tokens_per_s)

    each = [at("rope", 1, "slow", 100), at("rope", 2, "fast", 900)]
    each += [at("coca", 1, "slow", 50), at("coca", 2, "fast", 450), at("nope", 1, "other", 450)]
    document = page(each, RATES, "")
    *_, models = section(document, "Ranks")
    assert [row.values[4].text for row in models.rows] == ["1.00×", "2.00×", "–"]
    assert ("made with", "torch 2 on fast, other, slow") in document.facts


def test_a_row_that_was_asked_for_is_said_first():
    summary = page(list(trials()), RATES, "", own=["rope", "coca", "nope"]).summary
    assert summary[0].startswith("RoPE: rank 2 (2 to 2) of 3, score 0.")
    assert summary[0].endswith("learning rate 1. Significantly better: CoCA.")
    assert summary[1].startswith("CoCA: rank 1 (1 to 1) of 3, score 0.") and "Δ to RoPE +0." in summary[1]
    assert summary[1].endswith("Significantly better: none.")
    assert summary[2] == "NoPE: no rank, as no more than half of the tasks are learned."


def test_rows_are_compared_with_the_one_that_was_asked_for():
    document = page(list(trials()), RATES, "", reference="coca")
    ranks, *_ = section(document, "Ranks")
    assert ranks.columns[2] == "Δ to CoCA"
    assert ranks.rows[0].values[2].text == "–" and ranks.rows[1].values[2].number < -0.4
    assert "Significantly below: RoPE" in section(document, "What separates them")[0].text
