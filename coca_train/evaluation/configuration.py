"""The configuration of `python -m coca_train evaluate`: its shape, frozen, typed, described, and its rules.

Values live in `configs/evaluation/*.yaml`, never here.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from coca_train.config import load as loading
from coca_train.config.files import choices
from coca_train.config.inheritance import merge
from coca_train.config.messages import ConfigError, Problem
from coca_train.config.places import read_yaml
from coca_train.config.root import Root
from coca_train.config.schema import STRICT, Name, Positive, Seed
from coca_train.config.strict import type_sections
from coca_train.evaluation.suites import SUITES
from coca_train.runtime.trees import leaves
from coca_train.runtime.untrusted_io import JsonObject

Begin = Literal["auto", "bos", "none"]
Method = Literal["longrope", "longrope2"]
CELLS = "cells"  # folder of the measured cells of all evaluations


def _length(value: object) -> str:
    """Return 512, 4x or 0.5x as text."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,8}x?|(?!0+\.0+x)[0-9]{1,8}\.[0-9]{1,3}x", text):
        raise ValueError(f"{text!r} is no length; 512 [tokens], or 4x, four times the training window, or 0.5x is one")
    return text


Length = Annotated[str, BeforeValidator(_length)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GridConfig:
    """Which models, under which variants, at which lengths: every combination is a cell."""

    checkpoints: list[str] = Field(
        description="run directories and Hugging Face folders; checkpoint=a,b is short for it"
    )
    names: list[Name] = Field(description="what the report calls them, in the same order; []: the folders' own names")
    rope_scalings: Annotated[list[str], Field(min_length=1)] = Field(
        description="trained; or choices of position/rope_scaling, with options after an @: dynamic_ntk@alpha:4"
    )
    attention_patterns: Annotated[list[str], Field(min_length=1)] = Field(
        description="trained; or choices of attention pattern, with options: sliding_window@window:256"
    )
    logit_scales: Annotated[list[str], Field(min_length=1)] = Field(
        description="trained; or names of model.logit_scale, with options: log, which ReRoPE and CLEX are "
        "evaluated with; none; log@length:4096"
    )
    lengths: Annotated[list[Length], Field(min_length=1)] = Field(
        description="lengths [tokens], or multiples of the shortest training window: 4x, or 0.5x (whole tokens)"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TextConfig:
    """The text that is read, for suites that need one."""

    files: list[str] = Field(
        description="files or patterns: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt; []: those of text.corpus"
    )
    text_field: str = Field(description="where a record of a .jsonl or .parquet file has its text; dots go inside")
    corpus: str | None = Field(
        description="a choice of configs/corpus: its sources with hold_out=all, as they are, not tokenized before; "
        "null: the documents that the first checkpoint that is a run held out"
    )
    sources: list[str] = Field(description="of the corpus or the held-out sets, only these; []: all")
    begin: Begin = Field(
        description="what stands in front of every document, prompt and context of every model alike. bos: the token "
        "that begins a text, where the tokenizer has one; none: nothing; auto: that token where the files of the "
        "tokenizer put it there, for a Hugging Face folder and for a run whose weights come from one"
    )
    max_documents: Positive = Field(
        description="documents at most, as many of one source as of another, evenly chosen among those long enough"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ExtendConfig:
    """A search for the factors of LongRoPE or LongRoPE2."""

    run: str = Field(description="directory of a run with a rotary scheme")
    length: Positive = Field(description="context length to reach [tokens]")
    method: Method = Field(
        default="longrope",
        description="longrope: every factor, judged by the loss of texts; longrope2: the critical pair and the factors "
        "from it on, judged by the loss of the answers to needles hidden in texts",
    )
    needle: Literal["number", "word"] = Field(
        default="number",
        description="what is hidden in texts and asked for: number, of seven digits, or word, for models that are too "
        "small for numbers",
    )
    to: str | None = Field(
        default=None, description="folder of the search, and of what it finds; null: <method>-<length> in the run's"
    )
    files: list[str] = Field(
        default=[],
        description="files or patterns of text: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt; []: what the "
        "run held out",
    )
    text_field: str = Field(default="text", description="where a record of a file has its text; dots go inside")
    documents: Positive = Field(
        default=8, description="documents that candidates are measured on; as many others confirm the result"
    )
    rounds: Annotated[int, Field(ge=0)] = Field(default=40, description="rounds of mutations and crossovers")
    population: Annotated[int, Field(ge=4)] = Field(
        default=64, description="candidates of a round; the better half has as many children"
    )
    seed: Seed = Field(default=0, description="of mutations and crossovers")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda where there is a GPU")


EXTEND = Root(
    name="extend",
    schema=ExtendConfig,
    command="coca_train extend",
    examples="run=runs/rope length=512",
)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WorkConfig:
    """Where the results go, and what computes them."""

    root: str = Field(description="folder of all evaluations; measured cells are kept in <root>/cells and used again")
    name: Name | None = Field(description="name of this one; its report is <root>/<name>. null: the suite's name")
    device: Literal["auto", "cpu", "cuda"] = Field(description="auto: cuda where there is a GPU")
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        description="precision of the weights; auto: as they are stored"
    )
    micro_batch_tokens: Positive = Field(
        description="tokens a forward pass may hold, all rows together; memory against speed"
    )
    sequence_parallel: Annotated[int, Field(ge=1, le=1024)] = Field(
        description="processes that share each window, one too long for a GPU (suite perplexity); 1 = none"
    )
    seed: int = Field(ge=0, description="of everything drawn at random: places, keys, bootstrap")
    timeout_s: Positive = Field(description="how long one rank waits for the others at the end of a cell [s]")
    progress_bar: bool = Field(description="show a bar with the time left; lines, where stderr is no terminal")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvaluateConfig:
    """An evaluation."""

    eval: Any = Field(description="What is measured: a suite and its options")
    grid: GridConfig
    text: TextConfig
    work: WorkConfig


def problems(sections: JsonObject, launch: bool) -> list[Problem]:
    """Check the rules over sections that are right by themselves."""
    mistakes, grid, work = [], sections.get("grid"), sections.get("work")

    def wrong(key: str, text: str, fix: str) -> None:
        mistakes.append(Problem("E-EVAL-01", (key,), text, fix))

    if grid is not None and not grid.checkpoints:
        wrong("grid.checkpoints", "there is no model to measure", "give one or more: checkpoint=runs/quickstart")
    elif grid is not None and grid.names and len(grid.names) != len(grid.checkpoints):
        text = f"{len(grid.names)} names for {len(grid.checkpoints)} checkpoints"
        wrong("grid.names", text, "name each checkpoint once, or none: grid.names=[]")
    for key in ("checkpoints", "names", "rope_scalings", "attention_patterns", "logit_scales", "lengths"):
        values = getattr(grid, key, [])
        if twice := sorted({str(value) for value in values if values.count(value) > 1}):
            wrong(f"grid.{key}", f"{', '.join(twice)} is there twice", "name each once")
    if work is not None and work.name == CELLS:
        wrong("work.name", "this folder keeps the measured cells of all evaluations", "choose another name")
    return mistakes


EVALUATE = Root(
    name="evaluate",
    folder="evaluation",
    schema=EvaluateConfig,
    groups=("eval",),
    check=problems,
    command="coca_train evaluate",
    examples="work.device=cpu, or group=choice, e.g. +eval=passkey",
    place="work.root and work.name",
    registries={"eval": SUITES},
    global_groups=("eval",),
)


def load(words: Sequence[str], dirs: tuple[Path, ...] = ()) -> tuple[EvaluateConfig, str]:
    """Compose, check and freeze the words of a command line; the configuration and its text. Raises ConfigError, which
    names every problem."""
    loaded = loading.load(loading.assemble(EVALUATE, overrides(words), dirs))
    return loaded.config, loaded.yaml


def build(choice: str, eval: JsonObject, **sections: JsonObject) -> EvaluateConfig:
    """Return the configuration of a choice of `eval` with these values over the files', without a command line.

    eval: options of the suite. sections: grid, text, work. Raises ConfigError, which names every problem.
    """
    offered = choices("eval", EVALUATE.dirs())
    if choice not in offered:
        text, fix = f"there is no suite {choice}; the choices are {', '.join(offered)}", "choose one of them"
        raise ConfigError([Problem("E-CFG-32", ("eval",), text, fix)], [f"E-CFG-32 eval={choice}: {text}. Fix: {fix}"])
    top = read_yaml(EVALUATE.dirs()[0] / f"{EVALUATE.name}.yaml")
    del top["defaults"]
    tree = merge(merge(top, _values(choice, offered)), {"eval": dict(eval), **sections})
    typed, problems = type_sections(EVALUATE, tree, dict(leaves(tree)))
    problems += EVALUATE.check(typed, True)
    if problems:
        lines = [f"{each.id} {', '.join(each.keys)}: {each.message}. Fix: {each.fix}" for each in problems]
        raise ConfigError(problems, lines)
    return EvaluateConfig(**typed)


def _values(choice: str, offered: Mapping[str, Path]) -> JsonObject:
    """Return the values of a choice's file over those of the choices that it names."""
    own = read_yaml(offered[choice])
    values: JsonObject = {}
    defaults = own.pop("defaults", [])
    for name in defaults if isinstance(defaults, list) else ():
        values = values if name == "_self_" else merge(values, _values(name, offered))
    return merge(values, own)


def overrides(words: Sequence[str]) -> list[str]:
    """Return the words as Hydra overrides: `checkpoint=a,b` is short for grid.checkpoints=[a,b]."""
    whole = []
    for word in words:
        key, equals, value = word.partition("=")
        if key == "checkpoint" and equals:
            paths = [part.strip() for part in value.strip("[]").split(",") if part.strip()]
            word = f"grid.checkpoints=[{','.join(map(quoted, paths))}]"
        whole.append(word)
    return whole


def quoted(text: str) -> str:
    """Quote any text for an override."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
