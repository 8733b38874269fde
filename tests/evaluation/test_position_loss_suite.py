"""The suite position_loss: what a cell reads, that ranks add up to one, what the page says."""

import math

import pytest
import torch

from coca_train.evaluation.suites import position_loss
from tests.evaluation.grids import LETTERS, ROPE, TEXTS, blocks, evaluate, row, settings, subject

DYNAMIC = {"name": "dynamic_linear", "theta": 10000.0, "original_seq_len": 32}


@pytest.fixture(scope="module")
def grid():
    subjects = [subject("rope", ROPE, [DYNAMIC]), subject("learned", {"scheme": "learned", "max_len": 40})]
    return evaluate(settings("position_loss", block=16), subjects, (32, 64, 4096), TEXTS)


def test_any_number_of_ranks_finds_the_same(grid):
    options = settings("position_loss", block=16)
    again = evaluate(options, [subject("rope", ROPE)], (32, 64, 4096), TEXTS, ranks=5)
    assert again.find("rope", "plain", 64) == grid.find("rope", "plain", 64)


def test_a_cell_against_logits_of_one_document_at_a_time(grid):
    each, losses = subject("rope", ROPE, [DYNAMIC]), {}
    for name, variant in each.variants.items():
        each.model.set_position(variant.position)
        losses[name] = []
        for text in [*TEXTS["a"][:2], *TEXTS["b"]]:
            ids = torch.tensor(LETTERS.encode(text)[:65])
            nll = torch.nn.functional.cross_entropy(each.model(ids[None, :-1], length=64)[0], ids[1:], reduction="none")
            losses[name].append(nll.detach())
    for name in losses:
        result = grid.find("rope", name, 64).result
        mean = torch.stack(losses[name]).mean(0)
        assert result["all"]["perplexity"] == pytest.approx(math.exp(mean[-16:].mean()), rel=1e-4)
        assert result["all"]["loss"][:8] == pytest.approx(mean[:8].tolist(), rel=1e-4)
        only_a = torch.stack(losses[name][:2]).mean(0)
        assert result["a"]["perplexity"] == pytest.approx(math.exp(only_a[-16:].mean()), rel=1e-4)
        assert result["b"]["n_documents"] == 1
    assert grid.find("rope", "plain", 64).result["all"] != grid.find("rope", "dynamic_linear", 64).result["all"]
    assert grid.find("rope", "plain", 32).result["all"] == grid.find("rope", "dynamic_linear", 32).result["all"]


def test_what_cannot_be_measured_says_why(grid):
    assert grid.find("learned", "plain", 64).reason == "learned has 40 positions"
    assert grid.find("learned", "plain", 32).status == "done"
    assert grid.find("rope", "plain", 4096).reason.split()[-2] == "4,097"


def test_positions_have_intervals(grid):
    result = grid.find("rope", "plain", 64).result["all"]
    assert all(a < b < c for a, b, c in zip(result["low"], result["loss"], result["high"], strict=True))
    page = blocks(position_loss.Evaluator(settings("position_loss", block=16)).page(grid))
    assert all(line.low is not None for line in page["position-loss"].lines)
    assert grid.find("rope", "plain", 64).result["b"]["low"][0] is None  # of one document nothing is known


def test_the_page_shows_curves_and_growing_context(grid):
    document = position_loss.Evaluator(settings("position_loss", block=16)).page(grid)
    curves = blocks(document)
    assert [line.label for line in curves["position-loss"].lines] == [
        "RoPE (L = 64)",
        "RoPE + dynamic PI (L = 64)",
        "learned positions (L = 32)",
    ]
    assert curves["position-loss"].lines[0].x[-1] == pytest.approx(math.sqrt(55 * 64))  # 54 = 2^5.75
    assert curves["position-loss"].marks == ((32.0, "training window"),)
    assert curves["growing-context"].lines[0].x == (32.0, 64.0)
    growing = curves["growing-context"].lines[0]
    assert growing.low[1] <= growing.y[1] <= growing.high[1]
    value = row(blocks(document)["growing-context-perplexity"], "rope", "plain").values[1]
    result = grid.find("rope", "plain", 64).result["all"]
    assert (value.number, value.low, value.high) == tuple(result[key] for key in ("perplexity", "ci_low", "ci_high"))
    assert document.title.endswith("32 to 4,096 tokens")
    (said,) = document.summary  # of the longest context, which learned positions do not reach
    assert "64 tokens" in said and "RoPE and RoPE + dynamic PI" in said and "3 of the 20" in said
