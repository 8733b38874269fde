"""`model=from_start`: a configuration that takes from the weights it begins with what they are.

A folder of weights knows its shape, scheme, frequencies, window, vocabulary and tokenizer. They stand in the tree where
the files of the choices stood, below the command line; once the run has a checkpoint, its own config.yaml says the same
and the folder may be gone.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.compose import Assembled
from coca_train.config.load import saved_settings
from coca_train.config.parts import exchanged
from coca_train.data.storage import digest
from coca_train.data.tokenizer import Tokenizer
from coca_train.hub import tokenizer_files
from coca_train.hub.families import FAMILIES
from coca_train.hub.weights import open_source
from coca_train.positions.frequencies import frequency_module
from coca_train.runtime.errors import UserError
from coca_train.runtime.trees import leaves, lookup, section

WINDOW = "${train.seq_len}"  # in the files of frequencies: the window the weights were trained with


def bring(a: Assembled, groups: Mapping[str, str], typed: Callable[[], dict[str, Any]]) -> None:
    """Put what the folder of start.path is into an assembled configuration.

    groups: choices of the command line. typed: the tree as the whole command line has it, resolved. Raises UserError:
    E-CFG-71 no start.path, and as `open_source`.
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
    brought = _of_folder(Path(str(path)), values) if run_dir is None else _of_itself(run_dir)
    window, experiment = brought["train"]["seq_len"], "experiment" in a.choices
    family, theirs = brought.pop("family"), brought["position"]
    position = _position(a.tree["position"], theirs, groups, experiment)
    if "position/frequencies" in groups and "frequencies" in position and not experiment:
        position["frequencies"] = position["frequencies"] | _exportable(position, theirs, family)
    if frequencies := section(position, "frequencies"):
        position["frequencies"] = {key: window if part == WINDOW else part for key, part in frequencies.items()}
    # What an experiment says besides the model is what it is about.
    stays = {"visibility", "layers", "train"} if experiment else groups.keys() - {"model"}  # model=from_start
    brought = {key: part for key, part in brought.items() if key not in stays} | {"position": position}
    where = str(path if run_dir is None else run_dir / "config.yaml")
    for key, part in brought.items():
        a.tree[key] = a.tree[key] | part if key in ("train", "data") else part  # of these a folder knows a part
        a.places |= {name: where for name, _ in leaves(part, key)}


def begun_run(values: dict[str, Any]) -> Path | None:
    """The directory of the run, where it has checkpoints. values: the tree as the command line has it."""
    run_dir = Path(str(lookup(values, "run.root")), str(lookup(values, "run.name")))
    return run_dir if step_folders(run_dir / FOLDER) else None


def _position(
    own: dict[str, Any], theirs: dict[str, Any], groups: Mapping[str, str], experiment: bool
) -> dict[str, Any]:
    """The position section: as the weights have it, but for what is chosen beside them; theta is theirs in any case.

    own: as the files of the choices have it.
    """
    before = section(theirs, "frequencies")
    if experiment:
        theta = {"theta": before["theta"]} if "theta" in before and "theta" in section(own, "frequencies") else {}
        return own | ({"frequencies": own["frequencies"] | theta} if theta else {})
    position = dict(own if "position" in groups else theirs)
    if before and "frequencies" in position:
        chosen = groups.get("position/frequencies")
        position["frequencies"] = exchanged("position/frequencies", chosen, before) if chosen else before
    return position


def _exportable(position: dict[str, Any], theirs: dict[str, Any], family: str | None) -> dict[str, Any]:
    """What of the chosen frequencies is otherwise than their file has it, so that weights which came from a class of
    transformers can go back to it.

    family: of transformers; "": none. None: theirs is the run's own section, as it was when the run began.
    """
    chosen, before = position["frequencies"], section(theirs, "frequencies")
    wanted = getattr(frequency_module(chosen["name"]), "NATIVE", {})
    if family is None:
        return {key: before[key] for key in wanted if before.get("name") == chosen["name"]}
    native = family in FAMILIES and position["scheme"] == theirs["scheme"] and position["rotary_pct"] == 1
    return dict(wanted) if native else {}


def _of_itself(run_dir: Path) -> dict[str, Any]:
    """The same sections of a run that has begun."""
    tree = saved_settings(run_dir / "config.yaml")
    data = {key: tree["data"][key] for key in ("dir", "tokenizer")}
    sections = {key: tree[key] for key in ("model", "position", "visibility", "layers") if key in tree}
    return sections | {"train": {"seq_len": tree["train"]["seq_len"]}, "data": data, "family": None}


def _of_folder(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The sections that a folder of weights decides. values: the tree as the command line has it."""
    start = section(values, "start")
    ignore, keys = tuple(start.get("ignore") or ()), str(start.get("keys", "auto"))
    with open_source(path, ignore=ignore, keys=keys, verified=False) as source:
        sections, family = source.architecture.sections(), source.family
        tokenizer = tokenizer_files.find(source, "auto")
    window = sections.pop("seq_len")
    scale = sections["model"]["logit_scale"]
    if scale["name"] != "none" and scale["length"] is None:
        scale["length"] = window
    data = _data(section(values, "data"), tokenizer) if tokenizer is not None else {}
    return sections | {"train": {"seq_len": window}, "data": data, "family": family}


def _data(data: dict[str, Any], tokenizer: Path) -> dict[str, Any]:
    """The tokenizer of the weights; and a quickstart corpus of their tokens, beside the one it has tokens of its own
    for."""
    here = Path(str(data.get("tokenizer")))
    of_weights = digest(tokenizer)["sha256"]
    if here.is_file() and digest(here)["sha256"] == of_weights:
        return {}
    if data.get("prepare") != "embedded":
        return {"tokenizer": str(tokenizer)}
    ends = Tokenizer(tokenizer)  # the same file may end documents with another token in another folder
    other = "" if ends.identity == ends.digest else f"-{ends.eod}"
    return {"tokenizer": str(tokenizer), "dir": f"{data['dir']}-{of_weights[:8]}{other}"}
