"""The shape of an evaluation: frozen, typed, described. Values live in `configs/evaluation/*.yaml`, never here."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from coca_train.config.schema import STRICT, Name, Positive


def _length(value: Any) -> str:
    """512 or 4x, as text."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,8}x?", text):
        raise ValueError(f"{text!r} is no length; 512 [tokens], or 4x, four times the training window, is one")
    return text


Length = Annotated[str, BeforeValidator(_length)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GridConfig:
    """Which models, under which variants, at which lengths: every combination is a cell."""

    checkpoints: list[str] = Field(
        description="run directories and Hugging Face folders; checkpoint=a,b is short for it"
    )
    names: list[Name] = Field(description="what the report calls them, in the same order; []: the folders' own names")
    frequencies: Annotated[list[str], Field(min_length=1)] = Field(
        description="own: as trained; or choices of position/frequencies, with options behind an @: dynamic_ntk@alpha:4"
    )
    visibilities: Annotated[list[str], Field(min_length=1)] = Field(
        description="own: as trained; or choices of visibility, with options: sliding_window@window:256"
    )
    lengths: Annotated[list[Length], Field(min_length=1)] = Field(
        description="lengths [tokens], or multiples of the shortest training window: 4x"
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
    max_documents: Positive = Field(
        description="documents of each source at most, evenly chosen among those long enough"
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
