"""From a folder to a model that can be measured: a run of ours, or a Hugging Face folder; or a model in training."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from coca_train.checkpoint.opening import load_run, pick_device
from coca_train.config.schema import Config
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import DTYPES
from coca_train.evaluation.measures.perplexity import evaluating
from coca_train.evaluation.results import Measured
from coca_train.evaluation.subject import Subject
from coca_train.evaluation.variants import Variant, variants
from coca_train.hub import tokenizer_files
from coca_train.hub.weights import Source, open_source
from coca_train.models.transformer import Transformer, count_parameters
from coca_train.runtime.errors import DataError
from coca_train.settings import load

BLOCK_BYTES = 1 << 22


def open_subject(
    path: str, name: str, frequencies: Sequence[str], visibilities: Sequence[str], device: str, dtype: str
) -> Subject:
    """Load a model and work out its variants. device, dtype: as in `work`. Only this rank's process is concerned.

    Raises UserError, CheckpointError and DataError for folders that hold no model or no tokenizer.
    """
    with open_source(path) as source:
        run = source.kind == "run"
        model, tokenizer, config = (_of_run if run else _of_folder)(source, device)
        weights, step = _digest(source), source.origin.get("step")
    if dtype != "auto":
        model = model.to(DTYPES[dtype])
    found = variants(config, product(frequencies, visibilities))
    facts = _facts(config, model, found, name=name, path=path, kind=source.kind, step=step, weights=weights)
    return Subject(facts=facts, path=Path(path), model=model, tokenizer=tokenizer, variants=found)


@contextmanager
def lent(
    model: Transformer, config: Config, tokenizer: Tokenizer, tried: Mapping[str, Variant], **known: Any
) -> Iterator[Subject]:
    """A model in training; it gets back the very position scheme, visibility and mode it came with.

    config: of its stage. known: what Measured says besides of it.
    """
    facts = _facts(config, model, tried, kind="run", **known)
    with model.restored(), evaluating(model):  # CLEX draws its factor at random in training
        yield Subject(facts=facts, path=Path(facts.path), model=model, tokenizer=tokenizer, variants=tried)


def _facts(config: Config, model: Transformer, tried: Mapping[str, Variant], **known: Any) -> Measured:
    return Measured(
        scheme=config.position.scheme,
        training_window=config.train.seq_len,
        n_parameters=count_parameters(model)[0],
        variants=tuple(tried),
        **known,
    )


def _of_run(source: Source, device: str) -> tuple[Transformer, Tokenizer, Config]:
    run = load_run(source.path, device)
    return run.model, run.tokenizer, run.loaded.config


def _of_folder(source: Source, device: str) -> tuple[Transformer, Tokenizer, Config]:
    """Weights as they are stored; float16 becomes float32 on a CPU."""
    tokenizer = tokenizer_files.open_for(source, tokenizer_files.find(source, "auto"))
    if tokenizer is None:
        raise DataError(
            f"E-EVAL-03 {source.path}: there is no tokenizer beside the weights ({', '.join(tokenizer_files.MAIN)}); "
            "text cannot be read without it. Fix: put the model's tokenizer there"
        )
    where, stored = pick_device(device), source.dtypes["embed.weight"]
    with torch.device("meta"):
        model = source.architecture.build()
    model = model.to(torch.float32 if where == "cpu" and stored == torch.float16 else stored).to_empty(device=where)
    model.tie()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source.read(name))
    return model.eval(), tokenizer, _config(source)


def _config(source: Source) -> Config:
    """The configuration of a training that would have such weights, for the checks of its variants."""
    made = source.architecture
    train = replace(usual().train, seq_len=made.seq_len)
    sections = {"model": made.model, "position": made.position, "visibility": made.visibility, "layers": made.layers}
    return replace(usual(), **sections, train=train)


@cache
def usual() -> Config:
    """The configuration of a training without any choice."""
    return load([]).config


def _digest(source: Source) -> str:
    """Of everything that makes the model: a checkpoint's manifest holds its files' digests, a folder's are read."""
    known = source.origin.get("manifest_digest")
    if known is not None:
        return known
    whole = hashlib.sha256(repr(sorted(asdict(source.architecture).items())).encode())
    for file in sorted(source.path.glob("*.safetensors")):
        with open(file, "rb") as opened:
            while block := opened.read(BLOCK_BYTES):
                whole.update(block)
    return whole.hexdigest()
