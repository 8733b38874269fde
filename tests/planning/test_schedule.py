"""The table of stages and what is told between them."""

from dataclasses import replace
from typing import Any

import pytest

from coca_train.planning.as_text import table
from coca_train.planning.cost import n_tokens
from coca_train.planning.outline import outline
from coca_train.runtime.errors import UserError
from coca_train.stages import Stage
from tests.planning.conftest import TINY, coca_llama_7b, configure, planned

BEFORE = configure(*TINY, "position=rope", "train.max_steps=100", "optim.schedule=constant", "optim.warmup_steps=10")
LONGER = (
    *TINY,
    "position=rope",
    "train.max_steps=50",
    "optim.warmup_steps=10",
    "train.seq_len=1024",
    "train.global_batch_size=16",
)
AFTER = configure(*LONGER, "position/rope_scaling=linear", "position.rope_scaling.factor=16", "optim.lr=2e-3")


def stages(**after: Any) -> tuple[Stage, ...]:
    second = {"first_step": 100, "max_steps": 50, "trainable": ("*",)} | after
    return planned("short", BEFORE, ("*.k.weight",), max_steps=100), planned("long", AFTER, **second)


def schedule(stages: tuple[Stage, ...], n_tokens: int | None = None) -> str:
    return table(stages, [outline(stage.config, stage.trainable, n_tokens) for stage in stages])


def test_a_row_says_what_a_stage_is() -> None:
    lines = schedule(stages()).splitlines()
    assert lines[0].split() == ["stage", "steps", "trains", "seq_len", "batch", "tokens", "lr", "rope_scaling", "data"]
    assert lines[2].split() == ["short", "0-100", "4.3", "%", "64", "32", "205k", "0.001", "plain", "text,", "code"]
    assert " ".join(lines[3].split()) == "long 100-150 100 % 1,024 16 819k 0.002 linear 0.0001 linear 16 text, code"
    assert all(len(line) <= 120 for line in lines)


def test_between_stages_only_what_differs() -> None:
    assert schedule(stages()).split("\nshort -> long\n")[1].splitlines() == [
        "  trains 4.3 % -> 100 % of the parameters",
        "  steps 100 -> 50",
        "  rope_scaling plain (theta 10000) -> linear (theta 10000, factor 16)",
        "  seq_len 64 -> 1,024",
        "  global batch 32 -> 16",
        "  lr 0.001 -> 0.002",
        "  lr schedule constant -> linear",
        "  tokens a step 2,048 -> 16,384",
        "  optimizer starts afresh",
    ]


def test_an_equal_stage_differs_in_its_optimizer_alone() -> None:
    one = planned("a", BEFORE, ("*",), max_steps=100)
    text = schedule((one, replace(one, name="b", first_step=100, keeps_optimizer=True)))
    (line,) = text.split("\na -> b\n")[1].splitlines()
    assert line.startswith("  optimizer keeps")


def test_other_parameters_of_the_same_share_are_told() -> None:
    keys, values = (planned(name, BEFORE, (f"*.{name}.weight",), max_steps=100) for name in ("k", "v"))
    text = schedule((keys, replace(values, first_step=100)))
    assert text.split("\nk -> v\n")[1].splitlines()[0].startswith("  trains 4.3 % -> 4.3 % ")


def test_tokens_of_the_papers_stages() -> None:
    """15 000 steps of 524 288 tokens: the paper's 7.5B are 7.86B exactly."""
    assert [n_tokens(stage) for stage in coca_llama_7b()] == [7_864_320_000] * 3


def test_the_vocabulary_may_be_given_where_the_configuration_has_none(tmp_path: object) -> None:
    config = configure("model=llama_tiny", f"data.tokenizer={tmp_path}/none", "optim.warmup_steps=0")
    stage = planned("only", config, ("head.weight",), max_steps=10)
    with pytest.raises(UserError, match="E-PLN-01"):
        schedule((stage,))
    assert "1.8 %" in schedule((stage,), n_tokens=320)
