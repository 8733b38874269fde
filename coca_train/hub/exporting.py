"""`export`: a run as a folder for transformers, natively where one of its classes computes the same; and `verify`."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from coca_train.checkpoint.format import file_size
from coca_train.config.schema import ModelConfig
from coca_train.data.special_tokens import ROLES
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import card, config_json, forms, parity, small_copy, tokenizer_files, transformers_side
from coca_train.hub.config_keys import Json, Keys, read_json
from coca_train.hub.families import FAMILIES, HEAD_DIM, KV_HEADS, name_of
from coca_train.hub.family import Family
from coca_train.hub.options import ExportConfig, VerifyConfig
from coca_train.hub.publishing import Tensors, new_folder, write_shards
from coca_train.hub.safetensors_folder import INDEX, SINGLE, Folder
from coca_train.hub.weights import Source, open_source, translate
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def export_run(options: ExportConfig) -> Path:
    """Export a run; return the new folder. Raises UserError and its subclasses; nothing is left on the disk then."""
    to = Path(options.to)
    with open_source(options.run) as source:
        config = forms.choose(source.architecture, options.form, source.family)
        name = name_of(config)
        form = f"{forms.class_name(name)} ({config['model_type']})"
        if options.form == "auto":
            form = forms.describe(source.architecture, source.family)
        dist.log(f"export    {options.run} to {options.to}: {form}")
        for caveat in forms.caveats(source.architecture, name):
            dist.log(f"WARNING: {caveat}")
        path = tokenizer_files.find(source, options.tokenizer)
        tokenizer = tokenizer_files.open_for(source, path)
        for file in tokenizer_files.files_of(path) if path is not None else ():
            if file.name == tokenizer_files.CONFIG:
                transformers_side.check_tokenizer(file)
        theirs = translate(source, name, DTYPES.get(options.dtype))
        with new_folder(to, file_size(theirs.shapes, theirs.dtypes)) as folder:
            if path is not None and tokenizer is not None:
                tokenizer_files.export(path, tokenizer, folder, transformers_side.token_ids)
            _write_configs(folder, config, theirs, tokenizer, tokenizer_files.generation_config(path, tokenizer))
            _write_weights(folder, theirs)
            for file, text in forms.export_code(name).items():
                durable.write_new(folder / file, text)
            report = _check_parity(folder, options, source, name, tokenizer)
            readme = card.render_card(to.name, source, name, report, path)
            durable.write_new(folder / "README.md", readme.encode())
    dist.log(f"Done. {to} loads with {'; '.join(card.loading_lines(str(to), name, 'AutoModelForCausalLM'))}")
    return to


def _write_configs(folder: Path, config: Json, theirs: Tensors, tokenizer: Tokenizer | None, generation: Json) -> None:
    """Write config.json and generation_config.json. generation: the run's own of the latter."""
    ends: Json = {}
    if tokenizer is not None:  # as the tokenizer's own folder had them, several stops too
        chosen = [role for role, by in tokenizer.special.said.items() if by.startswith("option")]
        ends = {"bos_token_id": tokenizer.bos, "eos_token_id": tokenizer.eod, **tokenizer.special.model}
        ends |= {f"{ROLES[role]}_id": getattr(tokenizer, role) for role in chosen}
    precision = str(next(iter(theirs.dtypes.values()))).removeprefix("torch.")
    written = {**config, "torch_dtype": precision, "bos_token_id": None, "eos_token_id": None, **ends}
    _write_json(folder / config_json.NAME, written)
    if generation:
        generation = {key: ends[key] for key in ("eos_token_id",) if key in ends} | generation
    else:
        stops = {key: value for key, value in ends.items() if key != "pad_token_id"}
        generation = {**stops, "do_sample": False, "use_cache": True}
    _write_json(folder / tokenizer_files.GENERATION, generation)


def _write_json(path: Path, values: Json) -> None:
    durable.write_new(path, (json.dumps(values, indent=2) + "\n").encode())


def _write_weights(folder: Path, theirs: Tensors) -> None:
    def file_name(i: int, n: int) -> str:
        return SINGLE if n == 1 else f"model-{i + 1:05d}-of-{n:05d}.safetensors"

    shards = write_shards(folder, theirs, file_name, {"format": "pt"})
    if len(shards) > 1:
        where = {tensor: shard.record["name"] for shard in shards for tensor in shard.tensors}
        total = {"total_size": file_size(theirs.shapes, theirs.dtypes)}
        _write_json(folder / INDEX, {"metadata": total, "weight_map": where})


def _check_parity(
    folder: Path, options: ExportConfig, source: Source, name: str, tokenizer: Tokenizer | None
) -> parity.Report:
    """Compare the folder, as transformers loads it, with the run in the export's precision; and its class on caches,
    padding and packed texts. name: of its family, or of our model type."""

    def read(name: str) -> Tensor:
        tensor = source.read(name)
        return tensor if options.dtype == "as_run" else tensor.to(DTYPES[options.dtype])

    theirs = transformers_side.side_of_folder(folder)
    results = parity.check(source.architecture, read, theirs, tokenizer, options.parity_tokens)
    results += small_copy.check_decoding(source, name)
    report = parity.Report(f"{Path(options.run).name} with weights as {options.dtype}", theirs.name, results)
    report.refuse_difference()
    durable.write_new(folder / parity.NAME, durable.as_json(report.record()).encode())
    dist.log(report.lines())
    return report


def _sizes(family: Family | None, keys: Keys, model: ModelConfig) -> Iterator[tuple[str, object, int | None]]:
    """Yield a key of config.json, its value (None: the class works it out, or our sections say it) and ours, for every
    size of a model. family: None for our own forms, which have LLaMA's keys and nothing where one is missing."""
    n_kv_heads, head_dim = model.n_kv_heads or model.n_heads, model.head_dim or model.d_model // model.n_heads
    for field in (family or FAMILIES["llama"]).fields:
        if field.ours in ("vocab_size", "d_model", "n_layers", "n_heads", "d_ff"):
            theirs = field.read(keys) if family else keys.take(field.theirs)
            yield field.theirs, theirs, getattr(model, field.ours)
    yield KV_HEADS[0], keys.take(KV_HEADS[0]), n_kv_heads
    yield HEAD_DIM[0], keys.take(HEAD_DIM[0]), head_dim


def verify_export(options: VerifyConfig) -> Path:
    """Compare an existing run and folder; return the parity.json written, in the run's directory.

    Raises CheckpointError E-IOP-13 where the two differ, UserError E-IOP-10 where the folder has another vocabulary,
    width, depth or heads, before anything is built, and where its heads rotate another number of pairs.
    """
    assert options.run is not None and options.against is not None
    against = Path(options.against)
    if not config_json.is_folder(against):
        raise UserError(
            f"E-IOP-01 {against}: no Hugging Face folder (no {config_json.NAME}). "
            f"Fix: against=<folder with {config_json.NAME}>"
        )
    config = read_json(against / config_json.NAME)
    with open_source(options.run) as source:
        family = FAMILIES.get(name_of(config))
        for key, theirs, ours in _sizes(family, Keys(against / config_json.NAME, config), source.architecture.model):
            if theirs not in (None, ours):
                raise UserError(
                    f"E-IOP-10 {against} {key}={theirs!r}: {options.run} has {ours}; only models of the same size can "
                    "be compared. Fix: give the folder of this model"
                )
        Folder(against).close()  # damaged files are refused before another library reads them
        tokenizer = tokenizer_files.open_for(source, tokenizer_files.find(source, options.tokenizer))
        theirs = transformers_side.side_of_folder(against)
        results = parity.check(source.architecture, source.read, theirs, tokenizer, options.parity_tokens)
    report = parity.Report(options.run, f"{against}: {theirs.name}", results)
    dist.log(report.lines())
    path = Path(options.run) / parity.NAME
    durable.write_json(path, report.record())
    report.refuse_difference()
    return path
