"""Sequences too long for one GPU: a plan names the change, and the recipe of docs/plan.md fits with room to spare."""

import pytest

from coca_train.planning.cost import Cluster, plan_stage, typed
from coca_train.planning.hardware import find_gpu
from coca_train.planning.outline import outline
from coca_train.settings import load
from coca_train.stages import Stage, resolve

A100 = find_gpu("a100_80gb")
LONG = ("+experiment=yarn_llama2_7b_64k", "position.rope_scaling.factor=32", "train.seq_len=131072",
        "engine.activation_checkpointing=full")  # fmt: skip


def stage_of(*words: str) -> Stage:
    return resolve(load([*LONG, *words, "model.vocab_size=32000"], launch=False).config)[0]


@pytest.mark.slow
@pytest.mark.parametrize("n_gpus", [8, 32])
def test_7b_at_128k_fits_with_a_tenth_to_spare(n_gpus: int) -> None:
    stage = stage_of("engine.sequence_parallel=4")
    planned = plan_stage(stage, outline(stage.config, stage.trainable), Cluster(n_gpus, A100, 0.4))
    needed = planned.memory[stage.config.engine.activation_checkpointing]
    print({phase: f"{n / 2**30:.1f}" for phase, n in needed.phases.items()}, f"report {needed.report / 2**30:.1f} GiB")
    assert planned.fits and max(needed.total, needed.report) < 0.9 * A100.usable


@pytest.mark.slow
def test_a_plan_says_when_it_is_needed() -> None:
    """Alone a sequence leaves no tenth of 80 GB, and does not fit into 40."""
    alone = stage_of("engine.sequence_parallel=1")
    planned = plan_stage(alone, outline(alone.config, alone.trainable), Cluster(8, find_gpu("a100_40gb"), 0.4))
    assert planned.memory["full"].total > 0.9 * A100.usable
    assert not planned.fits and planned.change is not None
    assert typed(planned.change) == "engine.sequence_parallel=4"
