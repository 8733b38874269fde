"""`export`: a run as a folder for transformers, natively where a class of theirs computes the same."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coca_train.checkpoint.format import file_size
from coca_train.data.special_tokens import ROLES
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import card, decoding, forms, own, parity, shard_files, tokenizer_files, transformers_side
from coca_train.hub.adapters import write_adapters
from coca_train.hub.config_json import NAME
from coca_train.hub.options import ExportConfig
from coca_train.hub.publish import building
from coca_train.hub.shards import INDEX, SINGLE
from coca_train.hub.tokenizer_files import GENERATION
from coca_train.hub.weights import Source, Theirs, open_source, translate
from coca_train.runtime import dist, durable

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def run(options: ExportConfig) -> Path:
    """The new folder. Raises UserError and its subclasses; nothing is left behind then."""
    to = Path(options.to)
    if not options.merge:
        return write_adapters(Path(options.run), to, options.form)
    with open_source(options.run) as source:
        config = forms.choose(source.architecture, options.form, source.family)
        _announce(options, source, config)
        path = tokenizer_files.find(source, options.tokenizer)
        tokenizer = tokenizer_files.open_for(source, path)
        for file in tokenizer_files.beside(path) if path is not None else ():
            if file.name == tokenizer_files.CONFIG:
                transformers_side.check_tokenizer(file)
        theirs = translate(source, config, DTYPES.get(options.dtype))
        with building(to, file_size(theirs.shapes, theirs.dtypes)) as folder:
            if path is not None and tokenizer is not None:
                tokenizer_files.export(path, tokenizer, folder, transformers_side.token_ids)
            _write_config(folder, config, theirs, tokenizer, tokenizer_files.generation_config(path, tokenizer))
            _write_weights(folder, theirs)
            for name, text in own.files(config["model_type"]).items():
                durable.write_new(folder / name, text)
            figures = _check(folder, options, source, config, tokenizer)
            durable.write_new(folder / "README.md", card.text(to.name, source, config, figures, path).encode())
    calls = [*filter(None, [card.before(config)]), card.call("AutoModelForCausalLM", str(to), config)]
    dist.log(f"Done. {to} loads with {'; '.join(calls)}")
    return to


def _announce(options: ExportConfig, source: Source, config: dict[str, Any]) -> None:
    """What the export will be and why, and who will compute something else from it: before any weight is read."""
    what = f"{config['architectures'][0]} ({config['model_type']})"
    if options.form == "auto":
        what = forms.outlook(source.architecture, source.family)
    dist.log(f"export    {options.run} to {options.to}: {what}")
    for caveat in forms.caveats(source.architecture, config):
        dist.log(f"WARNING: {caveat}")


def _write_config(
    folder: Path, config: dict[str, Any], theirs: Theirs, tokenizer: Tokenizer | None, generation: dict[str, Any]
) -> None:
    """config.json and generation_config.json. generation: what the run keeps of the latter."""
    ends = {} if tokenizer is None else _ends(tokenizer)
    precision = str(next(iter(theirs.dtypes.values()))).removeprefix("torch.")
    written = {**config, "torch_dtype": precision, "bos_token_id": None, "eos_token_id": None, **ends}
    _write_json(folder / NAME, written)
    stops = {key: value for key, value in ends.items() if key != "pad_token_id"}
    fresh = {**stops, "do_sample": False, "use_cache": True}
    kept = {**({} if tokenizer is None else {"eos_token_id": ends["eos_token_id"]}), **generation}
    _write_json(folder / GENERATION, kept if generation else fresh)


def _ends(tokenizer: Tokenizer) -> dict[str, Any]:
    """The special tokens of a config.json: as the folder had them that the tokenizer came from, several stops too."""
    said = {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eod} | tokenizer.special.model
    chosen = [role for role, by in tokenizer.special.said.items() if by.startswith("option")]
    return said | {f"{ROLES[role]}_id": getattr(tokenizer, role) for role in chosen}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    durable.write_new(path, (json.dumps(values, indent=2) + "\n").encode())


def _write_weights(folder: Path, theirs: Theirs) -> None:
    parts = shard_files.split(theirs.shapes, theirs.dtypes)

    def file_name(i: int, n: int) -> str:
        return SINGLE if n == 1 else f"model-{i + 1:05d}-of-{n:05d}.safetensors"

    shard_files.write(folder, parts, file_name, theirs.shapes, theirs.dtypes, theirs.read, metadata={"format": "pt"})
    if len(parts) > 1:
        where = {tensor: file_name(i, len(parts)) for i, part in enumerate(parts) for tensor in part}
        total = {"total_size": file_size(theirs.shapes, theirs.dtypes)}
        _write_json(folder / INDEX, {"metadata": total, "weight_map": where})


def _check(
    folder: Path, options: ExportConfig, source: Source, config: dict[str, Any], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Parity of the folder, loaded as anyone would, with the run, in the export's precision of weights; and of what its
    class makes of caches, padding and packed texts."""

    def read(name: str) -> Tensor:
        tensor = source.read(name)
        return tensor if options.dtype == "as_run" else tensor.to(DTYPES[options.dtype])

    theirs = transformers_side.of_folder(folder)
    results = parity.check(source.architecture, read, theirs, tokenizer, options.parity_tokens)
    results += decoding.check(source, config)
    what = f"{options.run} with weights as {options.dtype}"
    figures = parity.settled(results, what, theirs.name)
    durable.write_new(folder / parity.NAME, durable.as_json(figures).encode())
    dist.log(parity.lines(figures))
    return figures
