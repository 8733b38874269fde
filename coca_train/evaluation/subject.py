"""A model under evaluation: a run of ours, a Hugging Face folder, or a model in training; and what all cells share."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coca_train.checkpoint.opening import load_run, pick_device, read_record
from coca_train.config.schema import Config
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from coca_train.engine.base import DTYPES
from coca_train.evaluation.configuration import Begin
from coca_train.evaluation.measures.perplexity import evaluating
from coca_train.evaluation.results import Measured, Point
from coca_train.evaluation.variants import Choice, Variant, variants
from coca_train.hub import tokenizer_files
from coca_train.hub.initial_weights import IMPORTED
from coca_train.hub.weights import Source, imported, open_source
from coca_train.models.transformer import Transformer, count_parameters
from coca_train.runtime.errors import DataError
from coca_train.settings import TOKENIZERS, load

BLOCK_BYTES = 1 << 22


def begin_of(choice: Begin, begins: tuple[int, ...], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that are put in front of every text.

    choice: text.begin. begins: what `auto` means for these weights.
    """
    if choice == "auto":
        return begins
    return (tokenizer.bos,) if choice == "bos" and tokenizer.bos is not None else ()


def run_begins(run_dir: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that begin the texts a run's weights know: of imported ones, as its own texts have none."""
    if imported(read_record(run_dir)) is None:
        return ()
    kept = (run_dir / tokenizer_files.FOLDER, run_dir / IMPORTED / tokenizer_files.FOLDER)
    folder = next((folder for folder in kept if folder.is_dir()), Path(tokenizer.path).parent)
    return tokenizer_files.begin_tokens(folder, tokenizer)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model in evaluation mode, on its device. While a cell is measured, it has the cell's variant.

    variants: of the grid, by name. begin: tokens in front of a prompt or a document, as begin_choice, text.begin, has
    it.
    """

    facts: Measured
    path: Path
    model: Transformer
    tokenizer: Tokenizer
    variants: Mapping[str, Variant]
    begin: tuple[int, ...] = ()
    begin_choice: Begin = "auto"

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def training_window(self) -> int:
        """[tokens]"""
        return self.facts.training_window


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all cells share.

    points: of the grid, ascending where they are lengths. texts: documents by source, as plain text, read when first
    asked for. token_files: documents by source in the model's own tokens, instead of texts. lengths_from: the option
    that lengths come from, for messages. enough: lengths that fewer documents have than an answer needs are left out,
    where enough have shorter ones: nobody asked for that very length. progress: called with the share of the cell that
    is done (0 to 1).
    """

    points: tuple[Point, ...]
    texts: Callable[[], Mapping[str, list[str]]]
    max_documents: int  # of all sources together
    seed: int
    micro_batch_tokens: int  # positions a forward pass may hold, all rows together
    token_files: Mapping[str, IndexedDataset] = field(default_factory=dict)
    lengths_from: str = "grid.lengths"
    enough: bool = False
    progress: Callable[[float], None] = lambda share: None


class Opened(NamedTuple):
    """A trained model out of a folder. config: of the training that made it, or that would make such weights.
    tokenizer: None where the folder has none.

    kind: run or huggingface. step: optimizer steps, None where unknown. weights: digest of everything that makes it.
    begins: what text.begin=auto means for it.
    """

    model: Transformer
    tokenizer: Tokenizer | None
    config: Config
    kind: str
    step: int | None
    weights: str
    begins: tuple[int, ...]


def open_folder(path: str, device: str, dtype: str) -> Opened:
    """Return the model of a run directory or a Hugging Face folder, in evaluation mode. device, dtype: as in `work`.

    Raises UserError, CheckpointError and DataError for folders that hold no model or a tokenizer that cannot be read.
    """
    with open_source(path) as source:
        weights, step = _digest(source), source.step
        if source.kind == "run":
            run = load_run(source.path, device)
            model, tokenizer, config = run.model, run.tokenizer, run.loaded.config
            begins = run_begins(source.path, tokenizer) if tokenizer is not None else ()
        else:
            model, tokenizer = _read_folder(source, device)
            known = source.architecture
            # Of a training that would have such weights, for the checks of its variants.
            sections = {name: getattr(known, name) for name in ("model", "position", "attention_pattern", "layers")}
            default = default_config()
            config = replace(default, **sections, train=replace(default.train, seq_len=known.seq_len))
            begins = tokenizer_files.begin_tokens(source.path, tokenizer) if tokenizer is not None else ()
    if dtype != "auto":
        model = model.to(DTYPES[dtype])
    return Opened(model, tokenizer, config, source.kind, step, weights, begins)


def subject_of(opened: Opened, path: str, name: str, choices: Iterable[Choice], begin: Begin) -> Subject:
    """Make the subject of an opened model. choices: to try. begin: text.begin.

    Raises DataError E-EVAL-03 where it has no tokenizer, and what `variants` does.
    """
    model, tokenizer, tried = opened.model, opened.tokenizer, variants(opened.config, choices)
    if tokenizer is None:
        raise no_tokenizer(Path(path))
    known = {"name": name, "path": path, "kind": opened.kind, "step": opened.step, "weights": opened.weights}
    return Subject(
        facts=_facts(opened.config, model, tokenizer, tried, **known),
        path=Path(path),
        model=model,
        tokenizer=tokenizer,
        variants=tried,
        begin=begin_of(begin, opened.begins, tokenizer),
        begin_choice=begin,
    )


@contextmanager
def borrow_model(
    model: Transformer, config: Config, tokenizer: Tokenizer, tried: Mapping[str, Variant], **known: Any
) -> Iterator[Subject]:
    """Lend a model in training; it gets back the very position scheme, attention pattern and mode it came with.

    config: of its stage. known: what Measured says besides of it.
    """
    facts = _facts(config, model, tokenizer, tried, kind="run", **known)
    with model.restored(), evaluating(model):  # CLEX draws its factor at random in training
        yield Subject(facts=facts, path=Path(facts.path), model=model, tokenizer=tokenizer, variants=tried)


def _facts(
    config: Config, model: Transformer, tokenizer: Tokenizer, tried: Mapping[str, Variant], **known: Any
) -> Measured:
    return Measured(
        scheme=config.position.scheme,
        training_window=config.train.seq_len,
        n_parameters=count_parameters(model)[0],
        variants=tuple(tried),
        tokenizer=tokenizer.digest,
        **known,
    )


def no_tokenizer(path: Path) -> DataError:
    if (path / "run.json").is_file():
        fix = "import the weights again with tokenizer=<file of the model's own>"
    else:
        fix = f"put the model's own {' or '.join(TOKENIZERS)} there"
    return DataError(f"E-EVAL-03 {path}: has no tokenizer, and text cannot be read without it. Fix: {fix}")


def _read_folder(source: Source, device: str) -> tuple[Transformer, Tokenizer | None]:
    """Read weights as they are stored; float16 becomes float32 on a CPU."""
    tokenizer = tokenizer_files.open_for(source, tokenizer_files.find(source, "auto"))
    where, stored = pick_device(device), source.dtypes["embed.weight"]
    # Built without memory and filled tensor by tensor: the weights are never there twice.
    with torch.device("meta"):
        model = source.architecture.build()
    model = model.to(torch.float32 if where == "cpu" and stored == torch.float16 else stored).to_empty(device=where)
    model.tie()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source.read(name))
    return model.eval(), tokenizer


@cache
def default_config() -> Config:
    """Return the configuration of a training without any choice; nothing is trained, so any number of ranks will do."""
    return load([], launch=False).config


def _digest(source: Source) -> str:
    """Digest everything that makes the model. A checkpoint's manifest holds its files' digests; a folder has none, so
    its files are read: cells are kept by this digest, and a path or a date would take changed weights for the old
    ones."""
    if source.manifest_digest is not None:
        return source.manifest_digest
    whole = hashlib.sha256(repr(sorted(asdict(source.architecture).items())).encode())
    for file in sorted(source.path.glob("*.safetensors")):
        with open(file, "rb") as opened:
            while block := opened.read(BLOCK_BYTES):
                whole.update(block)
    return whole.hexdigest()
