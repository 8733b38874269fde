"""config.json of a Hugging Face folder, read into an Architecture. What is not understood is refused, in words."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coca_train import positions
from coca_train.config.check import heads, kv_heads, scheme
from coca_train.config.older import complete, model_config
from coca_train.config.schema import LayersConfig
from coca_train.config.sizes import weights
from coca_train.hub import families
from coca_train.hub.architecture import Architecture
from coca_train.hub.keys import Keys, read_json
from coca_train.hub.uncovered import uncovered
from coca_train.positions import visibilities
from coca_train.positions.hugging_face import NotTheSame
from coca_train.positions.layers import UNIFORM
from coca_train.runtime.errors import UserError

NAME = "config.json"
OWN = "coca_train"  # the key of our own exports that holds our sections as they are


def architecture(folder: Path, ignore: tuple[str, ...] = ()) -> Architecture:
    """What the model of a Hugging Face folder computes.

    ignore: keys of config.json known to change nothing. Raises UserError E-IOP-03 (unreadable, wrong type), E-IOP-04
    (understood, and not what we compute; or not understood).
    """
    path = folder / NAME
    values = read_json(path)
    keys, name = Keys(path, values, ignore), values.get("model_type")
    if isinstance(values.get(OWN), dict) and str(name).startswith(OWN):  # earlier versions: coca_train_<scheme>
        return _own(path, values[OWN])
    if parts := uncovered(values):
        raise keys.wrong(f"model_type={name!r}", f"it has parts that are not covered here: {', '.join(parts)}")
    family = families.FAMILIES.get(str(name))
    if family is None:
        raise keys.wrong(
            f"model_type={name!r}",
            f"known are {', '.join(families.FAMILIES)} and our own exports; code of a folder (auto_map) is never run",
        )
    try:
        architecture = _typed(path, **families.sections(keys, family))
    except NotTheSame as error:
        raise keys.wrong(f"positions: {error}", "this is not what we compute") from None
    keys.finish()
    return architecture


def _own(path: Path, sections: dict[str, Any]) -> Architecture:
    if not set(sections) >= {"model", "position", "visibility", "seq_len"}:
        raise UserError(f"E-IOP-03 {path} {OWN}: sections are missing. Fix: export the folder again")
    complete(sections)
    named = ("model", "position", "visibility", "seq_len", "layers")
    return _typed(path, **{key: sections[key] for key in named if key in sections})


def _typed(
    path: Path, model: dict[str, Any], position: Any, visibility: Any, seq_len: int, layers: Any = None
) -> Architecture:
    """The sections, typed and held against each other."""
    try:
        typed = model_config(model)
        settings = positions.settings(position)
        if problems := weights(typed) or heads(typed) or kv_heads(typed) or scheme(typed, settings):
            raise ValueError(problems[0].message)
        schedule = UNIFORM if layers is None else TypeAdapter(LayersConfig).validate_json(json.dumps(layers))
        return Architecture(typed, settings, visibilities.settings(visibility), seq_len, schedule)
    except (ValidationError, ValueError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UserError(f"E-IOP-04 {path}: {reason}; such a model cannot be built. Fix: download it again") from None
