"""Stages in the configuration: what they inherit, what they may say, and how they are refused."""

import dataclasses

import pytest
import yaml

from coca_train.config.schema import Config
from coca_train.settings import load
from coca_train.stages import resolve, stage_at
from coca_train.vary import vary
from tests.config.support import has, refused, table

TWO = ["position=rope", "+stages.two.max_steps=60"]


def stage(config: Config, name: str) -> Config:
    return next(each.config for each in resolve(config) if each.name == name)


def test_what_a_stage_leaves_out_is_as_the_run_says():
    config = load([*TWO, "+stages.two.train.seq_len=256", "+stages.two.optim.lr=0.5", "train.max_steps=70"]).config
    first, second = (stage(config, name) for name in ("all", "two"))
    assert first == config
    assert second.train == dataclasses.replace(config.train, seq_len=256, max_steps=60)
    assert second.optim == dataclasses.replace(config.optim, lr=0.5)
    for section in (
        "run",
        "model",
        "position",
        "attention_pattern",
        "data",
        "engine",
        "checkpoint",
        "tracking",
        "eval",
    ):
        assert getattr(second, section) == getattr(config, section)


@pytest.mark.parametrize(
    ("tokens", "steps"), [(16 * 128, 1), (16 * 128 * 50, 50), (16 * 128 * 50 + 1, 51), (16 * 128 * 51, 51)]
)
def test_tokens_are_rounded_up_to_whole_steps(tokens: int, steps: int):
    config = load(["+stages.two.optim.warmup_steps=0", f"+stages.two.tokens={tokens}"]).config
    assert stage(config, "two").train.max_steps == steps


def test_other_frequencies_and_attention_patterns_bring_the_values_of_their_files():
    words = ["+stages.two.position.rope_scaling={name: yarn, factor: 16}", "train.seq_len=64"]
    loaded = load([*TWO, *words, "+stages.two.train.seq_len=512", "+stages.two.attention_pattern.name=sinks"])
    config = stage(loaded.config, "two")
    assert (config.position.rope_scaling.name, config.position.rope_scaling.factor) == ("yarn", 16)
    assert config.position.rope_scaling.original_seq_len == 64  # ${train.seq_len} is the run's, not the stage's
    assert config.position.rotary_pct == loaded.config.position.rotary_pct
    assert dataclasses.asdict(config.attention_pattern) == dataclasses.asdict(
        load(["position=rope", "attention_pattern=sinks", "train.seq_len=64"]).config.attention_pattern
    )
    kept = yaml.safe_load(loaded.yaml)["stages"]["two"]
    assert kept["position"]["rope_scaling"]["original_seq_len"] == 64


def test_a_source_of_null_is_left_out():
    config = load([*TWO, "+stages.two.data.sources.code=null", "+stages.two.data.sources.text.weight=3"]).config
    sources = stage(config, "two").data.sources
    assert list(sources) == ["text"]
    assert sources["text"] == dataclasses.replace(config.data.sources["text"], weight=3)


def test_steps_and_samples_count_on():
    words = ["+stages.three.max_steps=50", "+stages.three.train.global_batch_size=64", "+stages.four.max_steps=50"]
    other = ["+stages.four.data.seed=9", "+stages.five.max_steps=50", "+stages.five.optimizer=keep"]
    stages = resolve(load([*TWO, *words, *other, "stages.all.max_steps=100"]).config)
    assert [stage.name for stage in stages] == ["all", "two", "three", "four", "five"]
    assert [(stage.first_step, stage.max_steps, stage.last_step) for stage in stages] == [
        (0, 100, 100), (100, 60, 160), (160, 50, 210), (210, 50, 260), (260, 50, 310),
    ]  # fmt: skip
    seen = [0, 100 * 16, 160 * 16, 0, 160 * 16 + 50 * 64]  # four draws in another order, from its beginning
    assert [stage.first_sample for stage in stages] == seen
    assert [stage.keeps_optimizer for stage in stages] == [False, False, False, False, True]
    at = [stage_at(stages, step).name for step in (0, 1, 100, 101, 160, 161, 310, 400)]
    assert at == ["all", "all", "all", "two", "two", "three", "five", "five"]


def test_a_stage_that_leaves_away_what_another_weighs_can_be_varied():
    stages = ["+stages.all.data.sources.code.weight=3", "+stages.two.data.sources={code:null}"]
    second = stage(load([*TWO, *stages]).config, "two")
    assert list(second.data.sources) == ["text"]
    varied = vary(second, ["position/rope_scaling=dynamic_ntk"])
    assert varied.position.rope_scaling.name == "dynamic_ntk"
    assert (varied.stages, varied.data) == (second.stages, second.data)


def test_a_stream_goes_on_with_the_same_rows_only():
    words = ["data.order=stream", "+stages.two.train.global_batch_size=64", "+stages.three.max_steps=50"]
    assert [stage.first_sample for stage in resolve(load([*TWO, *words]).config)] == [0, 0, 380 * 16]


REFUSED = """
+stages.two.train.seq=256 | E-CFG-01 | command line stages.two.train.seq=256: in stage two: unknown key
+stages.two.train.seq_len=0 | E-CFG-05 | write stages.two.train.seq_len=128, for example
+stages.two.optim.warmup_steps=60 | E-CFG-23 | stages.two.optim.warmup_steps=60, | stages.two.max_steps=60
optim.warmup_steps=60 | E-CFG-23 | command line optim.warmup_steps=60, command line stages.two.max_steps=60: in
+stages.two.tokens=5 | E-STG-03 | command line stages.two.max_steps=60, command line stages.two.tokens=5: both
+stages.two.engine.dtype=fp32 | E-STG-04 | stages.two.engine.dtype=fp32: a stage cannot
+stages.two.position.scheme=coca | E-STG-04 | position.scheme=coca: | coca_train import
+stages.two.data.tokenizer=x | E-STG-04 | data.tokenizer=x: | one vocabulary
+stages.two.train.max_steps=5 | E-STG-04 | train.max_steps=5:
`+stages.two.position.rope_scaling={name: lin}` | E-CFG-05 | linear
+stages.two.optim.min_lr=7 | E-CFG-23 | stages.two.optim.min_lr=7,
+stages.two.nope=3 | E-CFG-01 | command line stages.two.nope=3: unknown key
stages.all.optimizer=keep | E-STG-02 | stages.all.optimizer=keep: | stages.all.optimizer=fresh
+stages.two.trainable=[] | E-CFG-05 | stages.two.trainable
+stages.two.data.sources.new.weight=1 | E-STG-05 | has text, code. Fix: choose
+stages.two.data.sources.new={path:x} | E-CFG-11 | stages.two.data.sources.new.weight
position=tupe +stages.two.attention_pattern.name=rerope | E-CFG-44 | configs/attention_pattern/rerope.yaml:
  | stages.two.attention_pattern.window=
+stages.two.train.seq=1 +stages.two.optim.min_lr=7 | E-CFG-23 | stages.two.optim.min_lr=7,
"""


@table(REFUSED)
def test_refused(words, code, texts):
    has(refused([*TWO, *words]), code, texts)
