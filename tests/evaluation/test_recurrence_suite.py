"""The suite recurrence: segments with a memory, against passes that need none; what the page says."""

from dataclasses import replace

import numpy as np
import pytest

from coca_train.evaluation.measures.first_window import first_window_nll
from coca_train.evaluation.measures.recurrence import recurrent_nll
from coca_train.evaluation.suites import recurrence
from coca_train.models.generation import generate
from coca_train.positions import visibilities
from tests.evaluation.grids import TEXTS, TINY, blocks, evaluate, row, settings, subject
from tests.models.conftest import NEOX, build

XL = {"scheme": "transformer_xl", "shared": True, "memory_len": 16}
SINKS = {"name": "sinks", "window": 16, "n_sink": 4}
OPTIONS = settings("recurrence", segment=16, document_tokens=80)


def documents(n: int, length: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 101, (n, length + 1)))


def test_a_memory_as_long_as_the_text_is_one_pass_over_it():
    model, texts = build(NEOX, XL), documents(2, 45)  # the last of the segments is shorter
    np.testing.assert_allclose(recurrent_nll(model, texts, 45, 10, 45), first_window_nll(model, texts, 45), atol=1e-4)


def test_without_a_memory_segments_know_nothing_of_each_other():
    model, (text,) = build(NEOX, XL), documents(1, 20)
    alone = [first_window_nll(model, [text[begin : begin + 11]], 10)[0] for begin in (0, 10)]
    np.testing.assert_allclose(recurrent_nll(model, [text], 20, 10, 0)[0], np.concatenate(alone), atol=1e-4)


@pytest.mark.parametrize("memory_len", [3, 10, 14])
def test_one_layer_remembers_its_memory_and_no_more(memory_len):
    """Of one layer the memory is the embeddings before the segment: a window that begins there gives the same."""
    model, (text,) = build(replace(NEOX, n_layers=1), XL), documents(1, 40)
    nll = recurrent_nll(model, [text], 40, 10, memory_len)[0]
    for begin in (0, 10, 20, 30):
        start = max(0, begin - memory_len)
        window = first_window_nll(model, [text[start : begin + 11]], begin + 10 - start)[0]
        np.testing.assert_allclose(nll[begin : begin + 10], window[begin - start :], atol=1e-4)


def test_two_layers_see_further_than_one_memory():
    model, (text,) = build(NEOX, XL), documents(1, 30)
    other = text.copy()
    other[5] = (text[5] + 1) % 101
    changed = np.abs(recurrent_nll(model, [text], 30, 10, 10) - recurrent_nll(model, [other], 30, 10, 10))[0] > 1e-6
    assert changed[20:25].any() and not changed[:4].any()
    changed = np.abs(recurrent_nll(model, [text], 30, 10, 0) - recurrent_nll(model, [other], 30, 10, 0))[0] > 1e-6
    assert not changed[10:].any()


def test_the_cache_of_generation_is_a_memory_of_all_the_text():
    """A cached key is that of a state computed once and kept: the same as a memory that forgets nothing."""
    model, prompt = build(NEOX, XL), documents(1, 20)[0].tolist()
    new = generate(model, prompt, 4)
    assert len(new) == 4
    for i, token in enumerate(new):
        texts = [np.array([*prompt, *new[:i], other]) for other in range(101)]
        assert int(recurrent_nll(model, texts, 21 + i, 7, 40)[:, -1].argmin()) == token


@pytest.fixture(scope="module")
def grid():
    subjects = [subject("xl", XL, config=TINY), subject("rope", "alibi_plain", config=TINY)]
    return evaluate(OPTIONS, subjects, (8, 16, 48), TEXTS)


def test_ranks_add_up_to_one(grid):
    again = evaluate(OPTIONS, [subject("xl", XL, config=TINY)], (8, 16, 48), TEXTS, ranks=3)
    assert again.find("xl", "plain", 48) == grid.find("xl", "plain", 48)
    result = grid.find("xl", "plain", 48).result
    assert (result["n_tokens"], result["segment"], result["memory"], result["trained"]) == (240, 16, 32, 16)


def test_the_page_says_what_was_remembered_and_who_cannot(grid):
    document = recurrence.page(OPTIONS, grid)
    values = row(blocks(document)["recurrence"], "xl", "plain").values
    assert [value.text for value in values[:1]] == ["–"] and values[2].note == "memory 32"
    result = grid.find("xl", "plain", 48).result
    assert values[2].interval == (result["ci_low"], result["ci_high"])
    assert grid.find("xl", "plain", 8).reason == "a segment alone has 16 tokens"
    assert "was trained without a memory" in grid.find("rope", "plain", 16).reason
    assert "with a memory of 32 tokens before segments of 16 (trained with 16)" in document.summary[0]


def test_what_looks_back_to_the_first_tokens_is_refused():
    each = subject("xl", XL, config=TINY)
    each.model.visibilities["own"] = visibilities.build(visibilities.settings(SINKS))
    assert "sinks looks back to the first tokens" in recurrence.impossible(OPTIONS, each, 48, None)  # type: ignore[arg-type]
