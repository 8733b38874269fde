"""Configurations and stages to plan, without files of data."""

from collections.abc import Sequence
from functools import cache

from coca_train.config.load import assemble, load
from coca_train.config.schema import Config
from coca_train.planning.outline import Outline, outline
from coca_train.settings import TRAIN
from coca_train.stages import Stage

# What the figures by hand were worked out with; the quickstart's recipe is another.
RECIPE = ("optim=adamw", "engine=deepspeed", "train.global_batch_size=32")
# 6 layers, d_model 256, d_ff 704, GQA 8:4
TINY = ("model=llama_tiny", "model.vocab_size=320", "train.seq_len=64", *RECIPE)
LLAMA_7B = ("model=llama_7b", "train.seq_len=2048", "position=rope")
K, QKV = ("blocks.*.attention.k.weight",), ("blocks.*.attention.[qkv].weight",)


@cache
def configure(*overrides: str) -> Config:
    """A configuration for any machine."""
    return load(assemble(TRAIN, [*RECIPE, *overrides]), launch=False).config


@cache
def outlined(*overrides: str, trainable: tuple[str, ...] = ("*",)) -> Outline:
    return outline(configure(*overrides), trainable)


def planned(
    name: str, config: Config, trainable: Sequence[str], *, first_step: int = 0, max_steps: int = 15_000
) -> Stage:
    """A stage with an optimizer of its own."""
    return Stage(name, config, tuple(trainable), False, first_step, max_steps, 0)


def coca_llama_7b(*overrides: str) -> tuple[Stage, ...]:
    """The CoCA paper's three stages: 32 GPUs x 8 x 2048, 15 000 steps each (section 4.3)."""
    words = ("position=coca", "train.micro_batch_size=8", "train.global_batch_size=256")
    config = configure(*LLAMA_7B[:2], *words, "train.max_steps=15000", *overrides)
    patterns = {"t": K, "qtv": QKV, "all": ("*",)}
    return tuple(
        planned(name, config, trainable, first_step=15_000 * i) for i, (name, trainable) in enumerate(patterns.items())
    )
