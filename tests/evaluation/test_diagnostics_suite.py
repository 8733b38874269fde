"""The suite diagnostics: what counts as right, learned, and reached; ranks; models of other tokens."""

from types import SimpleNamespace

import pytest
import torch

from coca_train.data.diagnostics import TASKS
from coca_train.data.tokenizer import Tokenizer
from coca_train.evaluation.suites import diagnostics
from data_prep.verbs.diagnostics import write_tokenizer
from tests.evaluation.grids import ROPE, Bytes, blocks, cell, evaluate, evaluation, measured, settings, setup, subject

FEW = {"n_cases": 6}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens") / "tokenizer.model"
    write_tokenizer(path)
    return Tokenizer(path)


@pytest.fixture(scope="module")
def grid(tokenizer):
    return evaluate(settings("diagnostics", **FEW), [subject("rope", ROPE, tokenizer=tokenizer)], (8, 32, 64))


def test_any_number_of_ranks_finds_the_same(grid, tokenizer):
    each = subject("rope", ROPE, tokenizer=tokenizer)
    again = evaluate(settings("diagnostics", **FEW), [each], (8, 32, 64), ranks=3)
    for length in (32, 64):
        assert again.find("rope", "plain", length) == grid.find("rope", "plain", length)


def test_what_cannot_be_measured_says_why(grid):
    assert "shortest examples have 16" in grid.find("rope", "plain", 8).reason
    other = evaluate(settings("diagnostics", **FEW), [subject("bytes", ROPE, tokenizer=Bytes())], (32,))
    assert "no token for 'copy'" in other.find("bytes", "plain", 32).reason


def test_an_oracle_is_right_and_one_that_is_late_is_not(tokenizer):
    """A model that always expects the next token of the text, and one that expects the present one."""
    suite, who = diagnostics.Evaluator(settings("diagnostics", **FEW)), subject("rope", ROPE, tokenizer=tokenizer)
    shared = setup((64,))
    material = suite.prepare(who, shared)

    def answering(shift: int):
        def model(tokens_BT, length):
            assert length == 64
            return torch.nn.functional.one_hot(tokens_BT.roll(-shift, 1), 256).float()

        model.parameters = who.model.parameters
        parts = suite.measure(SimpleNamespace(model=model), 64, material, shared)
        return suite.combine(64, material, parts)["tasks"]

    oracle, late = answering(1), answering(0)
    assert oracle.keys() == set(TASKS)
    for task in TASKS:
        assert oracle[task]["right"] == oracle[task]["asked"]
        assert sum(late[task]["right"]) < sum(late[task]["asked"])
    assert all(len(of_task["right"]) == 6 for of_task in oracle.values())


def of_task(share: float) -> dict:
    return {"right": [round(20 * share)] * 5, "asked": [20] * 5, "chance": 0.1, "units": "u"}


def made(**by_task: list[float]):
    """An evaluation of one model with a window of 32, at 16 to 128 tokens."""
    lengths = (16, 32, 64, 128)
    cells = [
        cell("m", "plain", length, {"tasks": {task: of_task(shares[i]) for task, shares in by_task.items()}})
        for i, length in enumerate(lengths)
    ]
    return evaluation("diagnostics", {}, [measured("m", window=32)], lengths, cells)


def test_what_is_learned_and_how_far_it_works():
    """What is not learned within the window is not judged; what fails once beyond has ended there."""
    (row,) = made(copy=[1, 1, 1, 0.95], sort=[1, 0.9, 0.85, 1], parity=[1, 0.85, 1, 1], add=[0.2, 0.9, 0.9, 0]).rows()
    assert diagnostics.learned(row, 0.9) == {"copy": 128, "sort": 32, "add": 64}


def test_the_page_names_tasks_and_chances(grid):
    page = diagnostics.Evaluator(settings("diagnostics", **FEW)).page(grid)
    assert page.summary == ["RoPE: has learned none of 16 tasks at 32 tokens."]
    assert len(blocks(page)["diagnostics-right"].rows) == 16
    text = str(page.sections[-2])
    assert (
        "* parity: Say whether the number of ones is odd. By guessing: 50.0% at 32 tokens and 50.0% at 64 tokens."
        in text
    )
    good = made(copy=[1, 1, 1, 1], sort=[1, 1, 0, 0])
    said = diagnostics.Evaluator(settings("diagnostics", tasks=["copy", "sort"])).page(good).summary
    assert said == ["m: has learned 2 of 2 tasks at 32 tokens; up to 128 tokens: copy; up to 32 tokens: sort."]


def test_a_length_beyond_the_window_says_nothing_of_what_was_learned():
    lengths = (64, 128)
    cells = [cell("m", "plain", length, {"tasks": {"copy": of_task(1)}}) for length in lengths]
    beyond = evaluation("diagnostics", {}, [measured("m", window=32)], lengths, cells)
    said = diagnostics.Evaluator(settings("diagnostics", tasks=["copy"])).page(beyond).summary
    assert said == ["m: was not measured within its training window of 32 tokens."]
