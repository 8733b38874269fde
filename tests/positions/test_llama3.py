"""Llama 3.1's scaling, and the override of the base: what they equal and what they keep."""

import math

import pytest
import torch
from pydantic import ValidationError

from coca_train.evaluation.variants import after_training, variants
from coca_train.positions import rope_scaling
from coca_train.settings import load
from coca_train.testing.rope_scaling import RopeScalingContract
from tests.positions import support

LLAMA_3_1 = {"theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


class TestContract(RopeScalingContract):
    """Waves longer than L/low are stretched, shorter than L/high kept, a ramp in L/wavelength between."""

    rope_scaling = "llama3"
    cases = (support.scaling("llama3"),)

    def spectrum(self, settings, rotary_dim, length):
        pairs = [settings["theta"] ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)]
        return [self.by_wavelength(settings, theta) for theta in pairs], 1.0

    @staticmethod
    def by_wavelength(p, theta):
        wavelength, trained = 2 * math.pi / theta, p["original_seq_len"]
        if wavelength > trained / p["low_freq_factor"]:
            return theta / p["factor"]
        if wavelength < trained / p["high_freq_factor"]:
            return theta
        smooth = (trained / wavelength - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
        return (1 - smooth) * theta / p["factor"] + smooth * theta


def spectrum(settings, rotary_dim, length=1):
    typed = rope_scaling.settings_class(settings["name"])(**settings)
    return typed.build(rotary_dim)(length)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(
    ("changes", "trained"),
    [({}, 8192), ({"factor": 32.0}, 8192), ({"low_freq_factor": 2.0, "high_freq_factor": 9.0}, 512), ({}, 64)],
    ids=["3.1", "3.2", "other factors", "short"],
)
def test_llama3_equals_transformers(dim, changes, trained):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = LLAMA_3_1 | changes
    theirs = {key: value for key, value in fields.items() if key != "theta"}
    config = transformers.LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": fields["theta"],
            "original_max_position_embeddings": trained,
            **theirs,
        },
    )
    peer, temperature = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    ours = spectrum({"name": "llama3", "original_seq_len": trained, **fields}, dim)
    # theirs is computed in float32; its ramp subtracts nearly equal numbers
    assert torch.allclose(ours.inv_freq_J, peer, rtol=4e-6, atol=0)
    assert ours.temperature == temperature == 1.0


def test_llama3_is_ntk_by_parts_under_other_names():
    """The paper's ramp with beta_slow = low, beta_fast = high; YaRN with them differs by its temperature alone."""
    ours = spectrum({"name": "llama3", "original_seq_len": 8192, **LLAMA_3_1}, 128)
    ramp = {"theta": 500000.0, "factor": 8.0, "original_seq_len": 8192, "beta_slow": 1.0, "beta_fast": 4.0}
    by_parts, yarn = (spectrum({"name": n, **ramp, "convention": "paper"}, 128) for n in ("ntk_by_parts", "yarn"))
    assert torch.equal(ours.inv_freq_J, by_parts.inv_freq_J)
    assert torch.equal(ours.inv_freq_J, yarn.inv_freq_J)
    assert ours.temperature == by_parts.temperature == 1.0 < yarn.temperature


def test_llama3_has_three_regions():
    """λ under L/high keeps θ, λ over L/low gets θ/factor, some pairs lie between; by hand from theta and L alone."""
    inv_freq_J = spectrum({"name": "llama3", "original_seq_len": 8192, **LLAMA_3_1}, 128).inv_freq_J.double()
    plain = torch.tensor([500000.0 ** (-j / 64) for j in range(64)], dtype=torch.float64)
    wavelength = 2 * torch.pi / plain
    kept, slow = wavelength < 8192 / 4, wavelength > 8192
    assert torch.allclose(inv_freq_J[kept], plain[kept], rtol=1e-7)
    assert torch.allclose(inv_freq_J[slow], plain[slow] / 8, rtol=1e-7)
    between = inv_freq_J[~kept & ~slow] / plain[~kept & ~slow]
    assert kept.any() and slow.any() and len(between) > 2
    assert (between < 1).all() and (between > 1 / 8).all() and (between.diff() < 0).all()


def test_a_ramp_without_width_is_refused_in_its_own_names():
    fields = {"name": "llama3", "original_seq_len": 8192, **LLAMA_3_1, "high_freq_factor": 1.0}
    with pytest.raises(ValidationError, match=r"high_freq_factor \(1.0\) must be greater than low_freq_factor \(1.0\)"):
        rope_scaling.settings_class("llama3")(**fields)


def test_shipped_values_are_those_of_llama_3_1_with_the_training_window():
    llama3 = load(["position=rope", "position/rope_scaling=llama3", "train.seq_len=8192"]).config.position.rope_scaling
    assert llama3 == rope_scaling.settings_class("llama3")(name="llama3", original_seq_len=8192, **LLAMA_3_1)


def test_code_llama_is_plain_with_the_base_of_its_paper():
    settings = load(["position=rope", "position/rope_scaling=code_llama"]).config.position.rope_scaling
    assert (settings.name, settings.theta) == ("plain", 1e6)
    exact = torch.tensor([1e6 ** (-j / 64) for j in range(64)], dtype=torch.float64)
    inv_freq = settings.build(128)(1).inv_freq_J.double()
    assert torch.allclose(inv_freq, exact, rtol=2**-24, atol=0)


def test_an_override_of_the_base_keeps_its_base_on_trained_weights():
    """Every other choice is given the base that the weights were trained with."""
    options = ["position=rope", "position.rope_scaling.theta=50000", "train.seq_len=64"]
    config = load([*options, "eval.extrapolation.rope_scalings=[code_llama,llama3,ntk]"]).config
    by_name = variants(config, after_training(config))
    bases = {name: variant.position.rope_scaling.theta for name, variant in by_name.items()}
    assert bases == {"plain": 50000, "code_llama": 1e6, "llama3": 50000, "ntk": 50000}
    assert by_name["llama3"].position.rope_scaling.original_seq_len == 64
    assert not any(variant.problem for variant in by_name.values())
