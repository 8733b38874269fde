"""Learning rates of the recipes against the schedules that their authors took from transformers."""

import pytest
import torch

from coca_train.engine.optim import lr_at
from coca_train.settings import load
from coca_train.stages import resolve

transformers = pytest.importorskip("transformers")
LINEAR, CONSTANT = "get_linear_schedule_with_warmup", "get_constant_schedule_with_warmup"
# In finetune.py and train.sh of YaRN's authors: the schedule, its peak, and the steps of each of its launches.
YARN = {
    "yarn_llama2_7b_64k": (LINEAR, 2e-5, [400]),
    "yarn_llama2_7b_128k": (LINEAR, 2e-5, [400, 200]),
    "yarn_llama2_13b_128k": (LINEAR, 2e-5, [400, 200]),
    "pi_llama2_7b_8k": (LINEAR, 2e-5, [400]),
    "ntk_llama2_7b_8k": (LINEAR, 2e-5, [400]),
    "yarn_llama2_7b_8k": (LINEAR, 2e-5, [400]),
    "yarn_mistral_7b_128k": (CONSTANT, 1e-6, [1000, 500]),
}


def theirs(schedule: str, peak: float, n_steps: int) -> list[float]:
    """The rate of every step, by transformers; a warm-up of 20."""
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=peak)
    length = {"num_training_steps": n_steps} if schedule == LINEAR else {}
    scheduler = getattr(transformers, schedule)(optimizer, num_warmup_steps=20, **length)
    rates = []
    for _ in range(n_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("recipe", YARN)
def test_every_stage_of_yarn_is_trained_by_the_same_procedure(recipe: str) -> None:
    schedule, peak, lengths = YARN[recipe]
    stages = resolve(load([f"+experiment={recipe}"], launch=False).config)
    assert [stage.max_steps for stage in stages] == lengths
    for stage in stages:
        ours = [lr_at(step, stage.config.optim, stage.max_steps) for step in range(stage.max_steps)]
        # Theirs is one step short of 0 at the last one, ours is 0.
        bound = peak / (stage.max_steps - 20) if schedule == LINEAR else 0.0
        assert ours == pytest.approx(theirs(schedule, peak, stage.max_steps), abs=1.01 * bound, rel=1e-9)
        assert (stage.config.optim.betas, stage.config.optim.weight_decay) == ((0.9, 0.95), 0.0)
        assert stage.config.train.global_batch_size == 64


@pytest.mark.parametrize("recipe", ["pi_llama_7b_32k", "coca_pi_llama_7b_32k"])
def test_position_interpolation_warms_up_from_a_tenth(recipe: str) -> None:
    """Chen et al., arXiv 2306.15595, section 3.1; constant from there on (CoCA paper, appendix on PI)."""
    optim = load([f"+experiment={recipe}"], launch=False).config.optim
    assert lr_at(0, optim, 6000) == pytest.approx(2e-6)
    assert lr_at(10, optim, 6000) == pytest.approx(1.1e-5)
    assert [lr_at(step, optim, 6000) for step in (20, 3000, 5999)] == [2e-5] * 3
