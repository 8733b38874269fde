"""Scalings that look at wavelengths: clipped, HoPE, resonance."""

import math

import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.positions import rope_scaling, rotary
from coca_train.settings import load
from coca_train.testing import parts
from coca_train.testing.rope_scaling import RopeScalingContract
from tests.golden.methods import case
from tests.positions import support


def plain(settings, rotary_dim):
    return [settings["theta"] ** (-2 * j / rotary_dim) for j in range(rotary_dim // 2)]


class TestClipped(RopeScalingContract):
    """The slowest pairs fade along half a cosine."""

    rope_scaling = "clipped"
    cases = (support.scaling("clipped"), {"theta": 500000.0, "share": 1.0})

    def spectrum(self, settings, rotary_dim, length):
        theta = plain(settings, rotary_dim)
        n = round(settings["share"] * len(theta))
        for i in range(n):
            theta[len(theta) - n + i] *= (1 + math.cos(math.pi * i / (n - 1))) / 2 if i < n - 1 else 0.0
        return theta, 1.0


class TestHope(RopeScalingContract):
    """Only what turns within the window turns."""

    rope_scaling = "hope"
    cases = (support.scaling("hope"), {"theta": 10000.0, "original_seq_len": 512})

    def spectrum(self, settings, rotary_dim, length):
        trained = settings["original_seq_len"]
        return [theta if 2 * math.pi / theta < trained else 0.0 for theta in plain(settings, rotary_dim)], 1.0


class TestResonance(RopeScalingContract):
    """Whole wavelengths, of RoPE and of YaRN."""

    rope_scaling = "resonance"
    cases = (support.scaling("resonance"), support.scaling("resonance", "code", factor=1.0))

    def spectrum(self, settings, rotary_dim, length):
        yarn = rope_scaling.settings_class("yarn")(**{**settings, "name": "yarn"})
        waves = 2 * math.pi / rope_scaling.by_parts(yarn, settings["factor"], rotary_dim)
        return [2 * math.pi / round(wave) for wave in waves.tolist()], 0.1 * math.log(settings["factor"]) + 1


class TestLearned(RopeScalingContract):
    """RoPE's, each times a factor of its own."""

    rope_scaling = "learned"
    cases = ({"theta": 100.0},)

    def spectrum(self, settings, rotary_dim, length):
        factors = self._build(settings, rotary_dim).u.exp().tolist()
        return [theta * factor for theta, factor in zip(plain(settings, rotary_dim), factors, strict=True)], 1.0


def test_learned_frequencies_start_as_ropes_and_have_a_gradient():
    scheme = parts.build(support.rope({"name": "learned", "theta": 100.0}), 1, 1, 8)
    torch.nn.init.zeros_(scheme.rope_scaling.u)
    plain_scheme = parts.build(support.rope({"name": "plain", "theta": 100.0}), 1, 1, 8)
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, 9))
    scores = [parts.dense_scores(each, q, k, parts.start(9), parts.start(9), 9) for each in (scheme, plain_scheme)]
    assert torch.equal(*scores)
    scores[0].square().sum().backward()
    assert (scheme.rope_scaling.u.grad != 0).all()


RAMP = {"beta_fast": 32.0, "beta_slow": 1.0, "convention": "code"}
GOLDEN = {
    "clipped_rope": lambda i: {"name": "clipped", "share": i["n"] / (i["D"] // 2)},
    "clipped_rope_small": lambda i: {"name": "clipped", "share": i["n"] / (i["D"] // 2)},
    "hope": lambda i: {"name": "hope", "original_seq_len": i["window"]},
    "hope_128": lambda i: {"name": "hope", "original_seq_len": i["window"]},
    "resonance": lambda i: {"name": "resonance", "factor": 1.0, "original_seq_len": 2048, **RAMP},
    "resonance_yarn": lambda i: {"name": "resonance", "factor": i["factor"], "original_seq_len": i["original"], **RAMP},
}


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_from_outside(name):
    inputs, expected = case(name)
    settings = {"theta": float(inputs["base"]), **GOLDEN[name](inputs)}
    spectrum = rope_scaling.settings_class(settings["name"])(**settings).build(inputs["D"])(1)
    exact = torch.tensor(expected["inv_freq_J"], dtype=torch.float64)
    assert ((spectrum.inv_freq_J.double() - exact).abs() <= exact * 2**-24 * 1.001).all()
    assert spectrum.temperature == pytest.approx(expected.get("temperature", 1.0), rel=1e-14)
    if "wavelength_J" in expected:
        assert spectrum.period_J.tolist() == expected["wavelength_J"]


def test_positions_a_wavelength_apart_have_one_angle_far_out():
    spectrum = rope_scaling.settings_class("resonance")(**support.scaling("resonance")).build(16)(1)
    for j, period in enumerate(spectrum.period_J.tolist()):
        positions = torch.tensor([[7, 7 + period, 7 + period * (10**7 // period)]])
        near, next_, far = rotary.angles(positions, spectrum)[0, :, j]
        assert near == next_ == far


@pytest.mark.parametrize(
    ("name", "word"), [("clipped", "share=0.01"), ("hope", "original_seq_len=6")], ids=["clipped", "hope"]
)
def test_where_nothing_would_change_or_turn(name, word):
    with pytest.raises(ConfigError, match="nothing would"):
        load(["position=rope", f"position/rope_scaling={name}", f"position.rope_scaling.{word}"])
