"""`+eval=position_loss`, perplexity of the last tokens as the context grows: what a cell reads, and its page."""

import math

import pytest
import torch

from coca_train.evaluation.suites import perplexity
from tests.evaluation.grids import ROPE, TEXTS, Bytes, blocks, evaluate, row, settings, subject

DYNAMIC = {"name": "dynamic_linear", "theta": 10000.0, "original_seq_len": 32}
OPTIONS = settings("position_loss", last=16)


def rope():
    return subject("rope", ROPE, [DYNAMIC], tokenizer=Bytes())


@pytest.fixture(scope="module")
def grid():
    learned = subject("learned", {"scheme": "learned", "max_len": 40}, tokenizer=Bytes())
    return evaluate(OPTIONS, [rope(), learned], (32, 64, 4096), TEXTS)


def test_a_cell_against_logits_of_one_document_at_a_time(grid):
    each, losses = rope(), {}
    for name, variant in each.variants.items():
        each.model.set_position(variant.position)
        losses[name] = []
        for text in [*TEXTS["a"][:2], *TEXTS["b"]]:
            ids = torch.tensor(Bytes().encode(text)[:65])
            nll = torch.nn.functional.cross_entropy(each.model(ids[None, :-1], length=64)[0], ids[1:], reduction="none")
            losses[name].append(nll.detach())
    for name in losses:
        found = grid.find("rope", name, 64).result["sources"]
        mean = torch.stack(losses[name]).mean(0)
        assert found["all"]["perplexity"] == pytest.approx(math.exp(mean[-16:].mean()), rel=1e-4)
        assert found["all"]["loss_by_position"][:8] == pytest.approx(mean[:8].tolist(), rel=1e-4)
        assert [n for _, n in found["all"]["by_document"]] == [16] * 3
        only_a = torch.stack(losses[name][:2]).mean(0)
        assert found["a"]["perplexity"] == pytest.approx(math.exp(only_a[-16:].mean()), rel=1e-4)
        assert found["b"]["n_documents"] == 1 and found["b"]["bits_per_byte"] is None
    at = {(name, n): grid.find("rope", name, n).result["sources"]["all"] for name in losses for n in (32, 64)}
    assert at["plain", 64]["perplexity"] != at["dynamic_linear", 64]["perplexity"]
    assert at["plain", 32]["perplexity"] == pytest.approx(at["dynamic_linear", 32]["perplexity"])


def test_what_cannot_be_measured_says_why(grid):
    assert grid.find("learned", "plain", 64).reason.startswith("learned has 40 positions")
    assert grid.find("learned", "plain", 32).status == "done"
    assert grid.find("rope", "plain", 4096).reason == "no document has 4,096 tokens"
    with pytest.raises(ValueError, match="document_tokens=window"):
        settings("position_loss", document_tokens="longest")


def test_the_page_shows_curves_and_growing_context(grid):
    document = perplexity.Evaluator(OPTIONS).page(grid)
    shown = blocks(document)
    by_position = shown["loss-by-position-all"].lines
    assert [line.label for line in by_position] == ["RoPE", "RoPE + dynamic PI", "learned positions"]
    assert by_position[0].x[-1] == pytest.approx(math.sqrt(55 * 64))  # 54 = 2^5.75
    growing = shown["perplexity-curves-all"].lines[0]
    assert growing.x == (32.0, 64.0) and growing.low[1] <= growing.y[1] <= growing.high[1]
    value = row(shown["perplexity-all"], "rope", "plain").values[1]
    result = grid.find("rope", "plain", 64).result["sources"]["all"]
    assert (value.number, value.low, value.high) == tuple(result[key] for key in ("perplexity", "ci_low", "ci_high"))
    assert "bits-per-byte-all" not in shown
