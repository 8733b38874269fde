"""The initial weights of a run: random ones, or those of `start.path`.

`check_start` refuses weights of another model before any is read; `load_initial_weights` imports them into the run's
directory where they are not a run of ours (a Hugging Face folder, or weights that `start.convert` changes), and opens
the resulting checkpoint.
"""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from coca_train import checkpoint
from coca_train.checkpoint.manifest import FOLDER, unused_name
from coca_train.checkpoint.opening import read_record
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.schema import Config
from coca_train.data.storage import digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import config_json, conversions, importing, tokenizer_files, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_keys import Json
from coca_train.hub.options import ImportConfig
from coca_train.hub.weights import Source, open_source
from coca_train.models.init import init_digests
from coca_train.models.transformer import Transformer
from coca_train.positions import SchemeSettings
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import CheckpointError, DataError, Preempted, UserError
from coca_train.runtime.machine import cores
from coca_train.runtime.shutdown import StopRequest
from coca_train.runtime.threads import map_in_threads
from coca_train.runtime.trees import flatten
from coca_train.settings import load_saved
from coca_train.stages import resolve

IMPORTED = "start"  # name of the imported run, inside the directory of the run that begins from it
INDEPENDENT = {"dropout", "init_std", "init_depth_scaled"}  # options of a model that trained weights do not depend on
# Options that a run may change for the same weights: not the base theta.
FREE = re.compile(
    r"(model\.logit_scale|position\.rope_scaling|attention_pattern|layers)\.(?!theta$)|position\.(temperature_on|angle_penalty)$"
)
DIGEST_THREADS = 4  # per rank


class Start(NamedTuple):
    """The run directory of the initial weights, existing or to be imported, and their note for run.json."""

    run_dir: Path
    note: Json


def initial_digests(outline: Transformer, seed: int) -> dict[str, str]:
    """Return `init_digests` of a model, of which each rank draws a part in several threads. COLLECTIVE."""
    names = [name for name, _ in outline.named_parameters()]
    own, n_threads = names[dist.rank() :: dist.world_size()], min(DIGEST_THREADS, cores())
    drawn = map_in_threads(lambda name: init_digests(outline, seed, {name}), own, n_threads)
    mine = {name: digest for part in drawn for name, digest in part.items()}
    everyones = {name: digest for part in dist.all_gather_object(mine) for name, digest in part.items()}
    return {name: everyones[name] for name in names}


def check_start(
    config: Config, run_dir: Path, tokenizer: Tokenizer, n_tokens: int, own_tokens: Callable[[], str | None]
) -> Start | None:
    """Find the weights of `start.path`, refuse those this run cannot begin from; None: the run has a checkpoint.
    COLLECTIVE.

    n_tokens: rows of the embedding. own_tokens: returns the commands that tokenize the data as the weights need it.
    Raises UserError before any weight is read: E-CKP-26 nothing to begin from, E-STA-01 another tokenizer, E-STA-02
    another model, E-STA-03 another position scheme, E-STA-04 an earlier launch imported something else, E-STA-06 no
    such conversion, E-IOP-14 a conversion that cannot be made, E-IOP-17 no transformers; and as `open_source`.
    """

    def check() -> Start | None:
        if step_folders(run_dir / FOLDER):
            return None
        _check_tokenizer(config, tokenizer, _tokenizers_of(config), own_tokens)
        return _check_compatible(config, n_tokens, run_dir)

    return dist.broadcast_from_rank0(check)


def load_initial_weights(
    config: Config, n_tokens: int, run_dir: Path, begins_from: Path, lock: checkpoint.RunLock
) -> checkpoint.Checkpoint:
    """Open the newest checkpoint of the run that `check_start` returned, after importing it if needed. COLLECTIVE.

    Raises Preempted when a stop is requested during the import.
    """
    # Rank 0 decides: on a network folder ranks may disagree, and some would wait in an import that others skip.
    if not dist.broadcast_from_rank0(begins_from.exists):
        wait = "; the other ranks wait" if dist.world_size() > 1 else ""
        dist.log(f"start     importing {config.start.path} into {begins_from}{wait}")
        # The request is checked before each tensor; the import is then removed, and all ranks end alike.
        with StopRequest() as stop:
            lock.alone(lambda: _import_start(config, n_tokens, run_dir, stop))
    if (newest := checkpoint.find(begins_from)) is None:
        raise _unfinished(config)
    dist.broadcast_from_rank0(lambda: _warn_if_unfinished(config, begins_from, newest.step))
    return newest


def _import_start(config: Config, n_tokens: int, run_dir: Path, stop: StopRequest) -> None:
    """Import what `check_start` accepted, after removing a killed import. Rank 0, holding the run's lock."""
    for unfinished in run_dir.glob(f".tmp-{IMPORTED}-*"):
        durable.remove_tree(unfinished)
    with _open(config, verified=True) as opened:

        def read(name: str) -> Tensor:
            if stop.received:
                raise Preempted(
                    "stopped while importing start.path, nothing is kept; the same command starts the import again"
                )
            return opened.read(name)

        source = replace(opened, read=read)
        converted, done = conversions.apply(source, Architecture.of(config, n_tokens), config.start, config.run.seed)
        importing.write_run(source, converted, _import_options(config, run_dir), done)


def _open(config: Config, verified: bool) -> Source:
    start = config.start
    return open_source(str(start.path), ignore=tuple(start.ignore), keys=start.keys, verified=verified)


def _import_options(config: Config, run_dir: Path) -> ImportConfig:
    """Return the options that the verb `import` would have, except for conversions."""
    start = config.start
    return ImportConfig(
        source=str(start.path),
        name=IMPORTED,
        root=str(run_dir),
        t_from_k=start.t_from_k,
        keys=start.keys,
        seed=config.run.seed,
        ignore=start.ignore,
        parity_tokens=start.parity_tokens,
    )


def _warn_if_unfinished(config: Config, run_dir: Path, step: int) -> None:
    """Warn where the weights are of a run that has not ended."""
    try:
        last_step = 0 if "imported" in read_record(run_dir) else resolve(load_saved(run_dir).config)[-1].last_step
    except UserError:
        return  # only its weights are needed
    if step < last_step:
        dist.log(f"WARNING: start.path={config.start.path} has not ended: it is at step {step:,} of {last_step:,}")


def _unfinished(config: Config) -> CheckpointError:
    return CheckpointError(
        f"E-CKP-26 start.path={config.start.path}: holds no finished checkpoint. Fix: finish that run first"
    )


def _tokenizers_of(config: Config) -> dict[str, Path]:
    """Return the SHA-256 and the path of each tokenizer file that belongs to the weights; empty: not known."""
    path = Path(str(config.start.path))
    if not (path / FOLDER).is_dir():
        if not config_json.is_folder(path):
            raise CheckpointError(
                f"E-CKP-26 start.path={path}: no run directory (it has no checkpoints) and no Hugging Face folder (it "
                "has no config.json). Fix: give one of the two; a model of the hub is downloaded first: hf download "
                "NAME --local-dir FOLDER"
            )
        return tokenizer_files.digests(path)
    if not step_folders(path / FOLDER):
        raise _unfinished(config)
    record = read_record(path)
    sha = (record["fingerprint"].get("tokenizer") or {}).get("sha256")
    if sha is None:
        return {}
    file = Path(record.get("folder", ""), record.get("settings", {}).get("data.tokenizer", "tokenizer"))
    return {sha: file} | tokenizer_files.digests(path / tokenizer_files.FOLDER) | tokenizer_files.digests(path)


def _check_tokenizer(
    config: Config, ours: Tokenizer, theirs: dict[str, Path], own_tokens: Callable[[], str | None]
) -> None:
    """Refuse weights of another tokenizer, E-STA-01. theirs: by `_tokenizers_of`."""
    path = config.start.path
    if not theirs:
        dist.log(f"WARNING: start.path={path} does not name the tokenizer of its weights; nothing is compared")
        return
    if ours.digest in theirs:
        return
    sha, file = next(iter(theirs.items()))
    what = f"start.path={path}: its weights belong to the tokenizer {file} ({sha[:12]}), data.tokenizer={ours.path} is "
    what += ours.digest[:12]
    if not config.start.check_tokenizer:
        dist.log(f"WARNING: {what}; start.check_tokenizer=false accepts them")
        return
    fix = "restore that file and set data.tokenizer"
    if file.is_file() and digest(file)["sha256"] == sha:
        fix = f"data.tokenizer={file} where the data are of its tokens; else {own_tokens()}"
    raise DataError(
        f"E-STA-01 {what}; the same ids would mean other text. Fix: {fix}; or, where the ids agree (an extended "
        "vocabulary), start.check_tokenizer=false"
    )


def _check_compatible(config: Config, n_tokens: int, run_dir: Path) -> Start:
    """Refuse weights of another model, and log what the run changes of theirs."""
    mine = Architecture.of(config, n_tokens)
    with _open(config, verified=False) as source:
        converted, done = conversions.apply(source, mine, config.start, config.run.seed)
        _refuse_incompatible(config, converted.architecture, mine)
        if unneeded := [name for name in config.start.convert if name not in done]:
            dist.log(f"start     start.convert={','.join(unneeded)} has no effect: the weights are so already")
        for line in (changed := _changes(source.architecture, converted.architecture, mine, done)):
            dist.log(f"CHANGED since the weights of {config.start.path} were trained: {line}")
        note = {"origin": source.origin, "converted": done, "changed": changed}
        if source.kind == "run" and not done:
            return Start(source.path, note)
        if (run_dir / IMPORTED).exists():
            record = importing.import_record(source, _import_options(config, run_dir), done)
            _check_same_import(run_dir / IMPORTED, record, config)
        elif source.kind == "huggingface":
            transformers_side.library()
        return Start(run_dir / IMPORTED, note)


def _refuse_incompatible(config: Config, theirs: Architecture, mine: Architecture) -> None:
    """Raise UserError E-STA-02 or E-STA-03 where the weights, after the declared conversions, are of another model."""
    wrong = _differences(theirs, mine)
    if not wrong:
        return
    ways = [name for name in conversions.ways(theirs, mine) if name not in config.start.convert]
    declared = f", or start.convert={','.join([*config.start.convert, *ways])}" if ways else ""
    if "position.scheme" in wrong:
        own, scheme = theirs.position.scheme, mine.position.scheme
        way = "only a declared conversion changes it" if ways else "no conversion leads from one to the other"
        raise UserError(
            f"E-STA-03 start.path={config.start.path}: its position scheme is {own}, the run's is {scheme}; {way}. "
            f"Fix: position={own}{declared}"
        )
    file = "config.json" if config_json.is_folder(Path(str(config.start.path))) else "config.yaml"
    raise UserError(
        f"E-STA-02 start.path={config.start.path}: its {file} is not the model of this run: "
        f"{'; '.join(f'{key} is {_word(old)}, not {_word(new)}' for key, (old, new) in wrong.items())}"
        f". Fix: {' '.join(f'{key}={_word(old)}' for key, (old, _) in wrong.items())}{declared}"
    )


def _differences(theirs: Architecture, mine: Architecture) -> dict[str, tuple[object, object]]:
    """Return (theirs, ours) of every option that weights depend on and that differs."""
    wrong = {key: pair for key, pair in _differing(theirs, mine).items() if not FREE.match(key)}
    by_layer = [[_fixed_position(kind.position) for kind in each.layer_types] for each in (theirs, mine)]
    if by_layer[0] != by_layer[1]:
        layers = [{f"layers.{key}": value for key, value in asdict(each.layers).items()} for each in (theirs, mine)]
        wrong |= _pairs(*layers)
    # Of tables by distance, rows of later keys would be missing, or mean earlier ones.
    both = [[kind.attention_pattern.name == "bidirectional" for kind in each.layer_types] for each in (theirs, mine)]
    if both[0] != both[1]:
        names = (theirs.attention_pattern.name, mine.attention_pattern.name)
        wrong["attention_pattern"] = names
    return wrong


def _differing(theirs: Architecture, mine: Architecture) -> dict[str, tuple[object, object]]:
    return _pairs(_options(theirs), _options(mine))


def _options(architecture: Architecture) -> Json:
    """Return the options of an architecture that its weights or its runs depend on, by dotted key."""
    model = {key: value for key, value in asdict(architecture.complete).items() if key not in INDEPENDENT}
    scale = architecture.model.logit_scale
    if scale.name != "none" and scale.length is None:  # the training window, which the two need not share
        scale = replace(scale, length=architecture.seq_len)
    return flatten(
        {
            "model": model | {"logit_scale": asdict(scale)},
            "position": asdict(architecture.position),
            "attention_pattern": asdict(architecture.attention_pattern),
            "layers": {} if architecture.is_uniform else asdict(architecture.layers),
        }
    )


def _fixed_position(position: SchemeSettings) -> Json:
    """Return the options of a position section that a run cannot change."""
    return {key: value for key, value in flatten({"position": asdict(position)}).items() if not FREE.match(key)}


def _changes(before: Architecture, theirs: Architecture, mine: Architecture, done: list[str]) -> list[str]:
    """Describe what the run changes: a line for the conversions, and a line for the options.

    before: of the weights. theirs: after the conversions `done`.
    """
    lines = []
    if done:
        summaries = conversions.summaries()
        words = "; ".join(f"{name}: {summaries[name]}" for name in done)
        lines.append(f"{_describe(_differences(before, theirs))} ({words})")
    if changed := {key: pair for key, pair in _differing(theirs, mine).items() if FREE.match(key)}:
        lines.append(_describe(changed))
    return lines


def _pairs(old: Json, new: Json) -> dict[str, tuple[object, object]]:
    """Return (old, new) of every key with different values."""
    return {key: (old.get(key), new.get(key)) for key in sorted(old | new) if old.get(key) != new.get(key)}


def _describe(changed: dict[str, tuple[object, object]]) -> str:
    return "; ".join(f"{key} {_word(old)} -> {_word(new)}" for key, (old, new) in changed.items())


def _word(value: object) -> str:
    """Return a value as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _check_same_import(imported: Path, wanted: importing.ImportRecord, config: Config) -> None:
    """Raise UserError E-STA-04 where an earlier launch imported something else."""
    before = read_record(imported).get("imported", {})
    changed = _pairs(flatten(before.get("asked", {})), flatten(wanted["asked"]))
    differing = [_describe({key: pair}) for key, pair in changed.items()]
    if before.get("digest") != wanted["digest"]:
        differing.insert(0, f"other files in {config.start.path}")
    if differing:
        raise UserError(
            f"E-STA-04 {imported}: was imported from something else: {'; '.join(differing)}; a run begins from one "
            f"folder. Fix: undo the change, remove {imported}, or begin another run: {unused_name(imported.parent)}"
        )
