"""`model=from_start`: a configuration with the shape, scheme, frequencies, window, vocabulary and tokenizer of the
weights of `start.path`.

They replace the values of the chosen files, below the command line. Once the run has a checkpoint, its own config.yaml
has the same values, and the folder is no longer needed.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.compose import Assembled
from coca_train.config.inheritance import exchange_choice
from coca_train.config.load import saved_settings
from coca_train.config.places import place_of
from coca_train.data.storage import digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import tokenizer_files
from coca_train.hub.config_keys import Json
from coca_train.hub.families import FAMILIES
from coca_train.hub.weights import open_source
from coca_train.positions.rope_scaling import settings_class
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import flatten, leaves, lookup, section

UNCHANGED = {"attention_pattern": "causal", "layers": "uniform"}  # choices of configs/train.yaml
WINDOW = "${train.seq_len}"  # in the files of frequencies: the window the weights were trained with


class Known(NamedTuple):
    """What weights determine of a configuration. sections: train and data in part. family: of transformers; "": none;
    None: the sections are those of the run itself, when it began."""

    sections: dict[str, Json]
    family: str | None


def configure_from_weights(a: Assembled, groups: Mapping[str, str], typed: Callable[[], Json]) -> None:
    """Write the architecture of start.path into an assembled configuration.

    groups: choices of the command line. typed: returns the tree with all of the command line, resolved. Raises
    UserError E-CFG-71 without a start.path, and as `open_source`.
    """
    values = typed()
    path = section(values, "start").get("path")
    if path is None and a.choices.get("model") != "from_start":
        return  # start.path=null
    if path is None:
        raise UserError(
            "E-CFG-71 model=from_start: there is no start.path to take it from. Fix: start.path=<folder of a run or of "
            "a Hugging Face model>, or another model"
        )
    run_dir = begun_run(values)
    known = _of_folder(Path(str(path)), values) if run_dir is None else _of_run(run_dir)
    window, experiment = known.sections["train"]["seq_len"], "experiment" in a.choices
    own: dict[str, object] = {}  # what an experiment for any model says itself, other than choices
    if experiment and a.of_files["model"] == a.choices["model"]:  # it is for any model, and says what it is about
        says = ["position", *(group for group, usual in UNCHANGED.items() if a.of_files[group] != usual)]
        experiment, groups = False, {**groups, **{group: a.choices[group] for group in says}}
        said = flatten({key: section(a.tree, key) for key in ("model", *UNCHANGED)})
        own = {name: value for name, value in said.items() if _is_of_experiment(name, a)}
    position = _position(section(a.tree, "position"), known.sections["position"], groups, experiment)
    if rope_scaling := section(position, "rope_scaling"):
        if "position/rope_scaling" in groups and not experiment:
            rope_scaling |= _native_words(position, known)
        position["rope_scaling"] = {key: window if part == WINDOW else part for key, part in rope_scaling.items()}
    # What an experiment with a model of its own says besides that stays.
    stays = {"attention_pattern", "layers", "train"} if experiment else groups.keys() - {"model"}  # model=from_start
    stays |= {"train"} if _is_of_experiment("train.seq_len", a) else set()
    sections = {key: part for key, part in known.sections.items() if key not in stays} | {"position": position}
    where = str(path if run_dir is None else run_dir / "config.yaml")
    for key, part in sections.items():
        # Of two of them a folder knows only a part.
        a.tree[key] = section(a.tree, key) | part if key in ("train", "data") else part
        a.places |= {name: where for name, _ in leaves(part, key) if name not in own}
    for name, value in own.items():
        *parents, leaf = name.split(".")
        within = a.tree
        for parent in parents:
            inner = within.setdefault(parent, {})
            assert isinstance(inner, dict), "of a section, by the file that says it"
            within = inner
        within[leaf] = value


def _is_of_experiment(key: str, a: Assembled) -> bool:
    """Whether an experiment's file, of ours or of --config-dir, sets a key."""
    return Path(place_of(key, a.places).rpartition(":")[0]).parent.name == "experiment"


def begun_run(values: Json) -> Path | None:
    """Return the directory of the run if it has checkpoints. values: the tree with the command line."""
    run_dir = Path(str(lookup(values, "run.root")), str(lookup(values, "run.name")))
    return run_dir if step_folders(run_dir / FOLDER) else None


def _position(own: Json, theirs: Json, groups: Mapping[str, str], experiment: bool) -> Json:
    """Return the position section of the weights, or the chosen one; theta and the rotated share of a head are always
    those of the weights.

    own: of the chosen files.
    """
    before = section(theirs, "rope_scaling")
    if "rotary_pct" in own and "rotary_pct" in theirs:
        own = own | {key: theirs[key] for key in ("rotary_pct", "temperature_on") if key in theirs}
    if experiment:
        mine = section(own, "rope_scaling")
        keeps = "theta" not in before or "theta" not in mine
        return own if keeps else own | {"rope_scaling": mine | {"theta": before["theta"]}}
    position = dict(own if "position" in groups else theirs)
    if before and "rope_scaling" in position:
        chosen = groups.get("position/rope_scaling")
        position["rope_scaling"] = exchange_choice("position/rope_scaling", chosen, before) if chosen else before
    return position


def _native_words(position: Json, known: Known) -> Json:
    """Return options of the chosen frequencies with which weights of a class of transformers export to it again."""
    theirs, chosen = known.sections["position"], str(section(position, "rope_scaling")["name"])
    wanted, before = settings_class(chosen).NATIVE, section(theirs, "rope_scaling")
    if known.family is None:
        return {key: before[key] for key in wanted if before.get("name") == chosen}
    native = known.family in FAMILIES and position["scheme"] == theirs["scheme"]
    return dict(wanted) if native else {}


def _of_run(run_dir: Path) -> Known:
    """Return what a run that has begun says."""
    tree = saved_settings(run_dir / "config.yaml")
    named = ("model", "position", "attention_pattern", "layers")
    sections = {key: section(tree, key) for key in named if key in tree}
    data = {key: lookup(tree, f"data.{key}") for key in ("dir", "tokenizer")}
    return Known(sections | {"train": {"seq_len": lookup(tree, "train.seq_len")}, "data": data}, None)


def _of_folder(path: Path, values: Json) -> Known:
    """Return what a folder of weights says. values: the tree with the command line."""
    start = section(values, "start")
    ignore, keys = start.get("ignore"), str(start.get("keys", "auto"))
    ignored = tuple(ignore) if isinstance(ignore, list) else ()
    with open_source(path, ignore=ignored, keys=keys, verified=False) as source:
        architecture, family = source.architecture, source.family
        tokenizer = tokenizer_files.find(source, "auto")
    scale = architecture.model.logit_scale
    if scale.name != "none" and scale.length is None:
        scale = replace(scale, length=architecture.seq_len)
    sections = architecture.sections()
    data = _data(section(values, "data"), tokenizer) if tokenizer is not None else {}
    return Known(
        {
            "model": sections["model"] | {"logit_scale": asdict(scale)},
            "position": sections["position"],
            "attention_pattern": sections["attention_pattern"],
            "layers": sections["layers"],
            "train": {"seq_len": architecture.seq_len},
            "data": data,
        },
        family,
    )


def _data(data: Json, tokenizer: Path) -> Json:
    """Return the tokenizer of the weights, and for the quickstart corpus a folder for their tokens, next to its own."""
    configured, of_weights = Path(str(data.get("tokenizer"))), digest(tokenizer)["sha256"]
    if configured.is_file() and digest(configured)["sha256"] == of_weights:
        return {}
    if data.get("prepare") != "embedded":
        return {"tokenizer": str(tokenizer)}
    ends = Tokenizer(tokenizer)  # the same file may end documents with another token in another folder
    other = "" if ends.identity == ends.digest else f"-{ends.eod}"
    return {"tokenizer": str(tokenizer), "dir": f"{data['dir']}-{of_weights[:8]}{other}"}
