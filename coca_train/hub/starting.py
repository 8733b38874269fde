"""A Hugging Face folder as `start.path`: imported once, into the run's directory, and only if it is the run's model."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from coca_train.checkpoint.opening import read_record
from coca_train.config.schema import Config
from coca_train.hub import config_json, importing, to_coca, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.options import IMPORT, ImportConfig, given
from coca_train.hub.weights import Source
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import flatten

NAME = "start"  # of the imported run, inside the directory of the run that begins from it
OF_TRAINING = {"dropout", "init_std", "init_depth_scaled"}  # nothing that trained weights depend on


def is_folder(path: Path) -> bool:
    """Whether it is a Hugging Face folder, by its config.json."""
    return (path / config_json.NAME).is_file()


def check(config: Config, n_tokens: int, run_dir: Path) -> None:
    """Refuse a folder that this run cannot begin from, before any weight is read; say what the run does otherwise.

    n_tokens: rows of the embedding. Raises as `open_source`, and UserError: E-STA-02 another model, E-STA-03 another
    position scheme, E-STA-04 what was imported before is something else, E-IOP-17 no transformers.
    """
    options = _options(config, run_dir)
    with importing.open_options(options) as source:
        options = _converting(options, source.architecture, config)
        _compare(config, n_tokens, importing.wanted(source, options).architecture)
        if (run_dir / NAME).exists():
            _same_import(run_dir / NAME, importing.provenance(source, options), config)
        else:
            transformers_side.library()


def bring(config: Config, run_dir: Path, proceed: Callable[[], None]) -> None:
    """Import what `check` let pass. Rank 0, holding the run's lock; an import that was killed is removed.

    proceed: called before each tensor; what it raises ends the import.
    """
    for unfinished in run_dir.glob(f".tmp-{NAME}-*"):
        durable.remove_tree(unfinished)
    options = _options(config, run_dir)
    with importing.open_options(options) as source:
        options = _converting(options, source.architecture, config)
        importing.bring(_asking(source, proceed), options)


def _options(config: Config, run_dir: Path) -> ImportConfig:
    """What `import` would be told, but for the position scheme."""
    start = config.start
    return given(
        IMPORT,
        source=str(start.path),
        name=NAME,
        root=str(run_dir),
        t_from_k=start.t_from_k,
        keys=start.keys,
        seed=config.run.seed,
        ignore=start.ignore,
        parity_tokens=start.parity_tokens,
    )


def _converting(options: ImportConfig, architecture: Architecture, config: Config) -> ImportConfig:
    """The same, with the conversion that makes the run's scheme of the folder's."""
    wanted, theirs = config.position, architecture.position
    if wanted.scheme == theirs.scheme:
        narrower = wanted.scheme == "coca" and (theirs.t_width, wanted.t_width) == ("full_mean", "half")
        return replace(options, t_width="half") if narrower else options
    if wanted.scheme == "coca" and theirs.scheme == "rope" and theirs.rotary_pct == 1:
        name: Any = next(name for name, variant in to_coca.VARIANTS.items() if variant == wanted.variant)
        return replace(options, position=name, t_width=wanted.t_width)
    raise UserError(
        f"E-STA-03 start.path={options.source}: its position scheme is {theirs.scheme}, the run's is {wanted.scheme}; "
        f"only a RoPE on the whole head becomes another one, CoCA. Fix: position={theirs.scheme}"
    )


def _compare(config: Config, n_tokens: int, folder: Architecture) -> None:
    """Refuse another model; announce other frequencies and another visibility, which are a run's to choose."""
    mine = Architecture.of(config, n_tokens)
    ours, theirs = _computed(mine), _computed(folder)
    wrong = {key: (theirs.get(key), ours.get(key)) for key in sorted(ours | theirs) if theirs.get(key) != ours.get(key)}
    if _schemes(mine) != _schemes(folder):
        both = [asdict(architecture.layers) for architecture in (folder, mine)]
        wrong |= {f"layers.{key}": (both[0][key], both[1][key]) for key in both[0] if both[0][key] != both[1][key]}
    if wrong:
        raise UserError(
            f"E-STA-02 start.path={config.start.path}: its config.json is not the model of this run: "
            f"{'; '.join(f'{key} is {_word(there)} there, {_word(here)} here' for key, (there, here) in wrong.items())}"
            f". Fix: {' '.join(f'{key}={_word(there)}' for key, (there, _) in wrong.items())}"
        )
    before, now = _chosen(folder), _chosen(mine)
    changed = [key for key in sorted(before | now) if before.get(key) != now.get(key)]
    if changed:
        shown = "; ".join(f"{key} {_word(before.get(key))} -> {_word(now.get(key))}" for key in changed)
        dist.log(f"CHANGED since the weights of {config.start.path} were trained: {shown}")


def _computed(architecture: Architecture) -> dict[str, Any]:
    """What the weights depend on, by key."""
    values = {key: value for key, value in asdict(architecture.complete).items() if key not in OF_TRAINING}
    return flatten({"model": values, "position": _without_frequencies(architecture.position)})


def _schemes(architecture: Architecture) -> list[dict[str, Any]]:
    """The position scheme of every layer."""
    return [_without_frequencies(kind.position) for kind in architecture.kinds]


def _without_frequencies(position: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(position).items() if key != "frequencies"}


def _chosen(architecture: Architecture) -> dict[str, Any]:
    """What a run may choose anew for the same weights, by key."""
    frequencies = asdict(architecture.position).get("frequencies", {})
    layers = {} if architecture.is_uniform else asdict(architecture.layers)
    chosen = {"position": {"frequencies": frequencies}, "visibility": asdict(architecture.visibility), "layers": layers}
    return flatten(chosen)


def _word(value: Any) -> str:
    """A value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _same_import(imported: Path, wanted: dict[str, Any], config: Config) -> None:
    """What an earlier launch imported is what this one would."""
    before = read_record(imported).get("imported", {})
    old, new = flatten(before.get("asked", {})), flatten(wanted["asked"])
    differing = [f"{key} {_word(old.get(key))} -> {_word(new[key])}" for key in new if old.get(key) != new[key]]
    if before.get("digest") != wanted["digest"]:
        differing.insert(0, f"other files in {config.start.path}")
    if differing:
        raise UserError(
            f"E-STA-04 {imported}: was imported from something else: {'; '.join(differing)}; a run begins from one "
            f"folder. Fix: undo the change, remove {imported}, or choose another run.name"
        )


def _asking(source: Source, proceed: Callable[[], None]) -> Source:
    """The source, with a question before each tensor."""

    def read(name: str) -> Tensor:
        proceed()
        return source.read(name)

    return replace(source, read=read)
