"""Powers of the frequencies, and one of them by hand."""

import pytest

from coca_train.positions import ROPE_SCALINGS
from coca_train.testing.rope_scaling import RopeScalingContract


class TestContract(RopeScalingContract):
    rope_scaling = "powered"
    cases = ({"theta": 100.0, "power": 0.5},)

    def spectrum(self, settings, rotary_dim, length):
        theta, power = settings["theta"], settings["power"]
        return [theta ** (-2 * j * power / rotary_dim) for j in range(rotary_dim // 2)], 1.0


def test_the_second_pair_of_four():
    typed = ROPE_SCALINGS.settings({"name": "powered", "theta": 10000.0, "power": 2.0})
    assert typed.build(8)(1).inv_freq_J[1].item() == pytest.approx(0.01)
