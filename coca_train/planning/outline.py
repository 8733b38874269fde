"""A model without memory, which of its parameters a stage trains, and what its checkpoints take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from coca_train.checkpoint.commit import SPARE
from coca_train.checkpoint.format import file_size
from coca_train.config.schema import Config, LoraConfig
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import DTYPES, parameters_on_meta, spec_of
from coca_train.engine.optim import Moments, moments_of
from coca_train.models.lora import named_parameters
from coca_train.models.trainable import select_trainable
from coca_train.models.transformer import Transformer, build_model, vocab_size
from coca_train.runtime.errors import UserError


@dataclass(frozen=True)
class Outline:
    """A model whose parameters have shapes only, frozen as the stage says, in the stage's compute dtype."""

    config: Config
    model: Transformer
    trained: tuple[str, ...]  # names, sorted

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers in every parameter; shared ones count once."""
        return {name: parameter.numel() for name, parameter in named_parameters(self.model)}

    @property
    def n_parameters(self) -> int:
        """All parameters."""
        return sum(self.sizes.values())

    @property
    def n_trained(self) -> int:
        """Parameters that the stage trains."""
        sizes = self.sizes
        return sum(sizes[name] for name in self.trained)

    @property
    def share(self) -> float:
        """Trained parameters as a share of all."""
        return self.n_trained / self.n_parameters

    @property
    def moments(self) -> Moments:
        """The optimizer's moments of each trained parameter."""
        return moments_of(self.model, self.trained, self.config.optim)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model computes in."""
        return DTYPES[self.config.engine.dtype]


def outline(
    config: Config, trainable: Sequence[str], n_tokens: int | None = None, lora: LoraConfig | None = None
) -> Outline:
    """Build the outline of a stage, its adapters included. n_tokens: embedding rows; None: as `embedding_rows` says.

    Raises UserError when the vocabulary is not known, when a pattern matches no parameter, or adapters do not fit.
    """
    # Counted as it is dispatched: what compiled blocks save is not known.
    eager = replace(config, engine=replace(config.engine, compile="none"))
    with parameters_on_meta():
        model = build_model(eager, n_tokens or embedding_rows(config), trainable, lora)
    trained = select_trainable(model, trainable)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(DTYPES[config.engine.dtype])
    return Outline(config, model, tuple(trained))


def embedding_rows(config: Config) -> int:
    """Return model.vocab_size, else what the tokenizer's file gives [tokens]. Raises UserError without either."""
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    if not Path(config.data.tokenizer).is_file():
        if config.data.path is not None and config.data.vocab_size is not None:  # of a tokenizer to be trained
            return vocab_size(config.model, config.data.vocab_size, config.data.tokenizer)
        prepare = config.data.prepare
        made = "" if prepare == "none" else f", or make it: python -m data_prep {prepare}"
        raise UserError(
            f"E-PLN-01 model.vocab_size=null: it is the tokenizer's, and there is no {config.data.tokenizer}; a plan "
            "needs the number of embedding rows. Fix: write model.vocab_size=32000 (or the size of the tokenizer)"
            + made
        )
    return vocab_size(config.model, Tokenizer(config.data.tokenizer).vocab_size, config.data.tokenizer)


@dataclass(frozen=True)
class Storage:
    """Disk space for the checkpoints of a run."""

    checkpoint: int  # the largest of all stages [bytes]
    kept: int  # at most at once, one of them being written

    @property
    def total(self) -> int:
        """Of all checkpoints at once [bytes]."""
        return self.checkpoint * self.kept + SPARE


def checkpoint_storage(outlines: Sequence[Outline], keep: int) -> Storage:
    """Return the disk space for the checkpoints of a run with these stages. keep: checkpoint.keep.

    A checkpoint has float32 weights, persistent buffers, and the moments of trained parameters. While one is written,
    `keep` exist, and the one at the end of each earlier stage stays.
    """
    largest = max(file_size(spec_of(outline.model, outline.moments)) for outline in outlines)
    return Storage(largest, keep + 1 + len(outlines) - 1)
