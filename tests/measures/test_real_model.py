"""The report on a real model: what changes beyond the training window is the variant, and nothing else."""

import math

import numpy as np
import pytest
import torch

from coca_train.evaluation.variants import Variant, after_training, variants
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.settings import load
from tests.measures.in_hand import in_hand

WINDOW, VOCAB = 16, 50
WINDOWS = (WINDOW, 4 * WINDOW)
SHAPE = ["model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "model.init_std=0.3"]


def measure(position, *overrides):
    config = load([f"position={position}", f"train.seq_len={WINDOW}", *SHAPE, *overrides]).config
    model = Transformer(config.model, config.position, config.attention_pattern, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=1)
    doc = np.random.default_rng(0).integers(0, VOCAB, 4 * WINDOW + 1)
    tried = variants(config, after_training(config))
    return model, doc, in_hand(model, {"text": [doc]}, tried, WINDOWS, WINDOW)


def nll(result, variant):
    """At the training window, and at four of them."""
    cells = [result.result("text", variant, window) for window in WINDOWS]
    return [None if one is None else one.nll_sum for one in cells]


@pytest.mark.parametrize("position", ["rope", "coca", "coca_strict"])
def test_dynamic_ntk_acts_beyond_the_window_only(position):
    _, _, result = measure(position)
    plain, dynamic = nll(result, "plain"), nll(result, "dynamic_ntk (alpha 4)")
    assert plain[0] == dynamic[0]
    assert abs(plain[1] - dynamic[1]) > 1e-2


@pytest.mark.parametrize("position", ["rope", "coca", "alibi", "t5"])
def test_plain_equals_the_model_s_own_loss(position):
    model, doc, result = measure(position, "eval.extrapolation.attention_patterns=[sliding_window]")
    tokens = torch.from_numpy(doc)[None]
    with torch.no_grad():
        whole = float(model(tokens[:, :-1], tokens[:, 1:]))
        chunks = sum(
            float(model(tokens[:, a : a + WINDOW], tokens[:, a + 1 : a + WINDOW + 1])) for a in range(0, 64, 16)
        )
    assert math.isclose(nll(result, "plain")[1], whole, rel_tol=1e-5)
    assert math.isclose(nll(result, "plain")[0], chunks, rel_tol=1e-5)


def test_what_the_weights_were_trained_with_comes_first_and_once():
    words = ["eval.extrapolation.attention_patterns=[causal,sinks,sliding_window]", "position/rope_scaling=yarn"]
    trained = load(["position=rope", "attention_pattern=sinks", "attention_pattern.window=8", *words]).config
    by_name = variants(trained, after_training(trained))
    assert list(by_name) == ["yarn", "plain", "dynamic_ntk (alpha 4)", "yarn, causal", "yarn, sliding_window"]
    assert by_name["yarn"] == Variant(trained.position, trained.attention_pattern)
    names = {name: by_name[name].attention_pattern.name for name in ("plain", "yarn, causal")}
    assert names == {"plain": "sinks", "yarn, causal": "causal"}
    assert by_name["plain"].attention_pattern == trained.attention_pattern
    assert by_name["yarn, sliding_window"].position == trained.position


@pytest.mark.parametrize("position", ["rope", "coca", "t5"])
def test_attention_patterns_act_beyond_the_window_only_and_segments_are_the_training_window(position):
    _, _, result = measure(position, "eval.extrapolation.attention_patterns=[sliding_window,segments]")
    plain, sliding, segments = (nll(result, name) for name in ("plain", "plain, sliding_window", "plain, segments"))
    assert plain[0] == pytest.approx(sliding[0], rel=1e-6)
    assert abs(plain[1] - sliding[1]) > 1e-2
    assert segments == pytest.approx([plain[0], plain[0]], rel=1e-6)


def test_a_learned_table_ends_at_its_rows_but_for_segments():
    model, doc, result = measure("learned", "eval.extrapolation.attention_patterns=[sliding_window,rerope,segments]")
    assert nll(result, "plain")[1] is None
    assert nll(result, "plain, sliding_window")[1] is None
    assert nll(result, "plain, segments")[1] == pytest.approx(nll(result, "plain")[0], rel=1e-6)
    reasons = result.reasons()
    assert "learned has 16 positions" in reasons["plain", 64]
    assert "learned knows only the tokens' own ones" in reasons["plain, rerope", 16]
    tokens = torch.from_numpy(doc)[None, :WINDOW]
    with pytest.raises(ValueError, match="E-POS-04"):
        model(torch.from_numpy(doc)[None])
    model(tokens)


def test_learned_frequencies_are_not_exchanged_and_stay():
    model, doc, result = measure(
        "coca", "position/rope_scaling=clex", "eval.extrapolation.attention_patterns=[sliding_window]"
    )
    assert {variant for variant, _ in result.cells} == {
        "clex",
        "plain",
        "dynamic_ntk (alpha 4)",
        "clex, sliding_window",
    }
    assert {variant for variant, _ in result.reasons()} == {"plain", "dynamic_ntk (alpha 4)"}
    tokens = torch.from_numpy(doc)[None]
    model.eval()  # in training the factor is drawn at random
    with torch.no_grad():
        whole = float(model(tokens[:, :-1], tokens[:, 1:]))
    assert math.isclose(nll(result, "clex")[1], whole, rel_tol=1e-5)


def test_what_other_stages_say_of_frequencies_is_not_about_these_weights():
    """A stage's own options for its frequencies need not fit those that are tried."""
    words = ["position=rope", "position/rope_scaling=linear", "eval.extrapolation.rope_scalings=[plain]"]
    config = load([*words, "+stages.long={max_steps: 300, position: {rope_scaling: {factor: 4}}}"]).config
    assert [variant.problem for variant in variants(config, after_training(config)).values()] == ["", ""]
