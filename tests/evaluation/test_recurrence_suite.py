"""The suite recurrence: segments with a memory, against passes that need none; what the page says."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coca_train.attention import patterns
from coca_train.evaluation.suites import recurrence
from coca_train.evaluation.suites._documents import first_window_nll
from coca_train.evaluation.suites.recurrence import recurrent_nll
from tests.evaluation.grids import TEXTS, TINY, Bytes, blocks, evaluate, row, settings, subject
from tests.models.conftest import NEOX, build

XL = {"scheme": "transformer_xl", "shared": True, "memory_len": 16}
SINKS = {"name": "sinks", "window": 16, "n_sink": 4}
TWO = replace(TINY, n_layers=2)
OPTIONS = settings("recurrence", segment=16, document_tokens=80)


def documents(n: int, length: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 101, (n, length + 1)))


def test_a_memory_as_long_as_the_text_is_one_pass_over_it():
    model, texts = build(NEOX, XL), documents(2, 45)  # the last of the segments is shorter
    np.testing.assert_allclose(recurrent_nll(model, texts, 45, 10, 45), first_window_nll(model, texts, 45), atol=1e-4)


@pytest.mark.parametrize("memory_len", [0, 3, 10, 14])
def test_one_layer_remembers_its_memory_and_no_more(memory_len):
    """Of one layer the memory is the embeddings before the segment: a window that begins there gives the same."""
    model, (text,) = build(replace(NEOX, n_layers=1), XL), documents(1, 40)
    nll = recurrent_nll(model, [text], 40, 10, memory_len)[0]
    for begin in (0, 10, 20, 30):
        start = max(0, begin - memory_len)
        window = first_window_nll(model, [text[start : begin + 11]], begin + 10 - start)[0]
        np.testing.assert_allclose(nll[begin : begin + 10], window[begin - start :], atol=1e-4)


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
    document = recurrence.Evaluator(OPTIONS).page(grid)
    values = row(blocks(document)["recurrence"], "xl", "plain").values
    assert [value.text for value in values[:1]] == ["–"] and values[2].note == "memory 32"
    result = grid.find("xl", "plain", 48).result
    assert values[2].interval == (result["ci_low"], result["ci_high"])
    assert "16 tokens" in grid.find("xl", "plain", 8).reason
    assert "position.memory_len" in grid.find("rope", "plain", 16).reason
    assert "32 tokens" in document.summary[0] and "segments of 16" in document.summary[0]


def test_what_looks_back_to_the_first_tokens_is_refused():
    each = subject("xl", XL, config=TINY)
    each.model.attention_patterns["default"] = patterns.build(patterns.settings(SINKS))
    assert "sinks" in recurrence.Evaluator(OPTIONS).impossible(each, 48, None)  # type: ignore[arg-type]


@torch.no_grad()
def losses_by_hand(model, tokens, segment, memory):
    """Transformer-XL (sections 3.2 and 3.3) of one text from its weights: every query and key by itself."""
    weights = {name: value.double() for name, value in model.named_parameters()}
    n_heads, width = TWO.n_heads, TWO.d_model // TWO.n_heads
    waves = 10000 ** (-torch.arange(0, TINY.d_model, 2).double() / TINY.d_model)
    u, v = weights["position.u"], weights["position.v"]

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], TINY.norm_eps)

    kept = [torch.zeros(0, TINY.d_model).double()] * TWO.n_layers
    nll = []
    for begin in range(0, len(tokens) - 1, segment):
        end = min(begin + segment, len(tokens) - 1)
        x = weights["embed.weight"][tokens[begin:end]]
        for layer in range(TWO.n_layers):
            at = f"blocks.{layer}"
            seen = torch.cat((kept[layer], x))
            kept[layer] = seen[max(0, len(seen) - memory) :]
            n_old = len(seen) - len(x)
            q = linear(norm(x, f"{at}.attention_norm"), f"{at}.attention.q").unflatten(-1, (n_heads, width))
            k, values = (
                linear(norm(seen, f"{at}.attention_norm"), f"{at}.attention.{name}").unflatten(-1, (n_heads, width))
                for name in "kv"
            )
            mixed = torch.zeros_like(q)
            for m in range(len(x)):
                # All of the segment before it, and all of the memory.
                distance = torch.arange(n_old + m, -1, -1)[:, None] * waves
                far = torch.cat((distance.sin(), distance.cos()), 1) @ weights[f"{at}.attention.position.w_r"].T
                score = ((q[m] + u) * k[: n_old + m + 1] + (q[m] + v) * far.unflatten(-1, (n_heads, width))).sum(-1)
                mixed[m] = ((score / math.sqrt(width)).softmax(0)[..., None] * values[: n_old + m + 1]).sum(0)
            inner = F.gelu(linear(norm(x, f"{at}.mlp_norm"), f"{at}.mlp.up"))
            x = x + linear(mixed.flatten(1), f"{at}.attention.out") + linear(inner, f"{at}.mlp.down")
        log_p = linear(norm(x, "final_norm"), "head").log_softmax(-1)
        nll += [-float(log_p[i, tokens[begin + i + 1]]) for i in range(end - begin)]
    return np.array(nll)


def test_a_whole_evaluation_is_a_loop_over_queries_and_keys(evaluated, books):
    """A model with a memory in the folder's place, its tokens bytes."""
    who = subject("xl", XL, config=TWO)
    own = {name: getattr(who.model, name).settings for name in ("position", "attention_pattern")}

    def exchanged(opened):
        train = replace(opened.config.train, seq_len=16)
        data = replace(opened.config.data, order="stream")  # the order that a memory asks for
        config = replace(opened.config, model=TWO, train=train, data=data, **own)
        return opened._replace(model=who.model, tokenizer=Bytes(), config=config)

    words = ["grid.lengths=[8,14,24]", "eval.segment=8", "eval.document_tokens=30"]
    record, _ = evaluated("recurrence", *words, exchanged=exchanged)
    texts = [torch.tensor([1, *json.loads(line)["text"].encode()][:31]) for line in books.read_text().splitlines()]
    for cell in record["cells"]:
        nll = np.array([losses_by_hand(who.model, text, 8, cell["point"] - 8).mean() for text in texts])
        expected = np.exp([nll.mean(), nll.min(), nll.max()])
        found = [cell["result"][key] for key in ("perplexity", "ci_low", "ci_high")]
        assert found == pytest.approx(expected, rel=1e-5)
    assert len({cell["result"]["perplexity"] for cell in record["cells"]}) == 3
