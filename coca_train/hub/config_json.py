"""Read config.json of a Hugging Face folder into an Architecture; refuse what is unknown.

The rotary frequencies are in a section of two names, and in keys outside of it, depending on the version of
transformers that wrote the file.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.layer_types import UNIFORM
from coca_train.config.check import check_heads, check_scheme
from coca_train.config.schema import LayersConfig, ModelConfig
from coca_train.config.sizes import check_weights
from coca_train.hub import forms
from coca_train.hub.architecture import Architecture, Sections
from coca_train.hub.config_keys import COUNT, COUNT_OR_NULL, OBJECT_OR_NULL, TRUTH, Json, Keys, read_json
from coca_train.hub.families import FAMILIES, Family, parts_not_covered
from coca_train.positions import hugging_face
from coca_train.positions.hugging_face import NotTheSame
from coca_train.positions.schemes import rope
from coca_train.runtime.errors import UserError

NAME = "config.json"
# Names of the rotary section up to transformers 4, and since 5, whose classes prefer the older one.
ROPE_SECTIONS = ("rope_scaling", "rope_parameters")
THETA, SHARE = "rope_theta", "partial_rotary_factor"  # keys inside of the section or outside
ORIGINAL_LENGTH = "original_max_position_embeddings"
CORRECT = "correct the file, and keep what the model was trained with"


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
    family = FAMILIES.get(str(name))
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
    keys.finish()
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
    first_key: dict[str, str] = {}
    for field in family.fields:
        value, first = field.read(keys), first_key.setdefault(field.ours, field.theirs)
        if first != field.theirs and model[field.ours] != value:
            raise keys.wrong(f"{first}={model[field.ours]}, {field.theirs}={value}", "they are one option here")
        model[field.ours] = value
    said = [key.parts for key in family.biases if keys.read(key.theirs, TRUTH, key.default)]
    model["bias"] = [*family.bias, *(part for parts in said for part in parts)]
    if family.root_embedding:
        model["embedding_multiplier"] = math.sqrt(cast(int, model["d_model"]))
    max_positions = keys.read("max_position_embeddings", COUNT, family.max_positions)
    rotary_pct, rope_scaling = _rotary_frequencies(keys, family, max_positions)
    if family.whole_head and rotary_pct != 1:
        raise keys.wrong(f"{SHARE}={rotary_pct:g}", "its class rotates the whole head")
    n_layers = model["n_layers"]
    assert isinstance(n_layers, int)
    attention_pattern, layers = family.layers.read(keys, n_layers)
    position = rope.from_transformers(rotary_pct, rope_scaling)
    architecture = _typed(path, model, position, attention_pattern, max_positions, layers)
    n_heads, width = architecture.model.n_heads, architecture.model.d_model
    if family.divisible and width % n_heads:
        raise keys.wrong(f"num_attention_heads={n_heads}", f"{n_heads} heads do not divide a width of {width}")
    return architecture


def _rotary_frequencies(keys: Keys, family: Family, max_positions: int) -> tuple[float, Json]:
    """Return the rotated share of a head and our frequencies, from wherever a version of transformers wrote them.

    Of two sections, or two keys, its classes silently ignore one: both must be the same.
    """
    name, section = _rope_section(keys)
    theta = _rope_number(keys, section, name, THETA, family.theta_key, family.theta)
    rotary_pct = _rope_number(keys, section, name, SHARE, family.share_key, family.share)
    if theta <= 1:
        raise keys.wrong(f"{family.theta_key}={theta:g}", "a base above 1 is needed")
    scaling = {key: value for key, value in section.items() if key not in (THETA, SHARE)}
    # Where Phi-3 has it outside of the section, and then that one wins; plain frequencies have one length only.
    scales = (scaling.get("rope_type") or scaling.get("type")) not in (None, "default")
    original = keys.read(ORIGINAL_LENGTH, COUNT_OR_NULL)
    if scales and original and scaling.setdefault(ORIGINAL_LENGTH, original) != original:
        both = f"{ORIGINAL_LENGTH}={original}, {name}.{ORIGINAL_LENGTH}={scaling[ORIGINAL_LENGTH]!r}"
        raise keys.wrong(both, "they are one thing", CORRECT)
    unsaid = [key for key in ("beta_fast", "beta_slow", "attention_factor") if key not in scaling]
    if family.yarn_authors and "finetuned" in scaling.keys() - keys.ignored_in(name) and unsaid:
        raise keys.wrong(
            f"{name}.finetuned={scaling['finetuned']!r}, which the YaRN authors' releases have",
            f"their own code computes with {family.yarn_authors}, and {', '.join(unsaid)} are not said in {name}",
            f"write them there; or ignore={name}.finetuned, for what the class of transformers makes of the file",
        )
    try:
        return hugging_face.rope_scaling(scaling, theta, max_positions, rotary_pct, keys.ignored_in(name))
    except NotTheSame as error:
        names = ",".join(f"{name}.{key}" for key in error.unknown)
        fix = f"when {names} changes nothing, ignore={names}" if names else "import a model of this kind only"
        raise keys.wrong(f"{name}: {error}", "this is not what we compute", fix) from None


def _rope_section(keys: Keys) -> tuple[str, Json]:
    """Return the name and the values of the rotary section. Raises UserError E-IOP-04 where two differ."""
    (older, one), (newer, other) = ((name, keys.read(name, OBJECT_OR_NULL) or {}) for name in ROPE_SECTIONS)
    if one and other:
        same, also = (_comparable(section) for section in (one, other))
        differing = sorted(key for key in same.keys() | also.keys() if same.get(key) != also.get(key))
        if differing:
            both = "; ".join(f"{key} is {same.get(key)!r} and {also.get(key)!r}" for key in differing)[:300]
            raise keys.wrong(f"{older} and {newer} differ: {both}", "they are one thing, and one is needed", CORRECT)
    return (older, one) if one else (newer, other)


def _comparable(section: Json) -> Json:
    """Return a section without keys that may be outside of it, with current names."""
    kept = {key: value for key, value in section.items() if key not in (THETA, SHARE, "type") and value is not None}
    return {"rope_type": section.get("type") or "default", **kept}


def _rope_number(keys: Keys, section: Json, section_name: str, key: str, outside: str, default: float) -> float:
    """Return the number that a class reads: that of the section, else the one outside of it, else its default.

    outside: the family's name of the key outside of the section. Raises UserError E-IOP-04 where another place has
    another value.
    """
    places = {f"{name}.{key}": (keys.read(name, OBJECT_OR_NULL) or {}).get(key) for name in ROPE_SECTIONS}
    places |= {name: keys.take(name) for name in dict.fromkeys((outside, key)) if keys.has(name)}
    read, value = f"{section_name}.{key}" if key in section else outside, default
    if read in places and not (read == key == SHARE and places[read] is None):  # its class ignores null there alone
        value = keys.positive(read, places[read])
    others = {place: keys.positive(place, other) for place, other in places.items() if other is not None}
    differing = [f"{place}={other:g}" for place, other in others.items() if other != value]
    if differing:
        raise keys.wrong(f"{', '.join(differing)}, and its class reads {key}={value:g}", "they are one thing", CORRECT)
    return value
