"""Only what differs, in words."""

from dataclasses import replace

from coca_train.planning.as_text import NAMES, differences
from tests.planning.conftest import TINY, configure


def between(before: tuple[str, ...], after: tuple[str, ...]) -> list[str]:
    return differences(configure(*TINY, *before), configure(*TINY, *after))


def test_equal_configurations_differ_in_nothing() -> None:
    assert between(("position=rope",), ("position=rope",)) == []


def test_numbers_are_grouped_and_tokens_of_a_step_follow() -> None:
    assert between((), ("train.seq_len=32768", "optim.lr=2e-3")) == [
        "seq_len 64 -> 32,768",
        "lr 0.001 -> 0.002",
        "tokens a step 2,048 -> 1,048,576",
    ]


def test_tokens_of_a_step_that_stay_are_not_told() -> None:
    lines = between(
        ("train.seq_len=128", "train.global_batch_size=32"), ("train.seq_len=64", "train.global_batch_size=64")
    )
    assert lines == ["seq_len 128 -> 64", "global batch 32 -> 64"]


def test_another_choice_is_told_as_a_whole_with_its_options() -> None:
    lines = between(
        ("position=coca",), ("position=coca", "position/rope_scaling=linear", "position.rope_scaling.factor=16")
    )
    assert lines == ["rope_scaling plain (theta 10000) -> linear (theta 10000, factor 16)"]
    lines = between((), ("attention_pattern=sliding_window", "attention_pattern.window=64"))
    assert lines == ["attention_pattern causal -> sliding_window (window 64)"]


def test_the_same_choice_with_another_option_is_told_by_the_option() -> None:
    yarn = ("position=rope", "position/rope_scaling=yarn")
    lines = between((*yarn, "position.rope_scaling.factor=16"), (*yarn, "position.rope_scaling.factor=32"))
    assert lines == ["position.rope_scaling.factor 16 -> 32"]


def test_another_scheme_is_one_line() -> None:
    (line,) = between(("position=coca",), ("position=rope",))
    coca, rope = (
        "variant slack, t_width full_mean, rotary_pct 1, temperature_on head",
        "rotary_pct 1, temperature_on head, angle_penalty 0",
    )
    assert line == f"position coca ({coca}) -> rope ({rope})"


def test_a_mixture_is_told_in_shares() -> None:
    lines = between((), ("data.sources.text.weight=3", "data.sources.code.weight=1"))
    assert lines == ["data text 50.00 % -> 75.00 %", "data code 50.00 % -> 25.00 %"]
    assert between((), ("data.sources.text.weight=1", "data.sources.code.weight=1")) == []  # the same shares
    lines = between((), ("~data.sources.code",))
    assert lines == ["data text 50.00 % -> 100.00 %", "data code 50.00 % -> none"]
    assert between((), ("data.sources.code.path=other",)) == [
        "data.sources.code.path data/embedded/code_train -> other"
    ]


def test_switches_seeds_and_nothing() -> None:
    lines = between((), ("engine.activation_checkpointing=full", "engine.zero_stage=3", "run.seed=99999"))
    assert lines == ["run.seed 1234 -> 99999", "ZeRO 1 -> 3", "activation checkpointing none -> full"]
    packed = ("data.packing=documents", "data.document_mask=true")
    lines = between(packed, (*packed, "data.upsample_from_tokens=4096", "data.upsample_factor=5"))
    assert lines == ["data.upsample_from_tokens null -> 4,096", "data.upsample_factor 1 -> 5"]


def test_every_name_is_of_an_option_there_is() -> None:
    config = configure(*TINY, "position=rope")
    for where in NAMES:
        value: object = config
        for part in where.split("."):
            value = getattr(value, part)
    assert differences(config, replace(config, optim=replace(config.optim, schedule="cosine"))) == [
        "lr schedule linear -> cosine"
    ]
