"""A training that is typed shorter keeps the shape of its schedule."""

import pytest

from coca_train.settings import load
from coca_train.stages import resolve


def warmups(*words):
    """Of each stage, with its length; and what is told."""
    loaded = load(list(words), launch=False)
    stages = {stage.name: (stage.config.optim.warmup_steps, stage.max_steps) for stage in resolve(loaded.config)}
    return stages, list(loaded.notes)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.max_steps=40"], (4, 40)),  # 40 x 40 / 380
        (["train={max_steps: 40}"], (4, 40)),
        (["optim=adamw_yarn", "train.max_steps=300"], (16, 300)),  # 20 x 300 / 380
        (["train.max_steps=1"], (0, 1)),
        (["stages.all.max_steps=60"], (6, 60)),
        (["+experiment=coca_350m", "train.max_steps=1000"], (10, 1000)),  # 1 %
    ],
)
def test_the_warm_up_shrinks_in_proportion_and_it_is_told_once(words, expected):
    stages, (note,) = warmups(*words)
    assert stages == {"all": expected}
    assert f" optim.warmup_steps={expected[0]}, not " in note  # of the run, where one is enough


@pytest.mark.parametrize(
    ("words", "warmup"),
    [
        (["train.max_steps=80", "optim.warmup_steps=40"], 40),
        (["train.max_steps=80", "optim={warmup_steps: 40}"], 40),
        (["train.max_steps=600"], 40),
        (["train.max_steps=6000"], 40),
        (["optim=adamw_finetune", "train.max_steps=60"], 0),
    ],
)
def test_what_is_typed_stays_and_longer_trainings_warm_up_as_long(words, warmup):
    stages, notes = warmups(*words)
    assert stages["all"][0] == warmup and notes == []


def test_stages_of_lengths_of_their_own_keep_their_warm_up():
    """Of stages/echoes.yaml only the last has the length of the run; the others share the run's warm-up."""
    stages, (note,) = warmups("+experiment=reach_coca", "train.max_steps=520")
    assert stages == {"near": (40, 400), "apart": (40, 800), "far": (2, 520)}
    assert "stages.far.optim.warmup_steps=2, not 20" in note
    stages, (note,) = warmups("+experiment=reach_coca", "stages.near.max_steps=100")
    assert stages == {"near": (10, 100), "apart": (40, 800), "far": (20, 5200)}
    stages, _ = warmups("+experiment=reach_coca", "stages.far.optim.warmup_steps=9", "train.max_steps=520")
    assert stages["far"] == (9, 520)
