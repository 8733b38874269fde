"""`import`: weights of a folder as a run directory.

It has config.yaml, run.json, a checkpoint at step 0 without optimizer state, and the tokenizer.
"""

import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypedDict

import torch

from coca_train.checkpoint import manifest
from coca_train.checkpoint.format import file_size
from coca_train.checkpoint.record import digest, texts_of, versions
from coca_train.checkpoint.weights import MODEL
from coca_train.config.load import FORMAT, Assembled, Loaded, assemble, load
from coca_train.data.mixture import tokenizer_digest
from coca_train.data.special_tokens import MEANING, folder_of, has_template
from coca_train.data.tokenizer import Tokenizer, main_name
from coca_train.hub import (
    config_json,
    conversions,
    forms,
    parity,
    position_rules,
    small_copy,
    tokenizer_files,
    transformers_side,
)
from coca_train.hub.config_keys import Json, read_json
from coca_train.hub.families import FAMILIES
from coca_train.hub.options import ImportConfig
from coca_train.hub.publishing import Tensors, new_folder, write_shards
from coca_train.hub.safetensors_folder import content_digest
from coca_train.hub.weights import Source, open_source
from coca_train.positions.schemes import coca
from coca_train.runtime import dist, durable, untrusted_io
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import flatten, section
from coca_train.settings import TRAIN

VARIANTS = {"coca": "slack", "coca_strict": "strict"}  # of CoCA, by the choice of `position` that has it
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def import_weights(options: ImportConfig) -> Path:
    """Import weights; return the new run directory.

    Raises UserError and its subclasses; nothing is left on the disk then.
    """
    with open_source(options.source, ignore=tuple(options.ignore), keys=options.keys) as source:
        converted = source
        if options.position != "as_source":
            t_width = "half" if options.t_width == "half" else "full_mean"
            variant = VARIANTS[options.position]
            converted = conversions.make_t_from_k(source, variant, options.t_from_k, t_width, options.seed)
        elif options.t_width == "full_mean":
            raise UserError(
                f"E-IOP-14 {options.source} t_width=full_mean: only a T made from K can have this width. "
                "Fix: add position=coca, or omit t_width"
            )
        elif options.t_width == "half":
            converted = conversions.fold_t(source)
        return write_run(source, converted, options)


def write_run(source: Source, converted: Source, options: ImportConfig, done: Sequence[str] = ()) -> Path:
    """Write an opened source as a new run directory, after its parity check.

    converted: the source after conversion. done: the declared conversions, which are checked too.
    """
    run_dir = Path(options.root) / options.name
    tokenizer_path = tokenizer_files.find(source, options.tokenizer)
    special = {"eod": options.eod, "bos": options.bos, "pad": options.pad}
    tokenizer = tokenizer_files.open_for(source, tokenizer_path, special)
    configured = run_config(options.name, options.root, converted, tokenizer_path)
    dist.log(f"source    {options.source}: {_summary(source)}")
    for line in _statements(source, tokenizer):
        dist.log(f"says      {line}")
    if tokenizer is None:
        dist.log("WARNING: no tokenizer with the weights; generation and text need one (tokenizer=<file>)")
    with new_folder(run_dir, file_size(converted.shapes, converted.dtypes)) as folder:
        figures: Json = {}
        # A converted run of ours is compared with the run before the conversion only.
        if not done or source.kind == "huggingface":
            figures = _check_parity(source, converted, tokenizer, options)
        if done:
            figures |= {"conversion": conversions.prove(source, converted, done, options.parity_tokens)}
        durable.write_new(folder / parity.NAME, durable.as_json(figures).encode())
        kept = replace(converted, origin={**converted.origin, **import_record(source, options, done)})
        fill_run(folder, configured, kept, tokenizer, figures)
    dist.log(f"Done. {run_dir} is a run: {_summary(converted)}; weights at step 0, no optimizer state.")
    return run_dir


def _check_parity(source: Source, converted: Source, tokenizer: Tokenizer | None, options: ImportConfig) -> Json:
    """Compare the source with transformers on the same folder, or with a class that its weights are streamed into.

    Return the content of parity.json. Raises CheckpointError E-IOP-13 where they differ.
    """
    is_native_folder = source.kind == "huggingface" and source.family in FAMILIES
    of_class = is_native_folder and bool(FAMILIES[source.family].transformers_class)
    if of_class and not isinstance(source.architecture.position, coca.Settings):
        theirs = transformers_side.side_of_folder(source.path)
    else:
        config = forms.config_to_compare(source.architecture, source.family)
        theirs = transformers_side.side_of_source(source, config)
    results = parity.check(source.architecture, source.read, theirs, tokenizer, options.parity_tokens)
    if is_native_folder:
        results += small_copy.check_windows(source, tuple(options.ignore), options.parity_tokens)
    what = str(source.path)
    if converted is not source:
        how = converted.origin.get("t_from_k")
        what += ", before folding T" if how is None else f", before T from K ({how})"
    report = parity.Report(what, theirs.name, results)
    report.refuse_difference()
    dist.log(report.lines())
    return report.record()


class ImportRecord(TypedDict):
    """What an import depends on. asked: its options; digest: of a folder's files, or of a checkpoint's manifest."""

    asked: Json
    digest: str


def import_record(source: Source, options: ImportConfig, done: Sequence[str] = ()) -> ImportRecord:
    """Return what an import depends on."""
    free = {"source", "name", "root", "parity_tokens"} | (set() if options.t_from_k == "random" else {"seed"})
    written = asdict(options) | {"ignore": ",".join(options.ignore)}
    decisive: Json = {key: value for key, value in written.items() if key not in free}
    decisive |= {"convert": ",".join(done)} if done else {}
    return {"asked": decisive, "digest": source.manifest_digest or content_digest(source.path)}


def _summary(source: Source) -> str:
    architecture = source.architecture
    scaling = "" if architecture.rope_scaling is None else f"/{architecture.rope_scaling.name}"
    precision = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in source.dtypes.values()}))
    return (
        f"{source.n_parameters / 1e6:,.1f}M parameters in {precision}, {architecture.position.scheme}{scaling}, "
        f"{architecture.attention_pattern.name}, trained at {architecture.seq_len:,} tokens"
    )


def _statements(source: Source, tokenizer: Tokenizer | None) -> list[str]:
    """Return lines for the log: a folder's special tokens, the stops of its generation, its rotation."""
    lines = []
    if tokenizer is not None:
        special, path = tokenizer.special, Path(tokenizer.path)
        parts = [f"{MEANING[role]} {getattr(special, role)} ({by})" for role, by in special.said.items()]
        begins = tokenizer_files.begin_tokens(folder_of(path), tokenizer)
        parts += [f"a text begins with {', '.join(map(str, begins)) or 'no token'}"]
        parts += ["a chat template"] if has_template(folder_of(path)) else []
        lines.append(f"{path.name}, {tokenizer.vocab_size:,} tokens: {'; '.join(parts)}")
    if source.kind != "huggingface":
        return lines
    files = (config_json.NAME, tokenizer_files.GENERATION)
    stops = {file: _read_if_there(source.path / file).get("eos_token_id") for file in files}
    said = [f"{stop} ({file})" for file, stop in stops.items() if stop is not None]
    lines += [f"generation stops at {'; '.join(said)}"] if said else []
    config = _read_if_there(source.path / config_json.NAME)
    lines += [
        f"{name} {config[name]} ({config_json.NAME})" for name in position_rules.ROPE_SECTIONS if config.get(name)
    ]
    return [*lines, f"{source.architecture.n_rows:,} rows of the embedding ({config_json.NAME})"]


def _read_if_there(path: Path) -> Json:
    return read_json(path) if path.is_file() else {}


def run_config(name: str, root: str, source: Source, tokenizer: Path | None) -> Loaded:
    """Return the configuration of an imported run: defaults, and what the weights determine; it has no data.

    Raises ConfigError for a name that no run can have.
    """
    tree, run_dir = load(assemble(TRAIN, []), launch=False).tree, (Path(root) / name).resolve()
    architecture = source.architecture
    tree |= {
        "model": asdict(architecture.model),
        "position": asdict(architecture.position),
        "attention_pattern": asdict(architecture.attention_pattern),
        "layers": asdict(architecture.layers),
    }
    section(tree, "run").update(name=name, root=root)
    section(tree, "train")["seq_len"] = architecture.seq_len
    section(tree, "engine")["dtype"] = DTYPES[source.dtypes["embed.weight"]]
    nothing = {"path": str(run_dir / "no-training-data"), "valid_path": None, "weight": 1.0, "on_exhausted": "repeat"}
    section(tree, "data").update(
        {
            "prepare": "none",
            "dir": str(run_dir),
            "tokenizer": str(run_dir / (main_name(tokenizer) if tokenizer is not None else "tokenizer.model")),
            "sources": {"none": nothing},
        }
    )
    return load(Assembled(TRAIN, tree), launch=False)


def fill_run(folder: Path, configured: Loaded, source: Source, tokenizer: Tokenizer | None, parity: Json) -> None:
    """Write the files of a run into a folder. configured: by `run_config`. Raises OSError, CheckpointError."""
    config = configured.config
    if tokenizer is not None:
        tokenizer_files.keep(Path(tokenizer.path), tokenizer, folder / tokenizer_files.FOLDER)
        durable.write_new(folder / Path(config.data.tokenizer).name, untrusted_io.read_bytes(tokenizer.path))
    settings = flatten(asdict(config))
    decisive = {key: settings[key] for key in settings if key.startswith(("model.", "position.", "layers."))}
    record: Json = {
        "format": FORMAT,
        "run_id": uuid.uuid4().hex,
        "settings": settings,
        "model_digest": digest(decisive),
        "fingerprint": {
            "tokenizer": tokenizer_digest(tokenizer.path) if tokenizer is not None else None,
            "order": {},
            "sources": {},
        },
        "overrides": [],
        "folder": os.getcwd(),
        "versions": versions(),
        "init_digests": {},
        "imported": source.origin | {"parity": parity},
    }
    checkpoint = folder / manifest.FOLDER / manifest.folder_name(0)
    checkpoint.mkdir(parents=True)
    run_files = texts_of(record, configured.record)
    _write_checkpoint(checkpoint, source, record, run_files, config.engine.dtype)
    durable.write_new(checkpoint.parent / "latest", f"{checkpoint.name}\n".encode())
    for name, text in run_files.items():
        durable.write_new(folder / name, text.encode())


def _write_checkpoint(folder: Path, source: Source, record: Json, run_files: dict[str, str], dtype: str) -> None:
    tensors = Tensors(source.shapes, source.dtypes, source.read)
    metadata = {"run_id": str(record["run_id"]), "step": "0"}
    shards = write_shards(folder, tensors, manifest.shard_name, metadata, MODEL)
    body = {
        "format": manifest.FORMAT,
        "run_id": record["run_id"],
        "step": 0,
        "world_size": 1,
        "zero_stage": 0,
        "dtype": dtype,
        "trainable": [],
        "model_digest": record["model_digest"],
        "data_fingerprint": record["fingerprint"],
        "counters": {},
        "progress": {},
        "files": [{**shard.record, "rank": i} for i, shard in enumerate(shards)],
        "tensors": manifest.digest_of_spec({f"{MODEL}{name}": shape for name, shape in source.shapes.items()}),
        "run_files": run_files,
        "metrics": None,
    }
    durable.write_new(folder / manifest.NAME, manifest.encode(body))
    durable.sync_folder(folder)
