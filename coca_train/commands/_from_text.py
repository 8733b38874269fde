"""`data.path`: a configuration that reads what is made of a folder of texts.

Where that lies, its sources and the size of its vocabulary stand in the tree where the data choice stood, below the
command line. A run that has begun goes on with what it began with, also where the folder has changed since, or is gone.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coca_train.checkpoint.manifest import FOLDER
from coca_train.checkpoint.recovery import step_folders
from coca_train.config.compose import Assembled
from coca_train.config.messages import Problem
from coca_train.data.storage import digest
from coca_train.runtime import dist, untrusted_io
from coca_train.runtime.errors import DataError
from coca_train.runtime.trees import leaves, lookup, section
from coca_train.runtime.untrusted_io import JsonObject
from coca_train.settings import TOKENIZERS
from data_prep.text_folder import TextFolder, finished_vocab_size, is_finished, newest, sources

ROOT = "${oc.env:COCA_TRAIN_DATA,data}"
OPTIONS = ("text_field", "vocab_size", "valid_share", "on_error")


def derive_data(a: Assembled, typed: Callable[[], dict[str, object]]) -> None:
    """Put what data.path stands for into an assembled configuration.

    typed: the tree as the whole command line has it, resolved. Raises DataError E-RAW-01, 02 for a folder that holds
    nothing to read, and what the tokenizer of `start.path` raises.
    """
    values = typed()
    data = section(values, "data")
    path = data.get("path")
    if not isinstance(path, str) or not path.strip():
        return
    run_dir = Path(str(lookup(values, "run.root")), str(lookup(values, "run.name")))
    before = _began_with(run_dir, path, data)
    tokenizer = _given_tokenizer(a, values, before)
    said: dict[str, Any] = {option: data[option] for option in OPTIONS}
    text = TextFolder(path=path, tokenizer=None if tokenizer is None else _digest(tokenizer), **said)
    chosen = {word.partition("=")[0].lstrip("+") for word in a.overrides}
    brought: dict[str, Any] = {"prepare": "none", "sources": sources()}
    given = Path(str(data["dir"])) if "data.dir" in chosen else None
    if given is not None and is_finished(given):  # made before, perhaps of a folder that is not on this machine
        brought |= {"dir": str(given), "vocab_size": finished_vocab_size(given)}
    else:
        try:
            brought |= {"dir": f"{ROOT}/{text.folder}/{text.key}", "vocab_size": text.fitting_vocabulary}
        except DataError as error:
            if before is None:
                raise _of_begun(error, run_dir) from error
            dist.log(f"data      {path} cannot be read now; the run goes on with what was made of it: {before['dir']}")
            brought |= before
        else:
            brought |= (_as_begun(text, before) or {}) if given is None else {}
    brought["tokenizer"] = f"${{data.dir}}/{TOKENIZERS[0]}" if tokenizer is None else str(tokenizer)
    made = _resolved(str(data["dir"] if "data.dir" in chosen else brought["dir"]))
    _refuse_inside(a, path, {"data.dir": made, "run.root": run_dir})
    section(a.tree, "data").update(brought)
    a.places |= {key: f"data.path={path}" for key, _ in leaves(brought, "data")}


def _of_begun(error: DataError, run_dir: Path) -> DataError:
    """What a run that was copied here needs to go on."""
    if not step_folders(run_dir / FOLDER):
        return error
    return DataError(
        f"{error}; {run_dir} has begun and goes on with the text that it began with: the folder where it lies now, "
        f"data.path=<folder> run.name={run_dir.name}, or what was made of it, data.dir=<folder with its folder.json>"
    )


def _resolved(dir: str) -> Path:
    return Path(dir.replace(ROOT, os.environ.get("COCA_TRAIN_DATA", "data")))


def _digest(tokenizer: Path) -> str:
    return digest(tokenizer)["sha256"]


def _began_with(run_dir: Path, path: str, data: Mapping[str, object]) -> JsonObject | None:
    """Folder, vocabulary and tokenizer of the data that a run of the same folder and options began with; None: it has
    not begun, or the data are gone."""
    if not step_folders(run_dir / FOLDER):
        return None
    try:
        settings = untrusted_io.read_object(run_dir / "run.json")["settings"]
        if os.path.abspath(settings["data.path"]) != os.path.abspath(path) or not is_finished(
            Path(settings["data.dir"])
        ):
            return None
        said = {option: data[option] for option in OPTIONS if (option, data[option]) != ("vocab_size", None)}
        same = all(settings[f"data.{option}"] == value for option, value in said.items())
        return {key: settings[f"data.{key}"] for key in ("dir", "vocab_size", "tokenizer")} if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # what is wrong with the record is told where it is needed


def _as_begun(text: TextFolder, before: JsonObject | None) -> JsonObject | None:
    """The data that the run began with, where others would be made of the folder now; what has changed is said."""
    folder = _resolved(f"{ROOT}/{text.folder}")
    now = folder / text.key
    if before is not None and Path(before["dir"]) != now:
        changes = text.changes(Path(before["dir"])) or "other options"
        dist.log(
            f"data      {text.path} has changed since this run began ({changes}); it goes on with what was made of it "
            f"then, {before['dir']}. Another run.name= begins anew with the text of now"
        )
        return before
    if not is_finished(now) and (made := newest(folder)) is not None and (changes := text.changes(made)):
        dist.log(f"data      {text.path} has changed since {made} was made of it ({changes}): it is made anew")
    return None


def _given_tokenizer(a: Assembled, values: dict[str, object], before: JsonObject | None) -> Path | None:
    """The tokenizer that is not to be trained: of the command line, or of the weights that the run starts from."""
    if any(word.startswith("data.tokenizer=") for word in a.overrides):
        return Path(str(section(values, "data").get("tokenizer")))
    start = section(values, "start").get("path")
    if start is None:
        return None
    if before is not None and Path(before["tokenizer"]).is_file():
        return Path(before["tokenizer"])
    from coca_train.hub.tokenizer_files import of_weights  # torch, which a run from nothing need not wait for

    return of_weights(Path(str(start)))


def _refuse_inside(a: Assembled, path: str, written: dict[str, Path]) -> None:
    """Nothing is written into the folder of the texts, where it would be text of the next start."""
    folder = Path(path).resolve()
    for key, place in written.items():
        if place.resolve().is_relative_to(folder):
            text = f"{place} lies in data.path={path}, where nothing is written: it would be read as text"
            fix = f"write {key}=<a folder outside of it>, or begin in another folder"
            a.problems.append(Problem("E-CFG-86", (key, "data.path"), text, fix))
