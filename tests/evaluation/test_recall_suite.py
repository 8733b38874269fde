"""The suite recall: a cell against decoding by hand, planted answers and a planted reach, ranks, and its page."""

import json

import pytest
import torch

from coca_train.evaluation.suites import recall
from coca_train.evaluation.suites.recall import value_in
from tests.evaluation.copying import copying, successor
from tests.evaluation.grids import (
    blocks,
    byte_subject,
    cell,
    evaluation,
    measured,
    parrot,
    result,
    settings,
    setup,
)

SMALL = {"n_cases": 6, "n_depths": 3}


def small(**options):
    return settings("recall", **(SMALL | options))


def prompts_by_hand(length, n_cases=6):
    """Prompts of the cell as text."""
    material = recall.Evaluator(small(n_cases=n_cases)).prepare(byte_subject(), setup([length]))
    return [bytes(case.tokens).decode() for case in material[length]]


def value_by_hand(prompt: str) -> str:
    whole, asked = prompt.rsplit("\n", 1)
    return json.loads(whole)[json.loads(asked.removesuffix(":"))]


def test_the_yaml_is_whole():
    shipped = settings("recall")
    assert (shipped.n_cases, shipped.keys, shipped.values, shipped.places) == (100, "words", "words", "even")


@torch.no_grad()
def test_a_cell_equals_decoding_by_hand():
    """Every answer of a random model, the whole text computed anew for every token; and what is counted."""
    subject = byte_subject()
    known = result(recall.Evaluator(small()), subject, 300, setup([300], micro_batch_tokens=1000))
    expected = []
    for prompt in prompts_by_hand(300):
        text = list(prompt.encode())
        n = len(text)
        for _ in range(len(' "bamilo"') + 2):
            text.append(int(subject.model(torch.tensor([text]))[0, -1].argmax()))
            if text[-1] == 0:  # the end of a document
                break
        answer = subject.tokenizer.decode(text[n:])
        expected.append((answer, value_in(answer) == value_by_hand(prompt)))
    assert [(case["answer"], case["found"]) for case in known["cases"]] == expected
    assert len({answer for answer, _ in expected}) > 1


@pytest.mark.parametrize("reach", [10_000, 300, 100])
def test_a_reader_finds_what_is_within_its_reach(reach):
    """A model that copies: which values it finds, by copying letter by letter in plain Python."""
    known = result(recall.Evaluator(small()), copying(reach), 500, setup([500], micro_batch_tokens=2000))
    expected = []
    for prompt in prompts_by_hand(500):
        text = list(prompt.encode())
        for _ in range(11):
            text.append(successor(text, reach))
        expected.append(bytes(text[len(prompt) :]).decode(errors="replace").startswith(f' "{value_by_hand(prompt)}"'))
    assert [case["found"] for case in known["cases"]] == expected
    assert known["accuracy"] == sum(expected) / 6
    within = [case["distance"] <= reach for case in known["cases"]]
    assert within == expected  # distances of this cell are nowhere near the reach
    assert {10_000: 1.0, 300: 4 / 6, 100: 2 / 6}[reach] == known["accuracy"]


def test_answers_are_counted(monkeypatch):
    """In turn the value, another pair's, a value with a letter more, and nothing."""
    asked = []

    def answer(prompt):
        whole, key = prompt.rsplit("\n", 1)
        held, value, turn = json.loads(whole), value_by_hand(prompt), len(asked) % 4
        asked.append((key, held))
        other = next(each for each in held.values() if each != value)
        return [f' "{value}",\n"x": "', f' "{other}"', f' "{value}a"', " nothing"][turn]

    parrot(monkeypatch, recall, answer)
    known = result(recall.Evaluator(small(n_cases=8)), byte_subject(), 200, setup([200]))
    assert (known["accuracy"], known["others"], known["n_cases"]) == (0.25, 0.25, 8)
    assert [case["found"] for case in known["cases"]] == [True, False, False, False] * 2
    assert (known["low"], known["high"]) == pytest.approx((0.0715, 0.5907), abs=1e-4)  # Wilson, 2 of 8
    assert known["chance"] == pytest.approx(sum(1 / len(held) for _, held in asked) / 8)
    assert all(len(case["answer"]) <= 60 for case in known["cases"])


def test_the_page():
    def case(found, depth, distance):
        return {"value": "x", "n_pairs": 9, "depth": depth, "distance": distance, "found": found, "answer": ""}

    def done(name, point, cases):
        accuracy = sum(each["found"] for each in cases) / len(cases)
        kept = {"accuracy": accuracy, "cases": cases, "n_cases": len(cases), "others": 0.5, "chance": 1 / 9}
        return cell(name, "plain", point, kept)

    cells = [
        done("one", 128, [case(True, 0.0, 120), case(True, 1.0, 20)]),
        done("one", 512, [case(False, 0.0, 500), case(True, 1.0, 20)]),
        done("two", 128, [case(False, 0.5, 60)]),
        cell("two", "plain", 512, status="out_of_memory", reason="no room"),
    ]
    subjects = [measured(name, window=128) for name in ("one", "two")]
    document = recall.Evaluator(small()).page(evaluation("recall", vars(small()), subjects, (128, 512), cells))
    shown = blocks(document)
    found = shown["recall-found"]
    assert [[value.number for value in row.values] for row in found.rows] == [[1.0, 0.5], [0.0, None]]
    value = found.rows[0].values[1]
    assert (value.note, value.range) == ("1 of 2", "0.09 to 0.91")
    assert [(line.label, line.x, line.y) for line in shown["recall-by-length"].lines] == [
        ("one", (128.0, 512.0), (1.0, 0.5)), ("two", (128.0,), (0.0,))
    ]  # fmt: skip
    assert shown["recall-depth"].panels[0].values == ((1.0, 0.0), (None, None), (1.0, 1.0))
    assert [value.number for value in shown["recall-by-distance"].rows[0].values] == [1.0, 0.0, None, None]
    others = {row.label: row.values[0].number for row in shown["recall-others"].rows}
    assert others["one", "plain", "by any of the values"] == pytest.approx(1 / 9)
    (said,) = document.summary  # of the longest, which only one was asked
    assert said.startswith("In prompts of 512 tokens one:") and "0.50 (0.09 to 0.91)" in said
