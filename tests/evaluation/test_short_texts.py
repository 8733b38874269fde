"""Texts of no, one and few tokens: every measure of texts gives a value or a sentence, in every window."""

import json
import math

import pytest

from coca_train.evaluation.suites import SUITES
from coca_train.runtime.durable import as_json
from coca_train.runtime.errors import UserError
from tests.evaluation.grids import byte_subject, settings, setup

SHORT = {"empty": [""], "one": ["a"], "two": ["ab"], "mixed": ["", "a", "ab", "abc", "a" * 40]}
# By suite: its options; min_document_tokens leaves nothing out.
OPTIONS = {
    "perplexity": {"min_document_tokens": 1},
    "position_loss": {"min_document_tokens": 1},
    "temperature": {"document_tokens": 1, "scales": [1.0, 1.2], "block": 4},
    "anomaly": {},
    "recurrence": {"segment": 4, "document_tokens": 1},
}


@pytest.mark.parametrize("kind", ["run", "huggingface"])
@pytest.mark.parametrize("texts", SHORT)
@pytest.mark.parametrize("suite", OPTIONS)
def test_a_value_or_a_sentence(suite, texts, kind):
    options = settings(suite, **OPTIONS[suite])
    module = SUITES.module(options.suite)
    who = byte_subject(kind=kind)
    points = module.Evaluator(options).points([1, 2, 3, 32])
    shared = setup(points, {"books": SHORT[texts]})
    longest = max(len(text) + len(who.begin) for text in SHORT[texts])
    if longest < 2:
        with pytest.raises(UserError, match="E-EVAL-05"):
            module.Evaluator(options).prepare(who, shared)
        return
    material = module.Evaluator(options).prepare(who, shared)
    for point in points:
        if not module.Evaluator(options).impossible(who, point, material):
            part = module.Evaluator(options).measure(who, point, material, shared)
            assert as_json(
                module.Evaluator(options).combine(point, material, part)
            )  # a bin without a prediction is NaN


@pytest.mark.parametrize("cut", ["longest", "window", "whole"])
@pytest.mark.parametrize("counts", ["predictions", "tokens"])
@pytest.mark.parametrize("weighting", ["tokens", "windows"])
def test_perplexity_of_texts_shorter_than_window_and_stride(cut, counts, weighting):
    changes = {"document_tokens": cut, "window_counts": counts, "weighting": weighting, "begin_windows": True}
    options = settings("perplexity", min_document_tokens=1, stride=16, **changes)
    module, who, shared = SUITES.module("perplexity"), byte_subject(), setup([1, 2, 32], {"books": SHORT["mixed"]})
    material = module.Evaluator(options).prepare(who, shared)
    for point in shared.points:
        if not module.Evaluator(options).impossible(who, point, material):
            part = module.Evaluator(options).measure(who, point, material, shared)
            found = module.Evaluator(options).combine(point, material, part)["sources"]["books"]
            assert math.isfinite(found["perplexity"]) and found["n_documents"] == 3


def test_windows_of_one_token_alone_are_refused_in_words():
    options = settings("perplexity", min_document_tokens=1, window_counts="tokens")
    with pytest.raises(UserError, match="E-EVAL-33"):
        SUITES.module("perplexity").Evaluator(options).prepare(byte_subject(), setup([1], {"books": ["abc"]}))


@pytest.mark.parametrize("suite", ["perplexity", "position_loss", "anomaly"])
def test_their_page_is_written(suite, evaluated, tmp_path):
    books = tmp_path / "short.jsonl"
    books.write_text("".join(f"{json.dumps({'text': text})}\n" for text in SHORT["mixed"][1:]))
    least = ["eval.min_document_tokens=1"] if suite != "anomaly" else []
    grid = ["grid.lengths=[1,2,8]", "grid.rope_scalings=[trained]"]
    record, page = evaluated(suite, f"text.files=[{books}]", *grid, *least)
    assert {cell["status"] for cell in record["cells"]} <= {"done", "impossible"} and page.sections
    assert all(cell["result"] or cell["reason"] for cell in record["cells"])
