"""`model=from_start`: a configuration with the shape, scheme, frequencies, window, vocabulary and tokenizer of the
weights of `start.path`.

They replace the values of the chosen files, below the command line. Once the run has a checkpoint, its own config.yaml
has the same values, and the folder is no longer needed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.compose import Assembled
from coca_train.config.inheritance import exchange_choice
from coca_train.config.load import saved_settings
from coca_train.data.storage import digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import tokenizer_files
from coca_train.hub.families import FAMILIES
from coca_train.hub.weights import open_source
from coca_train.positions.rope_scaling import settings_class
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import leaves, lookup, section

WINDOW = "${train.seq_len}"  # in the files of frequencies: the window the weights were trained with


def configure_from_weights(a: Assembled, groups: Mapping[str, str], typed: Callable[[], dict[str, Any]]) -> None:
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
    sections = _sections_of_folder(Path(str(path)), values) if run_dir is None else _sections_of_run(run_dir)
    window, experiment = sections["train"]["seq_len"], "experiment" in a.choices
    family, theirs = sections.pop("family"), sections["position"]
    position = _position(section(a.tree, "position"), theirs, groups, experiment)
    if "position/rope_scaling" in groups and "rope_scaling" in position and not experiment:
        position["rope_scaling"] = position["rope_scaling"] | _native_words(position, theirs, family)
    if rope_scaling := section(position, "rope_scaling"):
        position["rope_scaling"] = {key: window if part == WINDOW else part for key, part in rope_scaling.items()}
    # An experiment's own values besides the model stay.
    stays = {"attention_pattern", "layers", "train"} if experiment else groups.keys() - {"model"}  # model=from_start
    sections = {key: part for key, part in sections.items() if key not in stays} | {"position": position}
    where = str(path if run_dir is None else run_dir / "config.yaml")
    for key, part in sections.items():
        # Of two of them a folder knows only a part.
        a.tree[key] = section(a.tree, key) | part if key in ("train", "data") else part
        a.places |= {name: where for name, _ in leaves(part, key)}


def begun_run(values: dict[str, Any]) -> Path | None:
    """Return the directory of the run if it has checkpoints. values: the tree with the command line."""
    run_dir = Path(str(lookup(values, "run.root")), str(lookup(values, "run.name")))
    return run_dir if step_folders(run_dir / FOLDER) else None


def _position(
    own: dict[str, Any], theirs: dict[str, Any], groups: Mapping[str, str], experiment: bool
) -> dict[str, Any]:
    """Return the position section of the weights, or the chosen one; theta is always that of the weights.

    own: of the chosen files.
    """
    before = section(theirs, "rope_scaling")
    if experiment:
        theta = {"theta": before["theta"]} if "theta" in before and "theta" in section(own, "rope_scaling") else {}
        return own | ({"rope_scaling": own["rope_scaling"] | theta} if theta else {})
    position = dict(own if "position" in groups else theirs)
    if before and "rope_scaling" in position:
        chosen = groups.get("position/rope_scaling")
        position["rope_scaling"] = exchange_choice("position/rope_scaling", chosen, before) if chosen else before
    return position


def _native_words(position: dict[str, Any], theirs: dict[str, Any], family: str | None) -> dict[str, Any]:
    """Return options of the chosen frequencies with which weights of a class of transformers export to it again.

    family: of transformers; "": none. None: theirs is the section of the run itself, when it began.
    """
    chosen, before = position["rope_scaling"], section(theirs, "rope_scaling")
    wanted = settings_class(chosen["name"]).NATIVE
    if family is None:
        return {key: before[key] for key in wanted if before.get("name") == chosen["name"]}
    native = family in FAMILIES and position["scheme"] == theirs["scheme"] and position["rotary_pct"] == 1
    return dict(wanted) if native else {}


def _sections_of_run(run_dir: Path) -> dict[str, Any]:
    """Return the sections of a run that has begun, as `_sections_of_folder` returns them."""
    tree = saved_settings(run_dir / "config.yaml")
    data = {key: lookup(tree, f"data.{key}") for key in ("dir", "tokenizer")}
    sections = {key: tree[key] for key in ("model", "position", "attention_pattern", "layers") if key in tree}
    return sections | {"train": {"seq_len": lookup(tree, "train.seq_len")}, "data": data, "family": None}


def _sections_of_folder(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the sections that a folder of weights determines. values: the tree with the command line."""
    start = section(values, "start")
    ignore, keys = start.get("ignore"), str(start.get("keys", "auto"))
    ignored = tuple(ignore) if isinstance(ignore, list) else ()
    with open_source(path, ignore=ignored, keys=keys, verified=False) as source:
        sections, family = source.architecture.sections(), source.family
        tokenizer = tokenizer_files.find(source, "auto")
    window = sections.pop("seq_len")
    scale = sections["model"]["logit_scale"]
    if scale["name"] != "none" and scale["length"] is None:
        scale["length"] = window
    data = _data(section(values, "data"), tokenizer) if tokenizer is not None else {}
    return sections | {"train": {"seq_len": window}, "data": data, "family": family}


def _data(data: dict[str, Any], tokenizer: Path) -> dict[str, Any]:
    """Return the tokenizer of the weights, and for the quickstart corpus a folder for their tokens, next to its own."""
    configured, of_weights = Path(str(data.get("tokenizer"))), digest(tokenizer)["sha256"]
    if configured.is_file() and digest(configured)["sha256"] == of_weights:
        return {}
    if data.get("prepare") != "embedded":
        return {"tokenizer": str(tokenizer)}
    ends = Tokenizer(tokenizer)  # the same file may end documents with another token in another folder
    other = "" if ends.identity == ends.digest else f"-{ends.eod}"
    return {"tokenizer": str(tokenizer), "dir": f"{data['dir']}-{of_weights[:8]}{other}"}
