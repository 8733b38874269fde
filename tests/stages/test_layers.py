"""Runs whose layers are of several kinds: killed and resumed, changed and refused, staged, started with."""

import pytest

from coca_train.runtime.errors import CheckpointError
from tests.stages.support import Runs, logged, schedule, stage, state

KINDS = "layers.types={local: {attention_pattern: {name: sliding_window, window: 5}}, nope: {position: {scheme: nope}}}"
LAYERS = ["model.n_layers=3", "layers.pattern=[default, local, nope]", KINDS, "model.qk_norm=head"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_killed_it_ends_the_same(runs: Runs, dtype: str) -> None:
    words = [*LAYERS, "train.max_steps=5", "checkpoint.save_every_steps=2"]
    whole = runs.train("whole", *words, dtype=dtype)
    runs.train("r", *words, dtype=dtype, crash_at=3)
    run = runs.train("r", *words, dtype=dtype)
    assert state(run, 5) == state(whole, 5)
    assert logged(run, "loss") == logged(whole, "loss")
    assert logged(run, "loss") != logged(runs.train("plain", *words[:1], *words[3:], dtype=dtype), "loss")


def test_what_a_kind_says_stays_as_it_was(runs: Runs) -> None:
    words = [*LAYERS, "checkpoint.save_every_steps=1"]
    runs.train("r", *words, crash_at=3)
    for change, phrase in (
        ("layers.pattern=[default, nope, local]", "layers.pattern"),
        ("layers.types.local.attention_pattern.window=6", "layers.types.local.attention_pattern.window 5 -> 6"),
        ("layers.types.nope.logit_scale={name: log}", "layers.types.nope.logit_scale.name None -> 'log'"),
        ("model.qk_norm=none", "model.qk_norm 'head' -> 'none'"),
    ):
        with pytest.raises(CheckpointError, match=f"E-CKP-24.*{phrase}"):
            runs.train("r", *words, change)
    gone = [
        word.replace("{local: {attention_pattern: {name: sliding_window, window: 5}}", "{local: {}") for word in words
    ]
    with pytest.raises(CheckpointError, match=r"layers.types.local.attention_pattern.name 'sliding_window' -> None"):
        runs.train("r", *gone)
    runs.train("r", *words)


def test_a_stage_widens_the_windows(runs: Runs) -> None:
    wide = stage("wide", "max_steps: 2, layers: {types: {local: {attention_pattern: {window: 20}}}}")
    run = runs.train("r", *LAYERS, *schedule(stage("short", "max_steps: 2"), wide))
    same = runs.train("same", *LAYERS, *schedule(stage("short", "max_steps: 2"), stage("wide", "max_steps: 2")))
    assert state(run, 2) == state(same, 2)
    assert state(run, 4).keys() == state(same, 4).keys()
    assert state(run, 4) != state(same, 4)
