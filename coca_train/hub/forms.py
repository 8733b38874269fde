"""The form of an export: a class of transformers where one computes the same, else one of our own two model types.

coca        one dot product whatever the positions: exported with the two files of hub/export_files/
coca_train  all else (tables over distances, hooks, several views): loaded by hub/installed.py, needs coca_train

Both contain our sections unchanged, under `coca_train`, and the keys that transformers needs.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.machinery import all_suffixes
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coca_train.attention.layer_types import LayerType
from coca_train.config.fields import fields_of
from coca_train.config.messages import show
from coca_train.config.schema import ModelConfig
from coca_train.hub.architecture import Architecture, rope_scaling_of
from coca_train.hub.config_keys import Json, nested
from coca_train.hub.families import FAMILIES, WIDER, name_of
from coca_train.hub.family import Family
from coca_train.hub.options import Form
from coca_train.hub.position_rules import written_length
from coca_train.positions.hugging_face import NativeScaling, NotTheSame, rotation
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import UserError
from coca_train.stages import Stage

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

SCALING_SECTION = "position.rope_scaling"
LLAMA_CPP_PERIODS = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6, "smollm3": 4}  # the last of so many is another one
LLAMA_CPP_THETA = 10_000  # of every model of these families, whose converters write neither theta nor a scaling
LLAMA_CPP_FIXED_ROPE = {"falcon", "falcon_40b", "falcon_11b", "gemma", "gemma2", "gpt_neox", "phi", "stablelm"}
LLAMA_CPP_UNSCALED = LLAMA_CPP_FIXED_ROPE | {"cohere", "cohere2", "glm"}
LLAMA_CPP_SCALED: dict[str, set[str]] = {  # the only families whose converters write a rope_type, where not all do
    "llama3": {"llama", "mistral", "smollm3", "arcee", "granite", "exaone4"},
    "longrope": {"phi3"},
    "proportional": set(),
}
LLAMA_CPP_27B = {"gemma2": 46, "gemma3_text": 62}  # layers of the models whose scores it divides by √(d_model/n_heads)
FEW = 2  # options of `model` that are worth a line on what would make a run native
OWN_SECTIONS = "coca_train"  # the key of our sections
COCA, INSTALLED = "coca", "coca_train"
OWN_TYPES = (COCA, INSTALLED)
CONFIGURATION, MODELING = "configuration_coca", "modeling_coca"  # of hub/export_files/
BLOCKS = {COCA: "model.layers", INSTALLED: "model.blocks"}
CLASSES = {COCA: "CocaForCausalLM", INSTALLED: "CocaTrainForCausalLM"}
# What modeling_coca.py computes; tests/hub/test_modeling_coca.py holds this to its configuration.
SCHEMES = ("coca", "rope", "alibi", "nope")
ATTENTION_PATTERNS = ("causal", "sliding_window")
LOGIT_SCALES = ("none", "log", "steps")
ROPE_SCALINGS = (
    "plain", "partial", "linear", "ntk", "ntk_by_parts", "yarn", "llama3", "longrope",
    "dynamic_linear", "dynamic_ntk", "dynamic_ntk_by_parts", "dynamic_yarn", "dynamic_yarn_tuned",
)  # fmt: skip
# Options of `model` that config.json of modeling_coca.py says, under their own names and under others (own_config).
SAME_NAMES = (
    "head_dim", "norm", "norm_eps", "norm_weight", "norm_placement", "embedding_norm", "qk_norm", "residual", "bias",
    "attention_multiplier", "clip_qkv", "score_cap", "embedding_multiplier", "residual_multiplier", "logits_multiplier",
    "logits_cap", "dropout",
)  # fmt: skip
EXPORTED_OPTIONS = (*SAME_NAMES, "n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "activation", "tie_embeddings")
ACTIVATIONS = {  # transformers' name, and whether the feed-forward layer is gated
    "swiglu": ("silu", True), "geglu": ("gelu", True), "geglu_tanh": ("gelu_pytorch_tanh", True),
    "gelu": ("gelu", False), "gelu_tanh": ("gelu_pytorch_tanh", False), "relu": ("relu", False),
    "relu2": ("relu2", False),
}  # fmt: skip


def choose(architecture: Architecture, form: Form, family: str = "") -> Json:
    """Return the config.json of an export. family: the preferred native class where several fit.

    form=auto takes a native class only where cached decoding equals reading at any length. Raises UserError E-IOP-15
    when the requested native class would compute something else.
    """
    require_causal(architecture)
    why_not = ""
    if form != "own":
        names = (family, "") if form in ("auto", "native") else (form,)
        native, why_not = _try_native(architecture, *names)
        if native is not None and (form != "auto" or _decodes_to(architecture) is None):
            return native
    if form in ("auto", "own"):
        return own_config(architecture)
    raise UserError(f"E-IOP-15 form={form}: this would not compute what the run computes: {why_not}. Fix: form=own")


def require_causal(architecture: Architecture) -> None:
    """Raise UserError E-IOP-15 for a model that reads in both directions."""
    if _bidirectional(architecture):
        raise UserError(
            "E-IOP-15 attention_pattern=bidirectional: the classes of an export read from left to right. Fix: use the "
            "folder of the run, which coca_train.api.open_model opens"
        )


def _bidirectional(architecture: Architecture) -> bool:
    return any(kind.attention_pattern.name == "bidirectional" for kind in architecture.layer_types)


def config_to_compare(architecture: Architecture, family: str = "") -> Json:
    """Return the config.json of a class that computes the run's logits without a cache, native where there is one."""
    return _try_native(architecture, family, "")[0] or own_config(architecture)


def class_name(name: str) -> str:
    """Return the class that loads an export in one of our model types, or of a family."""
    return CLASSES[name] if name in OWN_TYPES else FAMILIES[name].transformers_class


def decodes_otherwise(architecture: Architecture, name: str) -> bool:
    """Return whether a class that computes the run's logits without a cache decodes otherwise beyond some length."""
    return name in FAMILIES and _decodes_to(architecture) is not None


def caveats(architecture: Architecture, name: str) -> list[str]:
    """Return a sentence on each case where an export of this family computes something else than the run."""
    if name not in FAMILIES:
        return []
    family = FAMILIES[name]
    lines = family.positions.caveats(architecture)
    if architecture.complete.score_cap is not None:
        lines.append(
            "transformers before 5.21 do not cap the scores with their default attention: load it with "
            "attn_implementation=eager, or use a newer one"
        )
    words = _rope_words(architecture)
    if words is None:
        return lines
    if words.decodes_to is not None:
        lines.append(
            f"beyond {words.decodes_to:,} tokens {family.transformers_class} decodes otherwise than the run: its "
            "cached keys keep the angles of a shorter text, while the run rotates all keys again; form=own decodes as "
            "the run does"
        )
    lines += words.caveats
    if words.scaling is not None and (since := family.positions.scaled_since):
        lines.append(f"transformers before {since} do not read rope_scaling for this class: use a newer one")
    if (length := written_length(architecture, words)) < architecture.seq_len:
        lines.append(
            f"max_position_embeddings is {length:,}, which the scaling is computed from, though the weights were "
            f"trained on {architecture.seq_len:,} tokens"
        )
    return [*lines, *_in_llama_cpp(architecture, name)]


def _in_llama_cpp(architecture: Architecture, model_type: str) -> list[str]:
    """Return a sentence on each part of a family that llama.cpp computes otherwise than config.json says (its
    conversion/*.py and src/models/*.cpp, at gguf 0.19)."""
    name, kinds, model = FAMILIES[model_type].transformers_class, architecture.layer_types, architecture.complete
    all_words = [each.words for kind in kinds if (each := rotation(kind.position, architecture.head_dim)) is not None]
    thetas, lines = {words.theta for words in all_words}, []
    if model_type in LLAMA_CPP_FIXED_ROPE and thetas - {LLAMA_CPP_THETA}:
        lines.append(f"llama.cpp rotates with rope_theta {LLAMA_CPP_THETA:,} in every {name}")
    for rope_type in sorted({str(words.scaling["rope_type"]) for words in all_words if words.scaling is not None}):
        if model_type in LLAMA_CPP_UNSCALED or model_type not in LLAMA_CPP_SCALED.get(rope_type, FAMILIES):
            lines.append(f"llama.cpp does not scale the frequencies of {name} by {rope_type}")
    if model_type == "olmo3" and len(thetas) > 1:
        lines.append(f"llama.cpp has one rope_theta in all layers of {name}")
    if model_type in LLAMA_CPP_27B:
        width = architecture.head_dim if len(kinds) != LLAMA_CPP_27B[model_type] else model.d_model // model.n_heads
        if not math.isclose(model.attention_multiplier or architecture.head_dim**-0.5, width**-0.5):
            lines.append(f"llama.cpp divides the scores of this {name} by √{width}, not by √query_pre_attn_scalar")
    windows = [getattr(kind.attention_pattern, "window", None) for kind in kinds]
    smallest = min((window for window in windows if window is not None), default=None)
    if model_type == "olmo3" or (model_type == "exaone4" and len(kinds) == 64):
        return lines  # their windows are as config.json says
    period = LLAMA_CPP_PERIODS.get(model_type, 0)
    of_period = [period > 0 and layer % period == 0 for layer in range(1, len(kinds) + 1)]
    unrotated = of_period if model_type in ("cohere2", "smollm3") else [False] * len(kinds)
    if [kind.position.scheme == "nope" for kind in kinds] != unrotated:
        where = f"omits RoPE in layer {period} of every {period}" if period else "rotates without windows in all layers"
        lines.append(f"llama.cpp {where} of {name}, whatever config.json says")
    elif period and model_type != "smollm3":
        if [window is None for window in windows] != of_period:
            lines.append(f"llama.cpp omits the window in layer {period} of every {period} of {name} alone")
    elif smallest is not None:
        lines.append(f"llama.cpp has no windows in {name}: beyond {smallest:,} tokens it differs")
    return lines


def describe_run(stages: Sequence[Stage], n_tokens: int) -> str:
    """Describe the export of a run's last stage. n_tokens: rows of the embedding."""
    last = stages[-1]
    of_stage = "rope_scaling" in last.config.stages[last.name].position
    place = f"stages.{last.name}.{SCALING_SECTION}" if of_stage else SCALING_SECTION
    return describe(Architecture.of(last.config, n_tokens), place=place)


def describe(architecture: Architecture, family: str = "", place: str = SCALING_SECTION) -> str:
    """Describe an export with form=auto in a line, and the options that make it native where few do.

    place: key of the section of frequencies that has this option.
    """
    if _bidirectional(architecture):
        return "none; the classes of an export read from left to right"
    native, why_not = _try_native(architecture, family, "")
    config = choose(architecture, "auto", family)
    model_type = str(config["model_type"])
    name = f"{class_name(name_of(config))} ({model_type})"
    if model_type not in OWN_TYPES:
        return f"{name}, a class of transformers"
    if native is not None:
        why_not = f"transformers decodes otherwise beyond {_decodes_to(architecture):,} tokens"
        way = "; `export form=native` takes its class nevertheless"
    else:
        options = _native_options(architecture, family, place)
        way = f"; trained with {options} it is native" if options else ""
    code = "its code is exported with it" if model_type == COCA else "it loads where coca_train is installed"
    return f"{name}, {code}: {why_not}{way}"


def _native_options(architecture: Architecture, family: str, place: str) -> str:
    """Return the options of a training that make an architecture native: of its frequencies (NATIVE), and as few of
    `model` as FEW; "": none do."""
    scaling = architecture.rope_scaling
    for wanted in ({}, {} if scaling is None else scaling.NATIVE):
        changed = architecture
        if scaling is not None:
            position = replace(architecture.position, rope_scaling=replace(scaling, **wanted))
            changed = replace(architecture, position=position)
        nearest = _nearest(changed, family)
        if not nearest.others and len(nearest.options) <= FEW and _decodes_to(changed) is None:
            words = {f"{place}.{key}": value for key, value in wanted.items()}
            words |= {f"model.{key}": value for key, value in nearest.options.items()}
            return " ".join(f"{key}={_typed(value)}" for key, value in words.items())
    return ""


def _rope_words(architecture: Architecture) -> NativeScaling | None:
    """Return the rotary frequencies in transformers' words; None: of an architecture without a rotation."""
    if architecture.rope_scaling is None:
        return None
    rotated = rotation(architecture.position, architecture.head_dim)
    return None if rotated is None else rotated.words


def _decodes_to(architecture: Architecture) -> int | None:
    """Return the length beyond which a class of transformers decodes otherwise than it reads; None: never."""
    words = _rope_words(architecture)
    return None if words is None else words.decodes_to


def _try_native(architecture: Architecture, *families: str) -> tuple[Json | None, str]:
    """Return the config.json of a native class, or None and why none computes the same. families: in order of
    preference; "" is any."""
    reasons: list[str] = []
    for family in dict.fromkeys(families):
        try:
            return native_config(architecture, family), ""
        except NotTheSame as error:
            reasons.append(str(error))
    return None, reasons[0]


def native_config(architecture: Architecture, preferred: str = "") -> Json:
    """Return the config.json of a native class. preferred: which, where several would do. Raises NotTheSame."""
    nearest, model = _nearest(architecture, preferred), architecture.complete
    chosen, family = nearest.family, FAMILIES[nearest.family]
    reasons = [f"model.{key}={_typed(getattr(model, key))}" for key in nearest.options] + nearest.others
    if reasons and chosen == preferred:
        raise NotTheSame(f"{chosen}: {'; '.join(reasons)}")
    if reasons:
        name = f"{family.transformers_class} ({chosen})"
        raise NotTheSame(f"{', '.join(reasons)}, which no native class has (the nearest is {name})")
    config: Json = {
        "architectures": [family.transformers_class],
        "model_type": family.model_type or chosen,
        **{field.theirs: field.write(model) for field in family.fields},
        **{key.theirs: set(key.parts) <= set(model.bias) for key in family.biases},
        **{key.theirs: key.value for key in family.fixed if key.value != key.default},
        **dict(family.for_llama_cpp),
        **family.positions.write(architecture),
        **family.layers.write(architecture),
        "pad_token_id": None,  # a class's default may be a row of the original's vocabulary
        "use_cache": True,
    }
    return nested(config)


def _typed(value: object) -> str:
    """Return a value of an option as a command line takes it without quotes."""
    return show(value).translate({ord(each): None for each in ' "'})


class Nearest(NamedTuple):
    """The family whose class is nearest to an architecture, and the difference."""

    family: str
    options: Json  # of `model` that differ, as the class has them
    others: list[str]  # what no option of `model` makes the same


def _nearest(architecture: Architecture, preferred: str) -> Nearest:
    """Return the family that differs least, or the preferred one. What no option makes the same counts first."""
    native = [name for name, family in FAMILIES.items() if family.transformers_class]
    names = [preferred] if preferred in native else native
    found = [Nearest(name, *_differences(architecture, FAMILIES[name])) for name in names]
    return min(found, key=lambda each: (len(each.others), len(each.options)))


def _differences(architecture: Architecture, family: Family) -> tuple[Json, list[str]]:
    """Return what a family's class computes otherwise: options as the class has them, and what none of them decides."""
    model = architecture.complete
    named = {field.ours for field in family.fields}
    known: dict[str, list[object]] = {ours: [value] for ours, value in family.always.items()}
    known |= {"embedding_multiplier": [math.sqrt(model.d_model)]} if family.root_embedding else {}
    known |= {field.ours: list(field.kind.values()) for field in family.fields if isinstance(field.kind, Mapping)}
    follow = {"n_kv_heads": model.n_heads, "head_dim": model.d_model // model.n_heads, "d_ff": WIDER * model.d_model}
    known |= {ours: [value] for ours, value in follow.items() if ours not in named and ours not in known}
    options = {ours: values[0] for ours, values in known.items() if getattr(model, ours) not in values}
    options |= _unusual(model, {*named, *known, "bias"})
    given = [key.parts for key in family.biases if set(key.parts) <= set(model.bias)]
    if (bias := {*family.bias, *chain(*given)}) != set(model.bias):
        options["bias"] = sorted(bias)
    others = []
    if any(kind.logit_scale.name != "none" for kind in architecture.layer_types):
        others.append("a logit scale that grows with the length")
    if model.d_model % model.n_heads:
        others.append(f"d_model {model.d_model} with {model.n_heads} heads")
    for rule in (family.positions, family.layers):
        try:
            rule.write(architecture)
        except NotTheSame as error:
            others.append(str(error))
    return options, others


def _unusual(model: ModelConfig, said: Collection[str]) -> Json:
    """Return the defaults of options that differ from them, and that a form neither says nor leaves to its layers.

    So a new option of `model` is exported by coca_train's own class until a form has a key for it, and never dropped.
    """
    said = {*said, "n_kv_heads", "head_dim", "logit_scale", "dropout", "init_std", "init_depth_scaled"}
    others = {name: field.default for name, field in fields_of(ModelConfig).items() if name not in said}
    return {name: default for name, default in others.items() if getattr(model, name) != default}


def own_config(architecture: Architecture) -> Json:
    """Return the config.json of our own form: of modeling_coca.py where it computes every layer, else of coca_train."""
    model, used = architecture.complete, architecture.layer_type_names
    unknown = (
        _unusual(model, EXPORTED_OPTIONS)
        or model.activation not in ACTIVATIONS
        or any(_needs_coca_train(kind, model) for kind in architecture.layer_types)
    )
    name = INSTALLED if unknown else COCA
    shared: Json = {
        "architectures": [CLASSES[name]],
        "model_type": name,
        "vocab_size": architecture.n_rows,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layers,
        "num_attention_heads": model.n_heads,
        "max_position_embeddings": architecture.seq_len,
        "tie_word_embeddings": model.tie_embeddings,
        "use_cache": True,
        OWN_SECTIONS: architecture.sections(),
    }
    if name == INSTALLED:
        return shared
    activation, gated = ACTIVATIONS[model.activation]
    return shared | {
        "layer_kinds": list(used),
        "kinds": {
            name: {part: asdict(settings) for part, settings in kind._asdict().items()}
            for name, kind in architecture.settings.items()
            if name in used
        },
        "auto_map": {
            "AutoConfig": f"{CONFIGURATION}.CocaConfig",
            "AutoModel": f"{MODELING}.CocaModel",
            "AutoModelForCausalLM": f"{MODELING}.CocaForCausalLM",
        },
        "intermediate_size": model.d_ff,
        "num_key_value_heads": model.n_kv_heads,
        "hidden_act": activation,
        "gated_mlp": gated,
        **{name: getattr(model, name) for name in SAME_NAMES},
        "initializer_range": model.init_std,
    }


def _needs_coca_train(kind: LayerType, model: ModelConfig) -> bool:
    """Return whether modeling_coca.py does not compute layers of this kind."""
    scaling = rope_scaling_of(kind.position)
    return (
        kind.position.scheme not in SCHEMES
        or (kind.position.scheme == "alibi" and model.score_cap is not None)  # the cap is of the score with its penalty
        or kind.attention_pattern.name not in ATTENTION_PATTERNS
        or kind.logit_scale.name not in LOGIT_SCALES
        or (scaling is not None and scaling.name not in ROPE_SCALINGS)
    )


def export_code(model_type: str) -> dict[str, bytes]:
    """Return the code of an export by file name: two files for a `coca` model, none for any other."""
    folder = Path(__file__).parent / "export_files"
    names = (CONFIGURATION, MODELING) if model_type == COCA else ()
    return {f"{name}.py": (folder / f"{name}.py").read_bytes() for name in names}


def own_classes(model_type: str) -> "tuple[type[PreTrainedModel], type[PretrainedConfig]]":
    """Return (model class, config class) from this package; those of an export are copies."""
    if model_type == COCA:
        from coca_train.hub.export_files.modeling_coca import CocaConfig, CocaForCausalLM

        return CocaForCausalLM, CocaConfig
    from coca_train.hub.installed import CocaTrainConfig, CocaTrainForCausalLM

    return CocaTrainForCausalLM, CocaTrainConfig


def check_code(folder: Path, model_type: str) -> None:
    """Compare the code in a folder with an export of this version, byte by byte; import nothing of it.

    Refuse also what Python would import before a modelling file or instead of it: packages, extension modules and
    compiled files. Raises UserError E-IOP-16.
    """
    expected = {folder / name: text for name, text in export_code(model_type).items()}
    modules = {path.stem for path in expected} | {"__pycache__"}
    suffixes = tuple(all_suffixes())
    importable = {path for path in folder.iterdir() if path.name.endswith(suffixes) or path.name in modules}
    for path in sorted(importable | expected.keys()):
        if (text := expected.get(path)) is None:
            what = "it is additional"
        elif not path.is_file():
            what = "it is missing"
        elif path.stat().st_size != len(text) or untrusted_io.read_bytes(path) != text:
            what = "its bytes differ"
        else:
            continue
        raise UserError(
            f"E-IOP-16 {path}: is not what this version exports ({what}); code of a folder is never run, so what it "
            "computes is unknown. Fix: remove what an export did not write, or export the run again"
        )
