"""p-RoPE: which pairs turn, and that the others carry content alone."""

import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.positions import rope_scaling
from coca_train.settings import load
from coca_train.testing import parts
from tests.positions import support


def spectrum(share, rotary_dim, theta=10000.0):
    typed = rope_scaling.settings_class("partial")(name="partial", theta=theta, share=share)
    return typed.build(rotary_dim)(1)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("share", [1.0, 0.75, 0.3, 0.25])
def test_equals_transformers(share, dim):
    """There it is "proportional", of the whole head."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "proportional", "rope_theta": 500000.0, "partial_rotary_factor": share}
    config = transformers.LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, rope_parameters=rope)
    peer, temperature = ROPE_INIT_FUNCTIONS["proportional"](config, torch.device("cpu"))
    ours = spectrum(share, dim, 500000.0)
    assert torch.allclose(ours.inv_freq_J, peer, rtol=1e-6, atol=0)
    assert ours.temperature == temperature == 1.0


def test_the_fast_pairs_turn_as_ever_and_the_slow_ones_not_at_all():
    partial, plain = spectrum(0.75, 16).inv_freq_J, spectrum(1.0, 16).inv_freq_J
    assert torch.equal(partial[:6], plain[:6])
    assert partial[6:].tolist() == [0.0, 0.0]


def test_what_does_not_turn_is_matched_at_any_distance():
    """A key whose slow pairs alone answer the query: the same score near and far, also where angles would be large."""
    settings = support.rope({"name": "partial", "theta": 100.0, "share": 0.5})
    scheme = parts.build(settings, 2, 1)
    slow = torch.zeros(16, dtype=torch.float64)
    slow[4:8] = slow[12:16] = 1.0
    q, k = slow.expand(1, 1, 2, 16), slow.expand(1, 3, 1, 16)
    scores = parts.dense_scores(scheme, q, k, torch.tensor([[90_000]]), torch.tensor([[0, 12_345, 90_000]]), 90_001)
    assert (scores == 8 / 4).all()


def test_a_share_of_no_pair_is_refused():
    with pytest.raises(ConfigError, match=r"share.*a share of 0\.01 of 16 pairs is less than one pair"):
        load(["position=rope", "position/rope_scaling=partial", "position.rope_scaling.share=0.01"])
