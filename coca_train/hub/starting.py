"""The weights that `start.path` names, held against the run that begins with them: nothing they mean changes unsaid.

A Hugging Face folder is imported into the run's directory first, and so are the weights of a run that
`start.convert` makes something else of.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from coca_train.checkpoint.manifest import unused_name
from coca_train.checkpoint.opening import read_record
from coca_train.config.schema import Config
from coca_train.hub import config_json, conversions, importing, transformers_side
from coca_train.hub.architecture import Architecture
from coca_train.hub.options import IMPORT, ImportConfig, given
from coca_train.hub.weights import Source, open_source
from coca_train.runtime import dist, durable
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import flatten

NAME = "start"  # of the imported run, inside the directory of the run that begins from it
OF_TRAINING = {"dropout", "init_std", "init_depth_scaled"}  # nothing that trained weights depend on
CHOSEN = "logit_scale"  # of the model section, what a run may choose anew as it chooses frequencies


class Start(NamedTuple):
    """Where a run's first weights are, or will be when they are imported; and what run.json keeps of it."""

    run_dir: Path
    note: dict[str, Any]


def is_folder(path: Path) -> bool:
    """Whether it is a Hugging Face folder, by its config.json."""
    return (path / config_json.NAME).is_file()


def check(config: Config, n_tokens: int, run_dir: Path) -> Start:
    """Refuse weights that this run cannot begin from, before any is read; say what the run does otherwise.

    n_tokens: rows of the embedding. Raises as `open_source`, and UserError: E-STA-02 another model, E-STA-03 another
    position scheme, E-STA-04 what was imported before is something else, E-STA-06 no such conversion, E-IOP-14 a
    conversion that cannot be made, E-IOP-17 no transformers.
    """
    mine = Architecture.of(config, n_tokens)
    with _opened(config, verified=False) as source:
        converted, done = conversions.apply(source, mine, config.start, config.run.seed)
        _refuse_other(config, converted.architecture, mine)
        if unneeded := [name for name in config.start.convert if name not in done]:
            dist.log(f"start     start.convert={','.join(unneeded)} has nothing to do: the weights are so already")
        for line in (changed := _changes(source.architecture, converted.architecture, mine, done)):
            dist.log(f"CHANGED since the weights of {config.start.path} were trained: {line}")
        note = {"origin": source.origin, "converted": done, "changed": changed}
        if source.kind == "run" and not done:
            return Start(source.path, note)
        if (run_dir / NAME).exists():
            _same_import(run_dir / NAME, importing.provenance(source, _options(config, run_dir), done), config)
        elif source.kind == "huggingface":
            transformers_side.library()
        return Start(run_dir / NAME, note)


def bring(config: Config, n_tokens: int, run_dir: Path, proceed: Callable[[], None]) -> None:
    """Import what `check` let pass. Rank 0, holding the run's lock; an import that was killed is removed.

    proceed: called before each tensor; what it raises ends the import.
    """
    for unfinished in run_dir.glob(f".tmp-{NAME}-*"):
        durable.remove_tree(unfinished)
    with _opened(config, verified=True) as opened:
        source = _asking(opened, proceed)
        mine = Architecture.of(config, n_tokens)
        converted, done = conversions.apply(source, mine, config.start, config.run.seed)
        importing.bring(source, converted, _options(config, run_dir), done)


def _opened(config: Config, verified: bool) -> Source:
    start = config.start
    return open_source(str(start.path), ignore=tuple(start.ignore), keys=start.keys, verified=verified)


def _options(config: Config, run_dir: Path) -> ImportConfig:
    """What `import` would be told, but for the conversions."""
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


def _refuse_other(config: Config, theirs: Architecture, mine: Architecture) -> None:
    """Raises UserError where the weights mean something else in this run. theirs: what declared conversions have made
    of them."""
    wrong = _differences(theirs, mine)
    if not wrong:
        return
    ways = [name for name in conversions.ways(theirs, mine) if name not in config.start.convert]
    declared = f", or start.convert={','.join([*config.start.convert, *ways])}" if ways else ""
    if "position.scheme" in wrong:
        own, scheme = theirs.position.scheme, mine.position.scheme
        way = (
            "it becomes another one only where the run declares it"
            if ways
            else "no conversion leads from one to the other"
        )
        raise UserError(
            f"E-STA-03 start.path={config.start.path}: its position scheme is {own}, the run's is {scheme}; {way}. "
            f"Fix: position={own}{declared}"
        )
    raise UserError(
        f"E-STA-02 start.path={config.start.path}: {_said_in(config)} is not the model of this run: "
        f"{'; '.join(f'{key} is {_word(there)} there, {_word(here)} here' for key, (there, here) in wrong.items())}"
        f". Fix: {' '.join(f'{key}={_word(there)}' for key, (there, _) in wrong.items())}{declared}"
    )


def _said_in(config: Config) -> str:
    return "its config.json" if is_folder(Path(str(config.start.path))) else "its config.yaml"


def _differences(theirs: Architecture, mine: Architecture) -> dict[str, tuple[Any, Any]]:
    """(there, here) of everything that gives weights their meaning, by key, where the two differ."""
    wrong = _differing(_meaning(theirs), _meaning(mine))
    if _of_layers(theirs) != _of_layers(mine):
        both = [asdict(architecture.layers) for architecture in (theirs, mine)]
        wrong |= {f"layers.{key}": (both[0][key], both[1][key]) for key in both[0] if both[0][key] != both[1][key]}
    return wrong


def _meaning(architecture: Architecture) -> dict[str, Any]:
    """What the weights depend on, by key."""
    model = {key: value for key, value in asdict(architecture.complete).items() if key not in {CHOSEN, *OF_TRAINING}}
    return flatten({"model": model, "position": _weighty(architecture.position)})


def _of_layers(architecture: Architecture) -> list[dict[str, Any]]:
    """The same of the position of every layer."""
    return [_weighty(kind.position) for kind in architecture.kinds]


def _weighty(position: Any) -> dict[str, Any]:
    """Of a position section: its scaling is a run's to choose, its base is not."""
    values = asdict(position)
    theta = (values.pop("frequencies", None) or {}).get("theta")
    return values | ({"frequencies": {"theta": theta}} if theta is not None else {})


def _changes(before: Architecture, theirs: Architecture, mine: Architecture, done: list[str]) -> list[str]:
    """What is otherwise than where the weights come from, a line for conversions and a line for what was chosen."""
    lines = []
    if done:
        summaries = conversions.summaries()
        words = "; ".join(f"{name}: {summaries[name]}" for name in done)
        lines.append(f"{_in_words(_differences(before, theirs))} ({words})")
    if changed := _differing(_chosen(theirs), _chosen(mine)):
        lines.append(_in_words(changed))
    return lines


def _differing(there: dict[str, Any], here: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {key: (there.get(key), here.get(key)) for key in sorted(there | here) if there.get(key) != here.get(key)}


def _in_words(changed: dict[str, tuple[Any, Any]]) -> str:
    return "; ".join(f"{key} {_word(old)} -> {_word(new)}" for key, (old, new) in changed.items())


def _chosen(architecture: Architecture) -> dict[str, Any]:
    """What a run may choose anew for the same weights, by key."""
    frequencies = asdict(architecture.position).get("frequencies", {})
    frequencies = {key: value for key, value in frequencies.items() if key != "theta"}
    scale = architecture.model.logit_scale
    if scale.name != "none" and scale.length is None:  # then it is the training window's, which is not the same in both
        scale = replace(scale, length=architecture.seq_len)
    layers = {} if architecture.is_uniform else asdict(architecture.layers)
    return flatten(
        {
            "model": {CHOSEN: asdict(scale)},
            "position": {"frequencies": frequencies},
            "visibility": asdict(architecture.visibility),
            "layers": layers,
        }
    )


def _word(value: Any) -> str:
    """A value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _same_import(imported: Path, wanted: dict[str, Any], config: Config) -> None:
    """What an earlier launch imported is what this one would."""
    before = read_record(imported).get("imported", {})
    changed = _differing(flatten(before.get("asked", {})), flatten(wanted["asked"]))
    differing = [_in_words({key: pair}) for key, pair in changed.items()]
    if before.get("digest") != wanted["digest"]:
        differing.insert(0, f"other files in {config.start.path}")
    if differing:
        raise UserError(
            f"E-STA-04 {imported}: was imported from something else: {'; '.join(differing)}; a run begins from one "
            f"folder. Fix: undo the change, remove {imported}, or begin another run: {unused_name(imported.parent)}"
        )


def _asking(source: Source, proceed: Callable[[], None]) -> Source:
    """The source, with a question before each tensor."""

    def read(name: str) -> Tensor:
        proceed()
        return source.read(name)

    return replace(source, read=read)
