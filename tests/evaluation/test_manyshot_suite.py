"""The suite manyshot: a cell against plain forwards, a planted reach, ranks, and its page."""

import re

import pytest
from pydantic import ValidationError

from coca_train.evaluation.suites import manyshot
from tests.evaluation.copying import copying, successor
from tests.evaluation.grids import blocks, byte_subject, cell, evaluation, measured, result, settings, setup

SMALL = {"n_words": 12, "n_cases": 8}


def small(**options):
    return settings("manyshot", **(SMALL | options))


def prompts(length, options=None):
    """Of a cell: the prompt's text and the right label."""
    wanted = options or small()
    material = manyshot.Evaluator(wanted).prepare(byte_subject(), setup([length]))
    return [
        (bytes(case.requests[0].context).decode().removesuffix(" "), wanted.labels[case.label])
        for case in material[length]
    ]


@pytest.mark.parametrize("labels", [["A"], ["A", "A"], ["A", "AB"], ["A", ""]])
def test_labels_can_be_told_apart(labels):
    with pytest.raises(ValidationError):
        small(labels=labels)


@pytest.mark.parametrize("reach", [10_000, 60])
def test_a_reader_learns_what_is_within_its_reach(reach):
    """A model that copies: right of every word it has read, and as often as by chance of the others."""
    options = small(n_words=24, n_cases=40)
    known = result(manyshot.Evaluator(options), copying(reach), 300, setup([300], micro_batch_tokens=2000))
    expected = []
    for prompt, right in prompts(300, options):
        said = chr(successor(list(f"{prompt} ".encode()), reach))
        expected.append(said == right)
    assert [case["found"] for case in known["cases"]] == expected
    near = [case["found"] for case in known["cases"] if case["seen"] and case["distance"] <= reach]
    assert near and all(near)
    far = [case["found"] for case in known["cases"] if case["seen"] and case["distance"] > reach]
    assert bool(far) == (reach == 60) and (not far or sum(far) / len(far) < 0.6)
    if reach == 10_000:
        assert known["accuracy"] == pytest.approx(known["ceiling"], abs=0.05)
    else:
        assert known["accuracy"] < known["ceiling"] - 0.2


def test_the_page():
    def case(found, seen, distance=None):
        return {"n_shots": 9, "seen": seen, "distance": distance, "found": found, "label": "A", "log_p": []}

    def done(point, cases, low, learnt):
        accuracy = sum(each["found"] for each in cases) / len(cases)
        kept = {
            "accuracy": accuracy, "low": low, "high": 1.0, "n_cases": len(cases), "cases": cases, "chance": 0.25,
            "ceiling": 0.7, "learnt": learnt, "n_shots": 9.0,
        }  # fmt: skip
        return cell("one", "plain", point, kept)

    cells = [
        done(128, [case(True, True, 100), case(True, True, 20), case(False, False)], 0.3, 0.5),
        done(512, [case(False, True, 300), case(False, False)], 0.0, -0.3),
    ]
    options = vars(small())
    document = manyshot.Evaluator(small()).page(
        evaluation("manyshot", options, [measured("one", window=128)], (128, 512), cells)
    )
    shown = blocks(document)
    lines = {line.label: line for line in shown["manyshot-by-length"].lines}
    assert lines["one"].y == pytest.approx((2 / 3, 0.0)) and lines["one"].low is not None
    assert (lines["ceiling"].y, lines["chance"].y) == ((0.7, 0.7), (0.25, 0.25))
    first = shown["manyshot-accuracy"].rows[0].values[0]
    assert (first.note, first.range) == ("2 of 3", "0.21 to 0.94")
    beside = {row.label[2]: [value.number for value in row.values] for row in shown["manyshot-beside"].rows}
    assert beside == {
        "shots": [9, 9], "of words among the shots": [1.0, 0.0], "of the others": [0.0, 0.0], "chance": [0.25, 0.25],
        "ceiling": [0.7, 0.7], "words learnt": [0.5, -0.3],
    }  # fmt: skip
    assert [value.number for value in shown["manyshot-by-distance"].rows[0].values] == [1.0, 0.0, None, None]
    nowhere = evaluation("manyshot", options, [measured("one", window=128)], (512,), cells[1:])
    (said,) = manyshot.Evaluator(small()).page(nowhere).summary
    assert "nowhere" in said and "25%" in said and "8 cases" in said
    (said,) = document.summary
    assert re.findall(r"[0-9]+%?", said) == ["67%", "128", "9", "25%", "70%"]
