"""CLEX: learned dynamics of the frequencies. Numbers from a solver of the authors' equation as it stands."""

import math

import mpmath
import numpy as np
import pytest
import torch

from coca_train.positions import rope_scaling
from coca_train.positions.rope_scaling import clex
from coca_train.testing import parts
from tests.positions import learned_frequencies as learned
from tests.positions import support

LENGTH = parts.TRAINED


def started(rotary_dim=64, **changes):
    """A module as training starts it."""
    module = clex.Settings(**support.scaling("clex", **changes)).build(rotary_dim)
    for name, parameter in module.named_parameters():
        clex.Settings.INITIAL[name](parameter.data, torch.Generator().manual_seed(1))
    return module.eval()


def solved(module, factor):
    """θ of every pair at t = factor: dz/dt = SiLU((z + log θ_ntk(t)) W_up) W_down + ξ_t.

    By Runge and Kutta's classical rule in float64, in steps so small that half as many give the same.
    """
    dim, theta = module.rotary_dim, module.settings.theta
    up, down = (w.double().detach().numpy() for w in (module.up, learned.w_down(module)))
    j = np.arange(dim // 2)

    def log_ntk(t):
        return -2 * j / dim * math.log(theta * (2 * t - 1) ** (dim / (dim - 2)))

    def rate(t, z):
        seen = (z + log_ntk(t)) @ up
        return (seen / (1 + np.exp(-seen))) @ down - 4 * j / (dim - 2) / (2 * t - 1)

    def at_factor(n_steps):
        h, z = (factor - 1) / n_steps, log_ntk(1)
        for t in 1 + h * np.arange(n_steps):
            a = rate(t, z)
            b = rate(t + h / 2, z + h / 2 * a)
            c = rate(t + h / 2, z + h / 2 * b)
            z = z + h / 6 * (a + 2 * b + 2 * c + rate(t + h, z + h * c))
        return np.exp(z)

    inv_freq = at_factor(2000)
    assert np.allclose(inv_freq, at_factor(1000), rtol=1e-10, atol=0)
    return inv_freq.tolist()


@pytest.mark.parametrize(("factor", "seed"), [(2, 0), (4, 1)])
def test_frequencies_solve_the_equation(factor, seed):
    module = learned.build(rotary_dim=6, size=0.3, seed=seed, ode_step=0.05)
    exact = torch.tensor(solved(module, factor), dtype=torch.float64)
    spectrum = module(LENGTH * factor)
    assert spectrum.inv_freq_J.dtype == torch.float32
    assert torch.allclose(spectrum.inv_freq_J.double(), exact, rtol=1e-6, atol=0)
    ntk = _ntk(module, factor).build(6)(1).inv_freq_J
    assert (spectrum.inv_freq_J / ntk - 1).abs().max() > 0.1  # the learned part had its say
    assert (spectrum.temperature, spectrum.positions_N) == (1.0, None)


def _ntk(module, factor):
    fields = {"name": "ntk", "theta": module.settings.theta, "factor": 2.0 * factor - 1}
    return rope_scaling.settings_class("ntk")(**fields)


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_training_starts_as_ntk_aware_scaling_of_2t_minus_1(factor):
    """To the bit, and by mpmath: θ_j (2t - 1)^(-2j/(D-2))."""
    module = started()
    inv_freq_J = module(LENGTH * factor).inv_freq_J
    assert torch.equal(inv_freq_J, _ntk(module, factor).build(64)(1).inv_freq_J)
    with mpmath.workdps(40):
        exact = [
            float(mpmath.mpf(100) ** (-mpmath.mpf(j) / 32) * mpmath.mpf(2 * factor - 1) ** (-mpmath.mpf(2 * j) / 62))
            for j in range(32)
        ]
    assert torch.allclose(inv_freq_J.double(), torch.tensor(exact, dtype=torch.float64), rtol=2**-23, atol=0)


def test_start_of_the_weights():
    """W_down zero; W_up as nn.Linear's default, U(±1/√hidden); a function of the generator alone."""
    module = started(param_factor=2)
    assert (module.up.shape, module.down.shape) == ((32, 128), (128, 32))
    assert not module.down.any()
    assert 0.98 * 128**-0.5 < module.up.abs().max() <= 128**-0.5
    assert abs(module.up.mean()) < 0.1 * 128**-0.5
    assert torch.equal(module.up, started(param_factor=2).up)


def test_up_to_the_trained_length_it_is_plain_rope_to_the_bit():
    module, plain = learned.build(64), rope_scaling.settings_class("plain")(name="plain", theta=100.0)
    for length in (1, 7, LENGTH):
        assert torch.equal(module(length).inv_freq_J, plain.build(64)(length).inv_freq_J)


def test_the_factor_is_the_length_in_trained_windows_rounded_up():
    """t = ceil(l / L), at most max_factor (here 4)."""
    module = learned.build()
    at = {factor: module(LENGTH * factor).inv_freq_J for factor in (1, 2, 3, 4)}
    lengths = {1: 1, 16: 1, 17: 2, 32: 2, 33: 3, 48: 3, 49: 4, 64: 4, 65: 4, 10**6: 4}
    for length, factor in lengths.items():
        assert torch.equal(module(length).inv_freq_J, at[factor]), length
    assert len({tuple(x.tolist()) for x in at.values()}) == 4


def test_pairs_slow_down_steadily_at_the_start():
    module = started()
    steps = torch.stack([module(LENGTH * factor).inv_freq_J for factor in (1, 2, 3, 4)])
    assert (steps.diff(dim=0)[:, 1:] < 0).all()
    assert (steps[:, 0] == 1).all()


def test_shipped_step_integrates_to_float32():
    """At a head of 64, t = 16 and weights that change the frequencies by a factor of four."""
    coarse, fine = (
        learned.build(64, 0.01, max_factor=16, theta=10000.0, ode_step=step).departure(16.0) for step in (0.25, 0.01)
    )
    assert math.log(4) < fine.abs().max() < math.log(6)
    assert (coarse - fine).abs().max() < 4e-7


def test_the_right_gradient_of_the_dynamics():
    module = learned.build(rotary_dim=6, size=0.3, ode_step=0.5)
    assert torch.autograd.gradcheck(lambda *_: module.departure(3.0), (module.up, module.down))


def test_half_precision_weights_are_computed_with_in_float32():
    half = learned.build(16).bfloat16()
    wide = learned.build(16)
    for mine, other in ((wide.up, half.up), (wide.down, half.down)):
        mine.data.copy_(other.data)
    inv_freq_J, exact = half(4 * LENGTH).inv_freq_J, wide(4 * LENGTH).inv_freq_J
    assert inv_freq_J.dtype == torch.float32
    assert torch.allclose(inv_freq_J, exact, rtol=1e-5, atol=0)


def test_evaluation_is_pure_and_draws_nothing():
    module = learned.build()
    before, state = module(100), torch.get_rng_state()
    module(10**6)
    assert torch.equal(module(100).inv_freq_J, before.inv_freq_J)
    assert torch.equal(torch.get_rng_state(), state)


def drawn(module, length, seed):
    torch.manual_seed(seed)
    return module.train()(length)


def factor_of(module, spectrum):
    """Which t a spectrum belongs to."""
    module.eval()
    factors = [t for t in (1, 2, 3, 4) if torch.equal(module(LENGTH * t).inv_freq_J, spectrum.inv_freq_J)]
    assert len(factors) == 1
    return factors[0]


def test_training_draws_the_factor_and_spreads_the_positions():
    """T different increasing integers from 0 to t·T - 1, both included; every t from 1 to max_factor comes up."""
    module, seen = learned.build(), {}
    for seed in range(60):
        spectrum = drawn(module, LENGTH, seed)
        factor, places = factor_of(module, spectrum), spectrum.positions_N
        seen.setdefault(factor, set()).add(tuple(places.tolist()))
        assert places.dtype == torch.float32
        assert places.shape == (LENGTH,)
        assert (places.diff() >= 1).all() and torch.equal(places, places.round())
        assert (places[0], places[-1]) == (0, factor * LENGTH - 1)
    assert set(seen) == {1, 2, 3, 4}
    assert seen[1] == {tuple(range(LENGTH))}
    assert all(len(seen[factor]) > 5 for factor in (2, 3, 4))


def test_positions_are_drawn_evenly():
    places = torch.stack([clex.spread(64, 4) for _ in range(400)])
    assert abs(places[:, 1:-1].mean() - 127.5) < 2
    assert (places.mean(0) - torch.arange(64) * 255 / 63).abs().max() < 8


def test_longer_training_sequences_stay_within_the_factor():
    """Trained on 3 windows at once, positions still end below t·L, so at t = 1 they are interpolated."""
    module = learned.build()
    for seed in range(20):
        spectrum = drawn(module, 3 * LENGTH, seed)
        factor, places = factor_of(module, spectrum), spectrum.positions_N
        assert len(places) == 3 * LENGTH
        assert (places.diff() > 0.33).all()
        assert factor * LENGTH - 1 < places[-1] < factor * LENGTH


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_shortest_sequences(length):
    places = clex.spread(length, 5)
    assert len(places) == length
    assert places[0] == 0
    assert length == 1 or places[-1] == 5 * length - 1


def test_a_step_repeats_under_the_same_seed():
    module = learned.build()
    first, again, other = (drawn(module, LENGTH, seed) for seed in (3, 3, 4))
    assert torch.equal(first.inv_freq_J, again.inv_freq_J)
    assert torch.equal(first.positions_N, again.positions_N)
    assert not torch.equal(first.positions_N, other.positions_N)


def test_every_draw_gives_every_parameter_a_gradient():
    """Also t = 1, where it is zero: ranks that drew different t reduce the same set of gradients."""
    module, factors = learned.build(), set()
    for seed in range(20):
        spectrum = drawn(module, LENGTH, seed)
        grads = torch.autograd.grad(spectrum.inv_freq_J.sum(), list(module.parameters()))
        factors.add(factor := factor_of(module, spectrum))
        for grad in grads:
            assert torch.isfinite(grad).all()
            assert grad.any() == (factor > 1)
    assert 1 in factors and len(factors) > 1


@pytest.mark.parametrize("training", [False, True])
def test_texts_beyond_the_largest_factor_are_told_once(training, capsys):
    clex._warn_of_end.cache_clear()
    module = started(max_factor=2).train(training)
    module(2 * LENGTH)
    assert capsys.readouterr().err == ""
    ends = [module.eval()(length).inv_freq_J for length in (2 * LENGTH, 2 * LENGTH + 1, 9 * LENGTH)]
    module.train(training)(3 * LENGTH)
    err = capsys.readouterr().err
    assert err.count("WARNING: clex") == 1
    assert f"stay those of {2 * LENGTH}" in err
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
