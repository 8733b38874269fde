"""The learning rate of a step and AdamW's groups, by hand."""

import pytest
import torch

from coca_train.engine.optim import ADAM, build_optimizer, lr_at
from coca_train.settings import load

ROUNDED = 1e-12


def test_the_rates_of_the_coca_paper():
    """4.3: from 1e-7 over 1 % of the steps to 1e-4, and down a line to 1e-5."""
    config = load(["+experiment=coca_350m"]).config
    n_steps = config.train.max_steps

    def rate(step: int) -> float:
        return lr_at(step, config.optim, n_steps)

    assert n_steps == 763_000
    assert rate(0) == 1e-7
    assert rate(3815) == pytest.approx((1e-7 + 1e-4) / 2, rel=ROUNDED)
    assert rate(7630) == 1e-4
    assert rate(n_steps - 1) == pytest.approx(1e-5, rel=ROUNDED)
    assert rate((7630 + n_steps - 1) // 2) == pytest.approx(5.5e-5, rel=1e-5)
    assert rate(7630) - rate(7631) == pytest.approx(9e-5 / (n_steps - 1 - 7630), rel=1e-6)


def test_the_rates_of_the_yarn_paper():
    """4.1: 20 steps up a line, to 2e-5."""
    config = load(["+experiment=yarn_llama2_7b_64k"], launch=False).config
    rates = [lr_at(step, config.optim, 400) for step in range(400)]
    assert rates[:20] == pytest.approx([2e-5 * step / 20 for step in range(20)], rel=ROUNDED)
    assert rates[20] == 2e-5


@pytest.mark.parametrize(("schedule", "middle"), [("constant", 0.4), ("linear", 0.25), ("cosine", 0.25)])
def test_schedules_by_hand(schedule, middle):
    """11 steps without warm-up from 0.4 to 0.1: step 5 is in the middle, step 2 a fifth of the way."""
    words = [f"optim.schedule={schedule}", "optim.lr=0.4", "optim.min_lr=0.1", "optim.warmup_steps=0"]
    optim = load(words).config.optim
    rates = [lr_at(step, optim, 11) for step in range(11)]
    assert rates[0] == pytest.approx(0.4, rel=ROUNDED)
    assert rates[5] == pytest.approx(middle, rel=ROUNDED)
    assert rates[10] == pytest.approx(0.4 if schedule == "constant" else 0.1, rel=ROUNDED)
    fifth = {"constant": 0.4, "linear": 0.34, "cosine": 0.1 + 0.15 * (1 + 0.8090169943749475)}
    assert rates[2] == pytest.approx(fifth[schedule], rel=ROUNDED)


# Constant and cooldown, 2405.18392 Eq. 1, with N = 100 (steps 0 to 100), N_decay = 20: by n, f(n, N, N_decay).
COOLDOWNS = {
    "linear": {80: 1.0, 85: 0.75, 90: 0.5, 96: 0.2, 100: 0.0},
    "sqrt": {80: 1.0, 85: 0.5, 90: 0.2928932188134524, 96: 0.10557280900008414, 100: 0.0},
}


@pytest.mark.parametrize("shape", list(COOLDOWNS))
def test_warmup_stable_decay_by_hand(shape):
    """MiniCPM's three parts (2404.06395): s/W of the rate, the rate, f of it; here f ends at min_lr."""
    words = ["optim.schedule=wsd", "optim.lr=0.5", "optim.warmup_steps=10", "optim.warmup_init_lr=0"]
    words += ["optim.cooldown=0.2", f"optim.cooldown_shape={shape}"]
    optim = load([*words, "optim.min_lr=0"]).config.optim
    assert [lr_at(step, optim, 101) for step in (0, 1, 5)] == pytest.approx([0, 0.05, 0.25], rel=ROUNDED)
    assert {lr_at(step, optim, 101) for step in range(10, 81)} == {0.5}
    for step, part in COOLDOWNS[shape].items():
        assert lr_at(step, optim, 101) == pytest.approx(0.5 * part, rel=ROUNDED, abs=1e-16)
    above = load([*words, "optim.min_lr=0.1"]).config.optim
    for step, part in COOLDOWNS[shape].items():
        assert lr_at(step, above, 101) == pytest.approx(0.1 + 0.4 * part, rel=ROUNDED)


def test_a_longer_run_stays_at_the_rate():
    """What the schedule is for: the steps before the cooldown are the same whatever the length of the run."""
    optim = load(["optim.schedule=wsd", "optim.cooldown=0.25"]).config.optim
    short, long = ([lr_at(step, optim, length) for step in range(74)] for length in (100, 1000))
    assert short == long


def test_a_step_of_adamw_by_hand():
    """Decay is apart from the gradient (1711.05101): p - lr·wd·p - lr·g/(|g| + eps) in the first step; vectors do
    not decay."""
    words = ["optim.lr=0.01", "optim.min_lr=0", "optim.weight_decay=0.1", "optim.betas=[0.9,0.95]"]
    optim = load(words).config.optim
    matrix, vector = (torch.nn.Parameter(torch.full(shape, 2.0)) for shape in ((1, 1), (1,)))
    optimizer = build_optimizer([("a", matrix), ("b", vector)], optim, {"a": ADAM, "b": ADAM})
    for gradient in (4.0, -1.0):
        matrix.grad, vector.grad = torch.full((1, 1), gradient), torch.full((1,), gradient)
        optimizer.step()
    moment, square = (0.9 * 0.1 * 4 - 0.1 * 1) / (1 - 0.9**2), (0.95 * 0.05 * 16 + 0.05 * 1) / (1 - 0.95**2)
    second = 0.01 * moment / square**0.5
    first = 2.0 * (1 - 0.01 * 0.1) - 0.01
    assert matrix.item() == pytest.approx(first * (1 - 0.01 * 0.1) - second, rel=1e-6)
    assert vector.item() == pytest.approx(2.0 - 0.01 - second, rel=1e-6)
