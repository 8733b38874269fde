"""`verify`: the parity check between a run and a folder that both exist; its figures go beside the run."""

from pathlib import Path
from typing import Any

from coca_train.hub import parity, tokenizer_files, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_json import NAME
from coca_train.hub.keys import read_json
from coca_train.hub.options import VerifyConfig
from coca_train.hub.shards import Folder
from coca_train.hub.weights import open_source
from coca_train.runtime import dist
from coca_train.runtime.durable import write_json
from coca_train.runtime.errors import UserError


def _same_sizes(against: Path, config: dict[str, Any], run: str, architecture: Architecture) -> None:
    """UserError E-IOP-10 where a folder says another vocabulary, width or depth: nothing of it is built then."""
    model = architecture.model
    sizes = {"vocab_size": architecture.n_rows, "hidden_size": model.d_model, "num_hidden_layers": model.n_layers}
    for key, value in sizes.items():
        if config.get(key) != value or isinstance(config[key], bool):
            raise UserError(
                f"E-IOP-10 {against} {key}={config.get(key)!r}: {run} has {value}; two models of the same sizes can be "
                "compared. Fix: give the folder of this model"
            )


def run(options: VerifyConfig) -> Path:
    """The parity.json written, in the run's directory. Raises CheckpointError E-IOP-13 where the two differ."""
    against = Path(options.against)
    if not (against / NAME).is_file():
        raise UserError(f"E-IOP-01 {against}: no Hugging Face folder (no {NAME}). Fix: against=<folder with {NAME}>")
    config = read_json(against / NAME)
    with open_source(options.run) as source:
        _same_sizes(against, config, options.run, source.architecture)
        Folder(against).close()  # what is damaged is told before another library reads it
        tokenizer = tokenizer_files.open_for(source, tokenizer_files.find(source, options.tokenizer))
        theirs = transformers_side.of_folder(against)
        results = parity.check(source.architecture, source.read, theirs, tokenizer, options.parity_tokens)
    figures = parity.record(results, options.run, f"{against}: {theirs.name}")
    dist.log(parity.lines(figures))
    path = Path(options.run) / parity.NAME
    write_json(path, figures)
    parity.refuse_difference(results, options.run, str(against))
    return path
