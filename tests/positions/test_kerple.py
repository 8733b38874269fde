"""KERPLE, both forms: values and gradients worked by hand, and what happens at the bounds."""

import math

import pytest
import torch

from coca_train import positions
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise

BOTH = ["kerple_log", "kerple_power"]


class TestLog(SchemeContract):
    scheme = "kerple_log"
    cases = ({"shared": True}, {"shared": False})
    shared = {"r1": (4,), "r2": (4,)}
    positive = ("r1", "r2")  # inside their bounds, where gradients of views simply add up; the bounds: below

    def score(self, problem):
        return problem.content_BHTS + pairwise.kerple_log_bias(problem)


class TestPower(TestLog):
    scheme = "kerple_power"

    def score(self, problem):
        r1, r2 = (pairwise.by_head_of(problem.parameters[name]) for name in ("r1", "r2"))
        r = problem.distance_BTS[:, None]
        grown = torch.exp(r2.clamp(max=2.0) * torch.log(r.clamp(min=1).double()))
        return problem.content_BHTS - r1 * torch.where(r > 0, grown, 0.0)


def table(name, r1, r2, n_rows=6, dtype=torch.float64):
    """(the table over distances of one layer with these parameters, the layer); one head per entry."""
    scheme = parts.build({"scheme": name, "shared": False}, len(r1), 1)
    layer = parts.layer_of(scheme).to(dtype)
    layer.r1.data.copy_(torch.tensor(r1, dtype=torch.float64))
    layer.r2.data.copy_(torch.tensor(r2, dtype=torch.float64))
    q, k, _ = parts.random_qkv(scheme, n_rows)
    pos = parts.start(n_rows, 1000)
    return parts.mapped(scheme, q, k, pos, pos, n_rows, layer).terms.distance_HR, layer


def by_hand(name, a, b, r):
    """b(r), ∂b/∂r1, ∂b/∂r2."""
    if name == "kerple_log":
        return -a * math.log(1 + b * r), -math.log(1 + b * r), -a * r / (1 + b * r)
    power = r**b
    return -a * power, -power, -a * power * math.log(r) if r else 0.0


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("row", [0, 1, 5])
def test_values_and_gradients_worked_by_hand(name, row):
    """At r = 0 both are 0 and finite: 0^r2 has the gradient 0, not 0 · log 0."""
    r1, r2 = [0.3, 1.7], [0.9, 1.9]
    bias_HR, layer = table(name, r1, r2)
    assert bias_HR.shape == (2, 6)
    grads = torch.autograd.grad(bias_HR[:, row].sum(), [layer.r1, layer.r2])
    for h in range(2):
        exact = by_hand(name, r1[h], r2[h], row)
        for mine, number in zip((bias_HR[h, row], grads[0][h], grads[1][h]), exact, strict=True):
            assert mine.item() == pytest.approx(number, rel=1e-12, abs=1e-15)


def test_power_two_and_one_are_squares_and_alibi():
    bias_HR, _ = table("kerple_power", [0.5, 0.25], [2.0, 1.0])
    assert bias_HR.tolist() == [[0, -0.5, -2, -4.5, -8, -12.5], [0, -0.25, -0.5, -0.75, -1, -1.25]]


@pytest.mark.parametrize(("name", "high"), [("kerple_log", math.inf), ("kerple_power", 2.0)], ids=BOTH)
def test_values_are_held_within_their_bounds(name, high):
    bias_HR, _ = table(name, [-1.0, 0.001, 5.0], [-3.0, 7.0, 0.5])
    for h, (a, b) in enumerate([(0.01, 0.01), (0.01, min(7.0, high)), (5.0, 0.5)]):
        assert bias_HR[h].tolist() == pytest.approx([by_hand(name, a, b, r)[0] for r in range(6)], rel=1e-12)


@pytest.mark.parametrize("name", BOTH)
def test_beyond_a_bound_the_gradient_is_that_of_the_bound_and_leads_only_back(name):
    """Descent on +b(3) makes r1 grow, back from -1; descent on -b(3) would take it further out."""
    exact = by_hand(name, 0.01, 0.01, 3)
    for sign, expected in ((1, exact), (-1, (None, 0.0, 0.0))):
        bias_HR, layer = table(name, [-1.0], [-1.0])
        grads = torch.autograd.grad(sign * bias_HR[0, 3], [layer.r1, layer.r2])
        assert [g.item() for g in grads] == pytest.approx(list(expected[1:]), rel=1e-12)


def test_the_upper_bound_of_the_power_leads_back_too():
    for sign in (1, -1):
        bias_HR, layer = table("kerple_power", [1.0], [2.5])
        (grad,) = torch.autograd.grad(sign * bias_HR[0, 3], layer.r2)
        assert grad.item() == pytest.approx(0.0 if sign == 1 else 9 * math.log(3), rel=1e-12)


@pytest.mark.parametrize("name", BOTH)
def test_a_parameter_outside_its_bound_can_be_trained_back(name):
    """With a bare clamp it would stay where it is for ever."""
    _, layer = table(name, [-0.05], [0.5])
    scheme = parts.build({"scheme": name, "shared": False}, 1, 1)
    q, k, _ = parts.random_qkv(scheme, 6)
    pos, optimizer = parts.start(6), torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        bias = parts.mapped(scheme, q, k, pos, pos, 6, layer).terms.distance_HR
        (bias[0, 5] + 1).square().backward()
        optimizer.step()
    assert layer.r1.item() > 0.1


@pytest.mark.parametrize("name", BOTH)
def test_parameters_start_as_the_paper_says(name):
    """As in their released code: uniform in (0, 2) the factor of the logarithm and the exponent of the power, in (0, 1)
    the factor inside the logarithm and that of the power."""
    initial = positions.scheme_class(name).INITIAL
    generator = torch.Generator().manual_seed(0)
    for parameter, high in zip(("r1", "r2"), (2.0, 1.0) if name == "kerple_log" else (1.0, 2.0), strict=True):
        values = torch.empty(4000)
        initial[parameter](values, generator)
        assert 0 <= values.min() < 0.01 < 0.99 * high < values.max() < high
        assert values.mean().item() == pytest.approx(high / 2, rel=0.05)


@pytest.mark.parametrize("name", BOTH)
def test_parameters_in_half_precision_give_a_table_in_float32(name):
    """512 distances differ; in bfloat16 there would be fewer than 300 values."""
    bias_HR, layer = table(name, [0.5], [0.5], 512, torch.bfloat16)
    assert bias_HR.dtype == torch.float32
    assert bias_HR.unique().numel() == 512
    bias_HR.sum().backward()
    assert layer.r1.grad.dtype == torch.bfloat16
