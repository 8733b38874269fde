"""LongRoPE: a list of factors up to the original length and one beyond, against transformers; lists of the wrong length
are refused before anything starts."""

import math

import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.positions import rope_scaling
from coca_train.settings import load

SHORT = [1.0 + j / 50 for j in range(24)]
LONG = [1.0 + j**1.5 for j in range(24)]


def settings(**changes):
    fields = {"theta": 10000.0, "factor": 8.0, "original_seq_len": 512, "short_factor": SHORT, "long_factor": LONG}
    fields["temperature"] = None
    return rope_scaling.settings_class("longrope")(name="longrope", **(fields | changes))


@pytest.mark.parametrize("length", [1, 512, 513, 4096])
@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
def test_equals_transformers(length, factor):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.Phi3Config(
        hidden_size=4 * 48,
        num_attention_heads=4,
        max_position_embeddings=int(512 * factor),
        original_max_position_embeddings=512,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": SHORT,
            "long_factor": LONG,
            "original_max_position_embeddings": 512,
        },
    )
    peer, temperature = ROPE_INIT_FUNCTIONS["longrope"](config, torch.device("cpu"), seq_len=length)
    spectrum = settings(factor=factor).build(48)(length)
    assert torch.allclose(spectrum.inv_freq_J, peer, rtol=1e-6, atol=0)
    assert spectrum.temperature == pytest.approx(temperature)


def test_by_hand():
    """θ_j = 10000^(-j/24) over the factor of the pair; sqrt(1 + ln 8 / ln 512) = sqrt(4/3)."""
    for length, factors in ((512, SHORT), (513, LONG)):
        spectrum = settings().build(48)(length)
        exact = torch.tensor([10000.0 ** (-j / 24) / f for j, f in enumerate(factors)], dtype=torch.float64)
        assert torch.allclose(spectrum.inv_freq_J.double(), exact, rtol=1e-7, atol=0)
        assert spectrum.temperature == pytest.approx(math.sqrt(4 / 3))


def test_no_lists_are_no_change_and_plain_interpolation():
    bare = settings(short_factor=None, long_factor=None).build(48)
    plain, linear = (rope_scaling.settings_class(name) for name in ("plain", "linear"))
    for length, other in (
        (512, plain(name="plain", theta=10000.0)),
        (513, linear(name="linear", theta=10000.0, factor=8.0)),
    ):
        assert torch.equal(bare(length).inv_freq_J, other.build(48)(length).inv_freq_J)


@pytest.mark.parametrize("scheme", ["rope", "xpos", "coca"])
@pytest.mark.parametrize("name", ["short_factor", "long_factor"])
def test_a_list_of_the_wrong_length_is_refused_when_the_config_is_read(scheme, name):
    """Both lengths are named, and where it was set."""
    words = [f"position={scheme}", "position/rope_scaling=longrope", "model.d_model=256", "model.n_heads=8"]
    ones = "[" + ",".join(["1.0"] * 15) + "]"
    with pytest.raises(ConfigError) as error:
        load([*words, f"position.rope_scaling.{name}={ones}"])
    assert f"position.rope_scaling.{name}" in str(error.value)
    assert "15 factors for 16 pairs" in str(error.value)
    load([*words, f"position.rope_scaling.{name}={ones[:-1]},1.0]"])


def test_partial_rotation_needs_shorter_lists():
    words = ["position=rope", "position/rope_scaling=longrope", "model.d_model=256", "model.n_heads=8"]
    four = "position.rope_scaling.long_factor=[1.0,2.0,3.0,4.0]"
    load([*words, "position.rotary_pct=0.25", four])
    with pytest.raises(ConfigError, match="4 factors for 16 pairs"):
        load([*words, four])


@pytest.mark.parametrize("value", ["[0.0]", "[-1.0]", "[a]", "3.0"])
def test_factors_are_numbers_above_zero(value):
    with pytest.raises(ConfigError, match="short_factor"):
        load(["position=rope", "position/rope_scaling=longrope", f"position.rope_scaling.short_factor={value}"])
