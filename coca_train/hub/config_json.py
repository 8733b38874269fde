"""config.json of a Hugging Face folder, read into an Architecture. What is not understood is refused, in words."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coca_train import positions
from coca_train.config.check import heads, scheme
from coca_train.config.schema import LayersConfig, ModelConfig
from coca_train.config.sizes import weights
from coca_train.hub import families, own_json
from coca_train.hub.architecture import Architecture
from coca_train.hub.keys import Keys, read_json
from coca_train.hub.uncovered import uncovered
from coca_train.positions import visibilities
from coca_train.positions.hugging_face import NotTheSame
from coca_train.positions.layers import UNIFORM
from coca_train.runtime.errors import UserError

NAME = "config.json"


def architecture(folder: Path, ignore: tuple[str, ...] = ()) -> Architecture:
    """What the model of a Hugging Face folder computes.

    ignore: keys of config.json known to change nothing. Raises UserError E-IOP-03 (unreadable, wrong type), E-IOP-04
    (understood, and not what we compute; or not understood).
    """
    path = folder / NAME
    values = read_json(path)
    keys, name = Keys(path, values, ignore), values.get("model_type")
    if name in own_json.TYPES:
        return _own(path, values)
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


def _own(path: Path, values: dict[str, Any]) -> Architecture:
    """Of our sections, which the keys beside them must agree with; but for vocab_size, which others change."""
    sections = values.get(own_json.OWN)
    if isinstance(sections, dict) and isinstance(sections.get("model"), dict) and "vocab_size" in values:
        sections = sections | {"model": sections["model"] | {"vocab_size": values["vocab_size"]}}
    architecture = of_sections(path, sections)
    if words := own_json.disagreement(values, architecture):
        raise UserError(f"E-IOP-04 {path} {words}. Fix: give the value that is meant in both, or export again")
    return architecture


def of_sections(path: Path | str, sections: Any) -> Architecture:
    """What the sections of an export of ours say. path: for errors. Raises UserError E-IOP-03, E-IOP-04."""
    if not isinstance(sections, dict) or not set(sections) >= {"model", "position", "visibility", "seq_len"}:
        raise UserError(f"E-IOP-03 {path} {own_json.OWN}: sections are missing. Fix: export the folder again")
    named = ("model", "position", "visibility", "seq_len", "layers")
    return _typed(path, **{key: sections[key] for key in named if key in sections})


def _typed(
    path: Path | str, model: dict[str, Any], position: Any, visibility: Any, seq_len: int, layers: Any = None
) -> Architecture:
    """The sections, typed and held against each other."""
    try:
        typed = TypeAdapter(ModelConfig).validate_json(json.dumps(model))
        settings = positions.settings(position)
        if problems := weights(typed) or heads(typed) or scheme(typed, settings):
            raise ValueError(problems[0].message)
        schedule = UNIFORM if layers is None else TypeAdapter(LayersConfig).validate_json(json.dumps(layers))
        return Architecture(typed, settings, visibilities.settings(visibility), seq_len, schedule)
    except (ValidationError, ValueError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UserError(f"E-IOP-04 {path}: {reason}; such a model cannot be built. Fix: download it again") from None
