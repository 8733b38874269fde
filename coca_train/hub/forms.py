"""Which form an export takes: a class of transformers where one computes the same, else one of our own two types."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coca_train.hub import families, own_json
from coca_train.hub.architecture import Architecture
from coca_train.hub.options import Form
from coca_train.positions.hugging_face import NotTheSame, Words, rotation
from coca_train.runtime.errors import UserError
from coca_train.schedule import Stage

FREQUENCIES = "position.frequencies"


def choose(architecture: Architecture, form: Form, family: str = "") -> dict[str, Any]:
    """The config.json of the export. family: which native class is preferred where several do.

    form=auto takes a native class only where it decodes as it reads, whatever the length. Raises UserError E-IOP-15
    when the native class that is asked for would compute something else.
    """
    reasons: list[str] = []
    native = None
    if form != "own":
        native = _native(architecture, family if form in ("auto", "native") else form, reasons)
        if native is not None and (form != "auto" or _words(architecture).decodes_to is None):
            return native
    if form in ("auto", "own"):
        return own_json.config(architecture)
    raise UserError(f"E-IOP-15 form={form}: this would not compute what the run computes: {reasons[0]}. Fix: form=own")


def to_compare(architecture: Architecture, family: str = "") -> dict[str, Any]:
    """The config.json of a class that reads a whole text as the run does, native where there is one."""
    return _native(architecture, family, []) or choose(architecture, "own")


def decodes_otherwise(architecture: Architecture, config: dict[str, Any]) -> bool:
    """Whether a class that reads a text as the run does decodes it otherwise, beyond some length."""
    return config["model_type"] in families.FAMILIES and _words(architecture).decodes_to is not None


def caveats(architecture: Architecture, config: dict[str, Any]) -> list[str]:
    """Who computes something else from an export with this config.json than the run does, a sentence each."""
    if config["model_type"] not in families.FAMILIES:
        return []
    words, family = _words(architecture), families.FAMILIES[config["model_type"]]
    lines = []
    if words.decodes_to is not None:
        lines.append(
            f"beyond {words.decodes_to:,} tokens {family.transformers_class} decodes otherwise than the run: its "
            "cached keys keep the angles of a shorter text, where the run turns all keys again; form=own decodes as "
            "the run does"
        )
    lines += words.caveats
    if words.scaling is not None and family.scaled_since:
        lines.append(
            f"transformers before {family.scaled_since} do not read rope_scaling for this class: use a newer one"
        )
    if config["max_position_embeddings"] < architecture.seq_len:
        lines.append(
            f"max_position_embeddings is {config['max_position_embeddings']:,}, which the scaling is computed from, "
            f"though the weights were trained on {architecture.seq_len:,} tokens"
        )
    return lines


def of_run(stages: Sequence[Stage], n_tokens: int) -> str:
    """`outlook` of a run's last stage. n_tokens: rows of the embedding."""
    last = stages[-1]
    of_stage = "frequencies" in last.config.stages[last.name].position
    place = f"stages.{last.name}.{FREQUENCIES}" if of_stage else FREQUENCIES
    return outlook(Architecture.of(last.config, n_tokens), place=place)


def outlook(architecture: Architecture, family: str = "", place: str = FREQUENCIES) -> str:
    """What an export with form=auto will be, in a line, and the word that makes it native where there is one.

    place: of the section of frequencies that a word for the training changes.
    """
    reasons: list[str] = []
    native = _native(architecture, family, reasons)
    config = choose(architecture, "auto", family)
    name = f"{config['architectures'][0]} ({config['model_type']})"
    if config["model_type"] in families.FAMILIES:
        return f"{name}, a class of transformers"
    if native is not None:
        why = f"transformers decodes otherwise beyond {_words(architecture).decodes_to:,} tokens"
        word = "; `export form=native` takes its class all the same"
    else:
        why, word = reasons[0], _word(architecture, family, place)
        word = f"; trained with {word} it is native" if word else ""
    code = "its code goes with it" if "auto_map" in config else "it loads where coca_train is installed"
    return f"{name}, {code}: {why}{word}"


def _word(architecture: Architecture, family: str, place: str) -> str:
    """The option of a training that makes an architecture native, as its frequencies say (NATIVE); "": none does."""
    scaling = getattr(architecture.position, "frequencies", None)
    if scaling is None or not (wanted := scaling.NATIVE):
        return ""
    position = replace(architecture.position, frequencies=replace(scaling, **wanted))
    if _native(replace(architecture, position=position), family, []) is None:
        return ""
    return " ".join(f"{place}.{key}={value}" for key, value in wanted.items())


def _words(architecture: Architecture) -> Words:
    """Of an architecture that a native class computes."""
    rotated = rotation(architecture.position, architecture.head_dim)
    assert rotated is not None
    return rotated.words


def _native(architecture: Architecture, family: str, reasons: list[str]) -> dict[str, Any] | None:
    """The config.json of a native class; None: none computes the same, and the reason is added to the list."""
    try:
        return families.config(architecture, family)
    except NotTheSame as error:
        reasons.append(str(error))
        return None
