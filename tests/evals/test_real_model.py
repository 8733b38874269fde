"""The report on a real model: what changes beyond the training window is the frequencies, and nothing else."""

import math

import numpy as np
import pytest
import torch

from coca_train.config.load import frequency_variants, load
from coca_train.evals.extrapolation import extrapolate
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer

WINDOW, VOCAB = 16, 50
SHAPE = ["model.n_layers=2", "model.d_model=32", "model.n_heads=2", "model.d_ff=64", "model.init_std=0.3"]


def measure(position):
    config = load([f"position={position}", f"train.seq_len={WINDOW}", *SHAPE]).config
    model = Transformer(config.model, config.position, vocab_size=VOCAB, max_seq_len=WINDOW)
    init_weights(model, config.model, seed=1)
    doc = np.random.default_rng(0).integers(0, VOCAB, 4 * WINDOW + 1)
    options = {"run": "r", "windows": (WINDOW, 4 * WINDOW), "training_window": WINDOW, "micro_batch_tokens": 64}
    return model, doc, extrapolate(model, {"text": [doc]}, frequency_variants(config), **options)


@pytest.mark.parametrize("position", ["rope", "coca", "coca_strict"])
def test_dynamic_ntk_acts_beyond_the_window_only(position):
    _, _, result = measure(position)
    plain, dynamic = ([result.cell("text", f, w).nll_sum for w in result.windows] for f in ("plain", "dynamic_ntk"))
    assert plain[0] == dynamic[0]
    assert abs(plain[1] - dynamic[1]) > 1e-2


@pytest.mark.parametrize("position", ["rope", "coca", "alibi"])
def test_plain_equals_the_model_s_own_loss(position):
    model, doc, result = measure(position)
    tokens = torch.from_numpy(doc)[None]
    with torch.no_grad():
        whole = float(model(tokens[:, :-1], tokens[:, 1:]))
        chunks = sum(
            float(model(tokens[:, a : a + WINDOW], tokens[:, a + 1 : a + WINDOW + 1])) for a in range(0, 64, 16)
        )
    assert math.isclose(result.cell("text", "plain", 4 * WINDOW).nll_sum, whole, rel_tol=1e-5)
    assert math.isclose(result.cell("text", "plain", WINDOW).nll_sum, chunks, rel_tol=1e-5)


def test_a_scheme_without_frequencies_has_one_column():
    assert measure("alibi")[2].frequencies == ("plain",)
