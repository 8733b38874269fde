"""Read config.json of a Hugging Face folder into an Architecture; refuse what is unknown."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.layer_types import UNIFORM
from coca_train.config.check import check_heads, check_scheme
from coca_train.config.schema import LayersConfig, ModelConfig
from coca_train.config.sizes import check_weights
from coca_train.hub import families, forms
from coca_train.hub.architecture import Architecture, Sections
from coca_train.hub.config_keys import COUNT, TRUTH, Json, Keys, read_json
from coca_train.hub.families import FAMILIES, WIDER, parts_not_covered
from coca_train.hub.family import Family
from coca_train.positions.hugging_face import NotTheSame
from coca_train.runtime.errors import UserError

NAME = "config.json"


def is_folder(path: Path) -> bool:
    """Return whether it is a Hugging Face folder, by its config.json."""
    return (path / NAME).is_file()


def read_architecture(folder: Path, ignore: tuple[str, ...] = ()) -> Architecture:
    """Read what the model of a Hugging Face folder computes.

    ignore: keys of config.json known to change nothing. Raises UserError E-IOP-03 (unreadable, wrong type), E-IOP-04
    (unknown, or not what we compute).
    """
    path = folder / NAME
    values = read_json(path)
    keys, name = Keys(path, values, ignore), values.get("model_type")
    if name in forms.OWN_TYPES:
        return _read_own(path, values)
    family = FAMILIES.get(families.name_of(values))
    if parts := parts_not_covered(values):
        raise keys.wrong(f"model_type={name!r}", f"it is {' and '.join(parts)}, which is not supported")
    if family is None:
        raise keys.wrong(
            f"model_type={name!r}",
            f"known are {', '.join(FAMILIES)} and our own exports; code of a folder (auto_map) is never run",
        )
    try:
        architecture = _read_family(path, keys, family)
    except NotTheSame as error:
        raise keys.wrong(f"positions: {error}", "this is not what we compute") from None
    keys.finish(family.harmless)
    return architecture


def _read_own(path: Path, values: Json) -> Architecture:
    """Read the sections of our own export, which must agree with the other keys; vocab_size is the file's, since
    others may resize the embedding."""
    architecture = architecture_of_sections(path, values.get(forms.OWN_SECTIONS), values.get("vocab_size"))
    free = ("architectures", "auto_map", "use_cache", forms.OWN_SECTIONS)
    for key, value in forms.own_config(architecture).items():
        if key in values and key not in free and values[key] != value:
            raise UserError(
                f"E-IOP-04 {path} {key}={values[key]!r}, but {forms.OWN_SECTIONS} has {value!r}. Fix: write the same "
                "value in both, or export again"
            )
    return architecture


def architecture_of_sections(path: Path | str, sections: object, vocab_size: object = None) -> Architecture:
    """Type the sections of an export of ours. path: for errors. vocab_size: None is that of the sections.

    Raises UserError E-IOP-03, E-IOP-04.
    """
    if not isinstance(sections, Mapping) or not sections.keys() >= Sections.__required_keys__ - {"layers"}:
        raise UserError(f"E-IOP-03 {path} {forms.OWN_SECTIONS}: sections are missing. Fix: export the folder again")
    model, window, layers = sections["model"], sections["seq_len"], sections.get("layers")
    if vocab_size is not None and isinstance(model, dict):
        model = model | {"vocab_size": vocab_size}
    return _typed(path, model, sections["position"], sections["attention_pattern"], window, layers)


def _typed(
    path: Path | str, model: object, position: object, attention_pattern: object, seq_len: object, layers: object
) -> Architecture:
    """Type the sections and check them against each other. layers: None where they are alike."""
    try:
        typed = TypeAdapter(ModelConfig).validate_json(json.dumps(model))
        settings = positions.settings(position)
        if problems := check_weights(typed) or check_heads(typed) or check_scheme(typed, settings):
            raise ValueError(problems[0].message)
        schedule = UNIFORM if layers is None else TypeAdapter(LayersConfig).validate_json(json.dumps(layers))
        window = COUNT.adapter.validate_python(seq_len)
        return Architecture(typed, settings, patterns.settings(attention_pattern), window, schedule)
    except (ValidationError, ValueError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UserError(f"E-IOP-04 {path}: {reason}; such a model cannot be built. Fix: download it again") from None


def _read_family(path: Path, keys: Keys, family: Family) -> Architecture:
    """Read a config.json of this family. Raises UserError E-IOP-04, and NotTheSame."""
    model: Json = {
        "n_kv_heads": None,
        "head_dim": None,
        "dropout": 0.0,
        "init_depth_scaled": False,
        "logit_scale": {"name": "none", "length": None, "beta": 0.1},
        **family.always,
    }
    for key in family.fixed:
        value = keys.take(key.theirs)
        if not key.holds(keys.values):
            raise keys.wrong(f"{key.theirs}={value!r}", f"supported: {key.value!r}")
    first_key: dict[str, str] = {}
    for field in family.fields:
        value, first = field.read(keys), first_key.setdefault(field.ours, field.theirs)
        if first == field.theirs:
            model[field.ours] = value
        elif value is not None and model[field.ours] != value:
            raise keys.wrong(f"{first}={model[field.ours]}, {field.theirs}={value}", "they are one option here")
    d_model, n_layers = model["d_model"], model["n_layers"]
    assert isinstance(d_model, int) and isinstance(n_layers, int)
    if model.get("d_ff") is None:
        model["d_ff"] = WIDER * d_model
    said = [key.parts for key in family.biases if keys.read(key.theirs, TRUTH, key.default)]
    model["bias"] = [*family.bias, *(part for parts in said for part in parts)]
    if family.root_embedding:
        model["embedding_multiplier"] = math.sqrt(d_model)
    positions = family.positions.read(keys)
    attention_pattern, layers = family.layers.read(keys, n_layers, positions.of_windows)
    architecture = _typed(path, model, positions.position, attention_pattern, positions.seq_len, layers)
    n_heads, width = architecture.model.n_heads, architecture.model.d_model
    if family.divisible and width % n_heads:
        raise keys.wrong(f"num_attention_heads={n_heads}", f"{n_heads} heads do not divide a width of {width}")
    return architecture
