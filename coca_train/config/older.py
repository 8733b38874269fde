"""Runs that are older than an option: the value it would have had then, so that they load and go on unchanged."""

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import TypeAdapter

from coca_train.config.schema import ModelConfig

# Option -> what every run did before it could be chosen.
ADDED = {
    "layers.pattern": [],
    "model.qk_norm": "none",
    "model.logit_scale.name": "none",
    "model.logit_scale.length": None,
    "model.logit_scale.beta": 0.1,
    "data.path": None,
    "data.text_field": "text",
    "data.vocab_size": None,
    "data.valid_share": None,
    "data.on_error": "stop",
    "data.packing": "windows",
    "data.upsample_from_tokens": None,
    "data.upsample_factor": 1,
    "data.verify_blocks": True,
    "start.path": None,
    "start.check_tokenizer": True,
    "start.t_from_k": "mean_of_halves",
    "start.keys": "auto",
    "start.ignore": [],
    "eval.extrapolation.every_steps": 0,
    "eval.extrapolation.probe_documents": 2,
    "start.parity_tokens": 2048,
    "engine.compile": "auto",
    "engine.deterministic": False,
    "engine.gradient_reduction": "all_reduce",
    "engine.communication_dtype": "auto",
    "engine.overlap_communication": None,
    "engine.prefetch_size": None,  # these two decide when weights travel, and change no bit
    "engine.persistence_threshold": None,
    "optim.name": "adamw",
    "optim.muon.lr": None,
    "optim.muon.momentum": 0.95,
    "optim.muon.adjust_lr": "match_rms_adamw",
    "optim.cooldown": 0.1,
    "optim.cooldown_shape": "linear",
    "engine.sequence_parallel": 1,
    "engine.mlp_tile": None,
}
# The same of what older runs may have done in either way: their records are not compared in it.
UNKNOWN = {"start.convert": []}

# The same of a position scheme, in every section that names it.
ADDED_TO_SCHEMES = {name: {"shared": False} for name in ("kerple_log", "kerple_power", "transformer_xl")}

# Values that have another name by now: option, choice that it is an option of, value -> what it is called.
RENAMED = {
    ("position.frequencies.convention", name, "code"): "indices" for name in ("ntk_by_parts", "dynamic_ntk_by_parts")
}


# The same of values of one option, whatever else is chosen.
CALLED = {"engine.activation_checkpointing": {False: "none", True: "full"}}


def renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run's record, by dotted key, in today's words. Sections are typed in them (positions/)."""
    now = {
        key: called
        for (key, name, value), called in RENAMED.items()
        if settings.get(key) == value and settings.get(f"{key.rpartition('.')[0]}.name") == name
    }
    now |= {key: called[settings[key]] for key, called in CALLED.items() if isinstance(settings.get(key), bool)}
    return settings | now


def complete(tree: dict[str, Any]) -> None:
    """Give a saved configuration the options it is too old to have."""
    _complete_positions(tree)
    for key, value in (ADDED | UNKNOWN).items():
        *sections, name = key.split(".")
        options: Any = tree
        for section in sections:
            options = options.setdefault(section, {}) if isinstance(options, dict) else None
        if isinstance(options, dict):
            options.setdefault(name, deepcopy(value))


def complete_settings(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the settings in a run's record, by dotted key."""
    added = dict(ADDED)
    for key, value in flat.items():
        section, _, option = key.rpartition(".")
        if option == "scheme":
            added |= {f"{section}.{name}": old for name, old in ADDED_TO_SCHEMES.get(str(value), {}).items()}
    return added | dict(flat)


def as_ever(position: Mapping[str, Any]) -> dict[str, Any]:
    """A position section in the words of the first cells that were measured under it, so that they are found again:
    without what it would not have had before it could be chosen, and with values as they were called."""
    added = ADDED_TO_SCHEMES.get(position["scheme"], {})
    kept = {key: value for key, value in position.items() if key not in added or value != added[key]}
    frequencies = dict(position.get("frequencies") or {})
    for (key, name, value), called in RENAMED.items():
        option = key.rpartition(".")[2]
        if frequencies.get("name") == name and frequencies.get(option) == called:
            frequencies[option] = value
    return kept | ({"frequencies": frequencies} if frequencies else {})


def _complete_positions(tree: dict[str, Any]) -> None:
    """Of the run, of kinds of layers and of stages."""
    for key, section in tree.items():
        if isinstance(section, dict):
            if key == "position":
                for name, value in ADDED_TO_SCHEMES.get(str(section.get("scheme")), {}).items():
                    section.setdefault(name, value)
            _complete_positions(section)


def model_config(values: dict[str, Any]) -> ModelConfig:
    """A `model` section that was saved, typed. ValidationError as of any section."""
    complete(tree := {"model": dict(values)})
    return TypeAdapter(ModelConfig).validate_json(json.dumps(tree["model"]))
