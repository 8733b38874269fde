"""FIRE: a function of interpolated distances, against numbers in 40 digits and the dense reference."""

import mpmath
import pytest
import torch

from coca_train.positions import initials
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise

FIRE = {"scheme": "fire", "mlp_width": 5, "threshold": 60.0}
PAPER = {"scheme": "fire", "mlp_width": 32, "threshold": 512.0}


class TestContract(SchemeContract):
    scheme = "fire"
    cases = ({"mlp_width": 5, "threshold": 25.0},)
    own = {f"function.{name}": (5,) if name in ("w1", "b1") else (1,) for name in ("c", "a", "w1", "b1")}
    own |= {"function.w2": (4, 5)}
    rounding = 1e-3  # c is one number, whose gradient is a sum over all pairs that mostly cancel

    def score(self, problem):
        """f(ψ(m - n) / ψ(max(L, m))), one hidden unit of f after the other."""
        return problem.content_BHTS + pairwise.fire_bias(problem, problem.settings["threshold"], "function")


def bias(settings, m, n, layer=None):
    """What is added for a query at m and a key at n, by head."""
    scheme = parts.build(settings)
    q, k = torch.zeros(1, 1, 4, 16, dtype=torch.float64), torch.zeros(1, 1, 2, 16, dtype=torch.float64)
    places = torch.tensor([[m]]), torch.tensor([[n]])
    return parts.dense_scores(scheme, q, k, *places, m + 1, layer)[0, :, 0, 0]


@pytest.mark.parametrize(("m", "n"), [(0, 0), (3, 1), (511, 0), (512, 17), (40_000, 39_999), (100_000, 3)])
def test_equals_mpmath(m, n):
    """f(log(|c·r| + 1) / (log(|c·max(L, m)| + 1) + 1e-6)) with L = |a·512|."""
    layer = parts.layer_of(parts.build(PAPER))
    p = {name: x.flatten().tolist() for name, x in layer.function.named_parameters()}
    bias_H = bias(PAPER, m, n, layer)
    with mpmath.workdps(40):
        c, a = mpmath.mpf(p["c"][0]), mpmath.mpf(p["a"][0])
        share = mpmath.log(abs(c * (m - n)) + 1) / (mpmath.log(abs(c * max(abs(a * 512), m)) + 1) + mpmath.mpf("1e-6"))
        for head in range(4):
            units = zip(p["w1"], p["b1"], p["w2"][32 * head : 32 * head + 32], strict=True)
            exact = sum(out * max(0, weight * share + shift) for weight, shift, out in units)
            assert bias_H[head].item() == pytest.approx(float(exact), rel=1e-12, abs=1e-13)


def test_relative_up_to_the_threshold_and_no_further():
    layer = parts.layer_of(parts.build(PAPER))
    layer.function.a.data.fill_(1.0)
    assert torch.equal(bias(PAPER, 100, 90, layer), bias(PAPER, 512, 502, layer))
    assert not torch.allclose(bias(PAPER, 512, 502, layer), bias(PAPER, 900, 890, layer), rtol=0, atol=1e-3)


def test_any_length_is_mapped_to_the_same_shares():
    """The farthest key of any text beyond L stands at 1, so no new numbers come up in longer texts."""
    layer = parts.layer_of(parts.build(PAPER))
    ends = [bias(PAPER, m, 0, layer) for m in (1000, 30_000, 10**6)]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-4, atol=1e-6)


def test_starts_as_published():
    start = initials(parts.build(PAPER).settings)
    weights = {name: torch.empty(shape) for name, shape in {"c": 1, "a": 1, "w1": 900, "b1": 900}.items()}
    weights["w2"] = torch.empty(100, 32)
    for name, tensor in weights.items():
        start[name](tensor, torch.Generator().manual_seed(0))
    assert (weights["c"].item(), weights["a"].item()) == (pytest.approx(0.1), 1.0)
    for name, bound in {"w1": 1.0, "b1": 1.0, "w2": 32**-0.5}.items():
        assert 0.95 * bound < weights[name].abs().max() <= bound
        assert abs(weights[name].mean()) < 0.1 * bound
