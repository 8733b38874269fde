"""What a schedule does: what is trained and what is not, with which data, from which optimizer state."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from coca_train.checkpoint.opening import load_run
from coca_train.commands._training_step import show
from coca_train.data.mixture import Mixture
from coca_train.data.packing import Edges
from coca_train.engine.optim import lr_at
from coca_train.settings import load_saved
from coca_train.stages import resolve
from coca_train.training import stage as stage_run
from tests.cases import slow_unless
from tests.stages.support import Runs, logged, manifest, record, remove, saved, schedule, stage, state, steps, weights

K, QKV = "blocks.*.attention.k.*", "blocks.*.attention.[qkv].*"
THREE = schedule(
    stage("k", f"max_steps: 4, trainable: ['{K}']"),
    stage("qkv", f"max_steps: 3, trainable: ['{QKV}'], optim: {{lr: 0.02}}"),
    stage("all", "max_steps: 3, train: {seq_len: 48}, position: {rope_scaling: {name: linear, factor: 2}}"),
)


def matching(names: Any, *parts: str) -> set[str]:
    return {name for name in names if any(f".attention.{part}." in name for part in parts)}


@pytest.mark.parametrize("dtype", slow_unless(["bf16"], ["fp32", "bf16"]))
def test_what_is_not_trained_stays_to_the_bit(runs: Runs, dtype: str) -> None:
    run = runs.train("r", *THREE, dtype=dtype)
    first, second, third = (weights(run, step) for step in (4, 7, 10))
    halfway = weights(run, 9)
    assert {name for name in first if first[name] != second[name]} == matching(first, "q", "k", "v")
    assert {name for name in first if second[name] != third[name]} == set(first)
    assert {name for name in first if second[name] != halfway[name]} == set(first)
    begun = runs.train("other", *schedule(stage("k", f"max_steps: 1, trainable: ['{K}']")), dtype=dtype)
    initial = weights(begun, 1)
    assert {name for name in first if first[name] != initial[name]} == matching(first, "k")


def test_a_frozen_parameter_has_no_moments_and_no_gradient(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[set[str], set[str]]] = []

    def watch(*arguments: Any, **options: Any) -> None:
        engine = arguments[1]
        step = engine._optimizer.step

        def looking(*_: Any) -> None:
            with_gradient = {name for name, p in engine.model.named_parameters() if p.grad is not None}
            with_state = {name for name, p in engine._masters.items() if p in engine._optimizer.state}
            assert len(engine._optimizer.state) == len(with_state)
            seen.append((with_gradient, with_state))
            step()

        engine._optimizer.step = looking
        run_stage(*arguments, **options)

    run_stage = stage_run.run_stage
    monkeypatch.setattr(stage_run, "run_stage", watch)
    run = runs.train("r", *THREE)
    every = set(weights(run, 10))
    expected = [matching(every, "k")] * 4 + [matching(every, "q", "k", "v")] * 3 + [every] * 3
    assert seen == [(names, names) for names in expected]
    for step, names in ((4, expected[0]), (7, expected[4]), (10, every)):
        keys = {name for name in state(run, step) if not name.startswith("model/")}
        assert keys == {f"{part}/{name}" for name in names for part in ("exp_avg", "exp_avg_sq")}
        assert manifest(run, step)["trainable"] == sorted(names)


LONG = ["train.max_steps=6", "optim.lr=0.01"]
TWICE = schedule(stage("one"), stage("two", "max_steps: 3, optimizer: keep"))


def test_keep_goes_on_as_one_long_stage_and_fresh_does_not(runs: Runs) -> None:
    long = runs.train("long", *LONG)
    keep = runs.train("keep", *TWICE, "optim.lr=0.01")
    fresh = runs.train("fresh", *TWICE, "optim.lr=0.01", "stages.two.optimizer=fresh")
    assert state(keep, 6) == state(long, 6)
    assert manifest(keep, 6)["counters"] == manifest(long, 6)["counters"]
    for key in ("step", "loss", "grad_norm", "lr", "batch_digest"):
        assert logged(keep, key) == logged(long, key)
    assert logged(fresh, "batch_digest") == logged(long, "batch_digest")
    assert weights(fresh, 6) != weights(long, 6)
    assert manifest(fresh, 6)["counters"]["adam_step"] == 3


def test_keep_is_kept_for_what_was_trained_only(runs: Runs) -> None:
    """k has moments from the stage before, q and v begin at zero: after a step their moment is (1 - beta) g."""
    two = stage("two", f"max_steps: 1, trainable: ['{QKV}'], optimizer: keep")
    run = runs.train("r", *schedule(stage("one", f"max_steps: 2, trainable: ['{K}']"), two))
    assert manifest(run, 3)["counters"]["adam_step"] == 3
    alone = runs.train("alone", *schedule(stage("two", f"max_steps: 1, trainable: ['{QKV}']")), f"start.path={run}")
    assert manifest(alone, 1)["counters"]["adam_step"] == 1
    assert set(state(run, 3)) == set(state(alone, 1))


def test_data_goes_on_where_the_stage_before_stopped(runs: Runs) -> None:
    """Also when the stages load it otherwise; another mixture begins anew, and the first one goes on after it."""
    long = runs.train("long", "train.max_steps=9")
    stages = schedule(
        stage("one"),
        stage(
            "two", "max_steps: 3, data: {prefetch_steps: 2, verify_blocks: false, sources: {text: {valid_path: null}}}"
        ),
        stage("other", "max_steps: 2, data: {seed: 9}"),
        stage("back", "max_steps: 3, data: {document_mask: true}"),
    )
    run = runs.train("r", *stages)
    expected = logged(long, "batch_digest")
    digests = logged(run, "batch_digest")
    assert digests[:6] == expected[:6]
    assert not set(digests[6:8]) & set(expected)
    places = [resolve(load_saved(run).config)[number].first_sample for number in range(4)]
    assert places == [0, 12, 0, 24]
    mixture = mixture_of(long)
    assert [mixture_of(run, 3).provenance(i) for i in range(24, 36)] == [mixture.provenance(i) for i in range(24, 36)]


def mixture_of(run: Path, number: int = 0) -> Mixture:
    config = resolve(load_saved(run).config)[number].config
    return Mixture(config.data, config.train.seq_len, None, config.train.global_batch_size, Edges(1, 2))


def test_a_larger_batch_goes_on_in_the_same_data(runs: Runs) -> None:
    long = runs.train("long", "train.max_steps=9")
    larger = stage("two", "max_steps: 3, train: {global_batch_size: 8}")
    run = runs.train("r", *schedule(stage("one", "max_steps: 2"), larger, stage("three", "max_steps: 1")))
    expected, digests = logged(long, "batch_digest"), logged(run, "batch_digest")
    sums = [int(digest, 16) for digest in expected[2:8]]
    pairs = [f"{(a + b) % 2**64:016x}" for a, b in zip(sums[::2], sums[1::2], strict=True)]
    assert digests == [*expected[:2], *pairs, expected[8]]


def test_rates_are_those_of_the_stage_and_its_own_step(runs: Runs) -> None:
    two = stage("two", "max_steps: 4, optim: {lr: 0.02, schedule: cosine, warmup_steps: 2}")
    run = runs.train("r", *schedule(stage("one"), two))
    one, two = resolve(load_saved(run).config)
    expected = [lr_at(step, one.config.optim, 3) for step in range(3)]
    expected += [lr_at(step, two.config.optim, 4) for step in range(4)]
    assert logged(run, "lr") == expected
    assert max(expected[3:]) > max(expected[:3])
    assert logged(run, "step") == [1, 2, 3, 4, 5, 6, 7]


def test_borders_stay_and_each_stage_has_its_report_once(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*THREE, "checkpoint.save_every_steps=1"]
    run = runs.train("r", *words)
    assert saved(run) == [4, 7, 9, 10]
    marks = {path.parent.name: path for path in run.rglob("done.json")}
    assert {name: json.loads(path.read_text())["step"] for name, path in marks.items()} == {
        "k": 4,
        "qkv": 7,
        "report": 10,
    }
    written = {name: path.stat().st_mtime_ns for name, path in marks.items()}
    capsys.readouterr()
    runs.train("r", *words)
    assert {name: path.stat().st_mtime_ns for name, path in marks.items()} == written
    assert "report on step 10" in capsys.readouterr().err


def test_a_crash_between_save_and_report_makes_the_report_later(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    words = schedule(stage("one"), stage("two"))
    whole = runs.train("whole", *words)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage_run, "final_report", die)
        with pytest.raises(KeyboardInterrupt):
            runs.train("r", *words)
    run = runs.folder / "r"
    assert saved(run) == [3] and not (run / "report").exists()
    runs.train("r", *words)
    assert (run / "report" / "one" / "done.json").exists()
    assert state(run, 6) == state(whole, 6)
    assert logged(run, "step") == [1, 2, 3, 4, 5, 6]


def test_a_border_is_read_with_its_own_configuration(runs: Runs) -> None:
    run = runs.train("r", *THREE, "stages.k.train={seq_len: 16}")
    expected = [(10, 48, "linear", 0.001), (7, 24, "plain", 0.02), (4, 16, "plain", 0.001)]
    for step, seq_len, rope_scaling, lr in expected:
        border = load_run(run, "cpu")
        config = border.loaded.config
        assert (border.step, config.train.seq_len, config.position.rope_scaling.name) == (step, seq_len, rope_scaling)
        assert math.isclose(config.optim.lr, lr)
        remove(run, step, step - 1)


def test_steps_of_every_stage_can_be_shown(runs: Runs) -> None:
    run = runs.train("r", *schedule(stage("one"), stage("two"), stage("three", "max_steps: 2, train: {seq_len: 48}")))
    for step in (1, 3, 4, 6, 7, 8):
        text = show(str(run), step, rows=1, characters=40)
        assert "(the one in metrics.jsonl)" in text and logged(run, "batch_digest")[step - 1] in text
        assert f"of {24 if step < 7 else 48} tokens" in text


def test_a_stage_that_has_not_begun_cannot_be_shown(runs: Runs) -> None:
    words = schedule(stage("one"), stage("two"))
    run = runs.train("r", *words, crash_at=3)
    with pytest.raises(Exception, match=r"E-RUN-26 step=4 or more.*stage two"):
        show(str(run), 4, rows=1, characters=40)
    assert [one["name"] for one in record(run)["stages"]] == ["one"]


def test_the_memory_of_a_recurrent_model_goes_on_with_keep(runs: Runs) -> None:
    words = ["position=transformer_xl", "position.memory_len=8", "data.order=stream"]
    long = runs.train("long", *words, "train.max_steps=6")
    assert state(runs.train("keep", *words, *TWICE), 6) == state(long, 6)
    fresh = runs.train("fresh", *words, *TWICE, "stages.two.optimizer=fresh")
    assert logged(fresh, "batch_digest") == logged(long, "batch_digest")
    assert logged(fresh, "loss")[3] != logged(long, "loss")[3]  # no past
    larger = stage("two", "max_steps: 2, optimizer: keep, train: {global_batch_size: 8}")
    run = runs.train("larger", *words, *schedule(stage("one"), larger))
    assert len(steps(run)) == 5 and all(torch.isfinite(torch.tensor(logged(run, "loss"))))
