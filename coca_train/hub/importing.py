"""`import`: weights from anywhere into a run directory that everything here reads."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coca_train.checkpoint.format import file_size
from coca_train.hub import (
    conversions,
    forms,
    parity,
    run_directory,
    said,
    small_copy,
    tokenizer_files,
    transformers_side,
)
from coca_train.hub.conversions.coca_full_to_half import fold
from coca_train.hub.conversions.rope_to_coca import convert
from coca_train.hub.families import FAMILIES
from coca_train.hub.options import ImportConfig
from coca_train.hub.publish import building
from coca_train.hub.shards import content
from coca_train.hub.weights import Source, open_source
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import UserError

VARIANTS = {"coca": "slack", "coca_strict": "strict"}  # of CoCA, by the choice of `position` that has it


def run(options: ImportConfig) -> Path:
    """The new run directory. Raises UserError and its subclasses; nothing is left behind then."""
    with open_options(options) as source:
        return bring(source, wanted(source, options), options)


def open_options(options: ImportConfig) -> Source:
    """The source that the options name. Raises as `open_source`."""
    return open_source(options.source, ignore=tuple(options.ignore), keys=options.keys)


def bring(source: Source, converted: Source, options: ImportConfig, done: Sequence[str] = ()) -> Path:
    """An opened source as a new run directory; as `run`. converted: what becomes of it. done: the declared conversions
    it went through, which are proved."""
    run_dir = Path(options.root) / options.name
    tokenizer_path = tokenizer_files.find(source, options.tokenizer)
    tokenizer = tokenizer_files.open_for(
        source, tokenizer_path, {"eod": options.eod, "bos": options.bos, "pad": options.pad}
    )
    configuration = run_directory.configuration(options.name, options.root, converted, tokenizer_path)
    dist.log(f"source    {options.source}: {_described(source)}")
    for line in said.lines(source, tokenizer):
        dist.log(f"says      {line}")
    if tokenizer is None:
        dist.log("WARNING: no tokenizer beside the weights; generation and text need one (tokenizer=<file>)")
    with building(run_dir, file_size(converted.shapes, converted.dtypes)) as folder:
        figures: dict[str, Any] = {}
        if not (
            done and source.kind == "run"
        ):  # a run of ours has no other side; its conversion is what is in question
            theirs = other_side(source)
            results = parity.check(source.architecture, source.read, theirs, tokenizer, options.parity_tokens)
            if source.kind == "huggingface" and source.family in FAMILIES:
                results += small_copy.check_windows(source, tuple(options.ignore), options.parity_tokens)
            figures = parity.settled(results, _what(source, converted), theirs.name)
            dist.log(parity.lines(figures))
        if done:
            proof = conversions.prove(source, converted, done, options.parity_tokens)
            dist.log(parity.lines(proof))
            figures |= {"conversion": proof}
        durable.write_new(folder / parity.NAME, durable.as_json(figures).encode())
        kept = replace(converted, origin=converted.origin | provenance(source, options, done))
        run_directory.write(folder, configuration, kept, tokenizer, figures)
    dist.log(f"Done. {run_dir} is a run: {_described(converted)}; weights at step 0, no optimizer state.")
    return run_dir


def provenance(source: Source, options: ImportConfig, done: Sequence[str] = ()) -> dict[str, Any]:
    """What an import depends on, JSON. digest: of all files of a Hugging Face folder that are read, or of the manifest
    of a checkpoint."""
    free = {"source", "name", "root", "parity_tokens"} | (set() if options.t_from_k == "random" else {"seed"})
    written = asdict(options) | {"ignore": ",".join(options.ignore)}
    decisive = {key: value for key, value in written.items() if key not in free}
    decisive |= {"convert": ",".join(done)} if done else {}
    digest = content(source.path) if source.kind == "huggingface" else source.origin["manifest_digest"]
    return {"asked": decisive, "digest": digest}


def wanted(source: Source, options: ImportConfig) -> Source:
    """The source as it is, or converted."""
    if options.position != "as_source":
        t_width = "half" if options.t_width == "half" else "full_mean"
        return convert(source, VARIANTS[options.position], options.t_from_k, t_width, options.seed)
    if options.t_width == "full_mean":
        raise UserError(
            f"E-IOP-14 {options.source} t_width=full_mean: this is the width of a T that is made from K. "
            "Fix: add position=coca, or leave t_width away"
        )
    return fold(source) if options.t_width == "half" else source


def other_side(source: Source) -> parity.Side:
    """What the source is compared with: transformers on the same folder, or a class with its weights streamed in."""
    config = forms.to_compare(source.architecture, source.family)
    if source.kind == "huggingface" and {source.family, config["model_type"]} <= FAMILIES.keys():
        return transformers_side.of_folder(source.path)
    return transformers_side.of_source(source, config)


def _what(source: Source, converted: Source) -> str:
    change = "" if converted is source else f", before {_change(converted)}"
    return f"{source.path}{change}"


def _change(converted: Source) -> str:
    return f"T from K ({converted.origin['t_from_k']})" if "t_from_k" in converted.origin else "folding T"


def _described(source: Source) -> str:
    architecture = source.architecture
    frequencies = getattr(architecture.position, "frequencies", None)
    scaling = f"/{frequencies.name}" if frequencies is not None else ""
    precision = ", ".join(sorted({str(dtype).removeprefix("torch.") for dtype in source.dtypes.values()}))
    return (
        f"{source.n_parameters / 1e6:,.1f}M parameters in {precision}, {architecture.position.scheme}{scaling}, "
        f"{architecture.visibility.name}, trained at {architecture.seq_len:,} tokens"
    )
