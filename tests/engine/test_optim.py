"""The learning rate of a step and AdamW's groups, by hand."""

import pytest
import torch

from coca_train.engine.optim import adamw, lr_at
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
    config = load(["+experiment=yarn_llama2_7b_64k"]).config
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


def test_a_step_of_adamw_by_hand():
    """Decay is apart from the gradient (1711.05101): p - lr·wd·p - lr·g/(|g| + eps) in the first step; vectors do
    not decay."""
    words = ["optim.lr=0.01", "optim.min_lr=0", "optim.weight_decay=0.1", "optim.betas=[0.9,0.95]"]
    optim = load(words).config.optim
    matrix, vector = (torch.nn.Parameter(torch.full(shape, 2.0)) for shape in ((1, 1), (1,)))
    optimizer = adamw(iter([("a", matrix), ("b", vector)]), optim)
    for gradient in (4.0, -1.0):
        matrix.grad, vector.grad = torch.full((1, 1), gradient), torch.full((1,), gradient)
        optimizer.step()
    moment, square = (0.9 * 0.1 * 4 - 0.1 * 1) / (1 - 0.9**2), (0.95 * 0.05 * 16 + 0.05 * 1) / (1 - 0.95**2)
    second = 0.01 * moment / square**0.5
    first = 2.0 * (1 - 0.01 * 0.1) - 0.01
    assert matrix.item() == pytest.approx(first * (1 - 0.01 * 0.1) - second, rel=1e-6)
    assert vector.item() == pytest.approx(2.0 - 0.01 - second, rel=1e-6)
