"""The suite passkey: what a cell's result is, that ranks and batches do not change it, and what its page shows."""

import re

import pytest

from coca_train.evaluation.suites import passkey
from coca_train.evaluation.suites._prompts import nearest_depth
from coca_train.report.blocks import HeatMaps, Lines, Table
from tests.evaluation.grids import blocks, byte_subject, cell, evaluation, measured, parrot, result, settings, setup

SMALL = {"n_cases": 6, "max_new_tokens": 8, "places": "even", "n_depths": 3}
KEY = re.compile(r"The passkey is (\d+)\.")


def small(**options):
    return settings("passkey", **(SMALL | options))


def test_right_answers_are_counted(monkeypatch):
    """Half of the answers right, a sixth right but for a digit behind it."""
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        key, turn = KEY.findall(prompt)[0], len(prompts) % 6
        return f"\nThe passkey is {key}.\n" + "x" * 90 if turn < 3 else f"{key}7" if turn == 3 else "I do not know"

    parrot(monkeypatch, passkey, answer)
    scores = result(passkey.Evaluator(small(n_cases=12)), byte_subject(), 900, setup([900]))
    assert (scores["accuracy"], scores["more"]["contained"], scores["n_cases"]) == (0.5, pytest.approx(8 / 12), 12)
    assert (scores["low"], scores["high"]) == pytest.approx((0.2538, 0.7462), abs=1e-4)  # 6 of 12
    assert all(len(prompt) <= 900 for prompt in prompts)
    assert [case["depth"] for case in scores["cases"][:3]] == [0, 4 / 7, 1]  # of seven fillers
    for case, prompt in zip(scores["cases"], prompts, strict=True):
        assert prompt[-case["distance"] :].startswith(f"The passkey is {case['hidden']}.")
        assert len(case["answer"]) <= 40


def test_yarns_evaluation_asks_as_its_authors(monkeypatch):
    """Its prompt, and the first number of ten tokens; a cell of the CoCA paper's words is the one it was before."""
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        return f" {re.findall('The pass key is ([0-9]+)', prompt)[0]} or 5" if len(prompts) % 2 else " 5"

    parrot(monkeypatch, passkey, answer)
    yarn = settings("passkey_yarn")
    assert (yarn.prompt, yarn.n_cases, yarn.max_new_tokens, yarn.places) == ("yarn", 10, 10, "uniform")
    scores = result(passkey.Evaluator(yarn), byte_subject(), 900, setup([900]))
    assert scores["accuracy"] == 0.5 and len(set(prompts)) == 10
    assert all(prompt.endswith("What is the pass key? The pass key is") for prompt in prompts)


def case(correct, depth=0.0, distance=100):
    return {"hidden": "12345", "depth": depth, "distance": distance, "found": correct, "answer": ""}


def done(subject, point, cases, variant="plain"):
    n = sum(c["found"] for c in cases)
    return cell(subject, variant, point, {"accuracy": n / len(cases), "cases": cases, "n_cases": len(cases)})


@pytest.fixture
def page():
    """Two models of different windows; 512 and 1024, 1024 of the second out of memory."""
    near, far = case(True, 1.0, 100), case(False, 0.0, 400)
    cells = [
        done("one", 512, [near, near, near, far]),
        done(
            "one", 1024, [case(True, 0.5, 512), case(False, 0.4, 2047), case(False, 0.6, 2048), case(True, 0.5, 9000)]
        ),
        done("two", 512, [far]),
        cell("two", "plain", 1024, status="out_of_memory", reason="no room"),
    ]
    subjects = [measured("one", window=512), measured("two", window=400)]
    document = passkey.Evaluator(small()).page(evaluation("passkey", SMALL, subjects, (512, 1024), cells))
    return document, blocks(document)


def test_the_table_by_length(page):
    table = page[1]["passkey-found"]
    assert isinstance(table, Table)
    ours = [row for row in table.rows if not row.theirs]
    assert [[value.number for value in row.values] for row in ours] == [[0.75, 0.5], [0.0, None]]
    assert ours[1].values[1].text == "OOM"
    assert (ours[0].values[0].note, ours[0].values[0].range) == ("3 of 4", "0.30 to 0.95")
    theirs = {row.label: [value.number for value in row.values] for row in table.rows if row.theirs}
    assert theirs["RoPE + dynamic NTK (alpha 4)", "CoCA, table 2"] == [0.99, 1.0]  # table 2
    assert theirs["CoCA + dynamic NTK (alpha 2) + strict", "CoCA, table 3"] == [1.0, 0.87]  # table 3: 0.99 - 0.12
    assert theirs["LLaMA-7B + CoCA + PI", "CoCA, table 4"] == [1, 1]  # table 4


def theirs_beside(window, *lengths):
    """The paper's rows beside a model of this training window."""
    cells = [done("one", length, [case(True)]) for length in lengths]
    grid = evaluation("passkey", SMALL, [measured("one", window=window)], lengths, cells)
    table = blocks(passkey.Evaluator(small()).page(grid))["passkey-found"]
    return {row.label: [value.number for value in row.values] for row in table.rows if row.theirs}


def test_the_papers_figures_stand_at_the_same_multiple_of_the_training_window():
    """Theirs was 512 tokens, LLaMA-7B's 2,048."""
    theirs = theirs_beside(128, 128, 256, 2048)
    assert theirs["RoPE", "CoCA, table 2"] == [0.99, 0.53, 0.04]  # at 512, 1,024 and 8,192 tokens
    assert theirs["LLaMA-7B", "CoCA, table 2"] == [1, 0.61, 0.09]  # at 2,048, 4,096 and 32,768
    assert theirs_beside(512, 512, 1024)["RoPE", "CoCA, table 2"] == [0.99, 0.53]


def test_nothing_of_the_paper_at_other_multiples():
    assert theirs_beside(512, 700) == {}


def test_inside_and_outside_of_the_window(page):
    inside, outside = page[1]["passkey-inside-window"], page[1]["passkey-outside-window"]
    assert isinstance(inside, Lines)
    assert [(line.label, line.x, line.y) for line in inside.lines] == [("one", (512.0,), (0.75,))]
    assert [(line.label, line.x, line.y) for line in outside.lines] == [
        ("one", (1024.0,), (0.5,)),
        ("two", (512.0,), (0.0,)),
    ]
    assert inside.lines[0].low == pytest.approx((0.3006,), abs=1e-4)  # Wilson, 3 of 4


def test_ranges_of_distance_are_in_windows_of_the_model(page):
    table = page[1]["passkey-by-distance"]
    numbers = [[value.number for value in row.values] for row in table.rows]
    assert numbers == [[0.75, 0.5, 0.0, 1.0], [None, 0.0, None, None]]


def test_the_heat_map(page):
    maps = page[1]["passkey-depth"]
    assert isinstance(maps, HeatMaps)
    one, two = maps.panels
    assert one.values == ((0.0, None), (None, 0.5), (1.0, None))
    assert two.values == ((0.0, None), (None, None), (None, None))
    assert (one.mark_after_x, two.mark_after_x) == (1, None)
    assert one.y_names == ("0%", "50%", "100%")


@pytest.mark.parametrize("n_fillers", [9, 12, 15, 28, 400])
def test_every_depth_of_an_even_grid_has_its_row(n_fillers):
    for row in range(10):
        assert nearest_depth(round(n_fillers * row / 9) / n_fillers, 10) == row


def test_what_is_said(page):
    document, _ = page
    (said,) = document.summary  # of the longest, which only one could be asked
    assert said.startswith("In prompts of 1,024 tokens one:") and "0.50 (0.15 to 0.85)" in said
    assert any(
        "out of memory" in block.text
        for section in document.sections
        for block in section.blocks
        if hasattr(block, "text")
    )


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"plain": (1, 0), "ntk": (1, 1)}, ("1,024 tokens", "NTK-aware finds most", "20 of 20")),
        ({"plain": (1,), "ntk": ()}, ("512 tokens one:", "found 1.00")),
        ({"plain": (1, 0.8), "ntk": (1, 1)}, ("one and one + NTK-aware", "cannot be told", "0.80 to 1.00")),
        ({"plain": (0, 0), "ntk": (0, 0)}, ("1,024 tokens", "no best", "0.00 for all")),
        ({"plain": (), "ntk": ()}, ()),
    ],
)
def test_one_sentence_says_what_variants_make_of_a_model(shares, words):
    cells = [
        done("one", point, [case(True)] * round(20 * share) + [case(False)] * round(20 - 20 * share), variant)
        for variant, row in shares.items()
        for point, share in zip((512, 1024), row, strict=False)
    ]
    grid = evaluation("passkey", SMALL, [measured("one", ("plain", "ntk"))], (512, 1024), cells)
    summary = passkey.Evaluator(small()).page(grid).summary
    assert len(summary) == bool(words)
    assert all(part in summary[0] for part in words)
