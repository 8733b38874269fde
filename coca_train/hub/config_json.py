"""config.json of a Hugging Face folder, read into an Architecture. What is not understood is refused, in words."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from coca_train import positions
from coca_train.config.older import model_config
from coca_train.config.schema import LayersConfig
from coca_train.hub import smollm3, uncovered
from coca_train.hub.architecture import Architecture
from coca_train.positions import hugging_face, visibilities
from coca_train.positions.layers import UNIFORM
from coca_train.positions.schemes import rope
from coca_train.runtime.errors import UserError

NAME = "config.json"
OWN = "coca_train"  # the key of our own exports that holds our sections as they are
FAMILIES = ("llama", "mistral", "smollm3", "gpt_neox")
LIMIT = 4 << 20  # [bytes]


class Defaults(NamedTuple):
    """What a family's class in transformers takes where config.json is silent, and others do otherwise."""

    max_positions: int
    n_kv_heads: int | None
    theta: float = 10000.0


DEFAULTS = {
    "llama": Defaults(2048, None),
    "mistral": Defaults(4096 * 32, 8),
    "smollm3": Defaults(32768, 4, 2_000_000.0),
}

# Nothing of the mathematics of a forward pass: bookkeeping, generation, training, numerics of other kernels.
HARMLESS = {
    "_name_or_path", "_attn_implementation_autoset", "architectures", "attention_dropout", "bos_token_id",
    "chunk_size_feed_forward", "classifier_dropout", "dtype", "eos_token_id", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout", "id2label", "initializer_range", "is_decoder",
    "keys_to_ignore_at_inference", "label2id", "max_length", "max_sequence_length", "model_type", "num_labels",
    "output_attentions", "output_hidden_states", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "return_dict", "return_dict_in_generate", "sep_token_id", "task_specific_params", "tokenizer_class",
    "torch_dtype", "torchscript", "transformers.js_config", "transformers_version", "use_cache",
}  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises UserError E-IOP-03."""
    try:
        if path.stat().st_size > LIMIT:
            raise ValueError(f"{path.stat().st_size} bytes, more than {LIMIT}")
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no object")
        return values
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"E-IOP-03 {path}: cannot be read ({getattr(error, 'strerror', None) or error}); a JSON object is needed. "
            "Fix: download or export the folder again"
        ) from None


class Keys:
    """The keys of a config.json, each asked for by name; `finish` refuses those nobody asked for."""

    def __init__(self, where: Path, values: dict[str, Any], ignore: tuple[str, ...] = ()) -> None:
        self.where = where
        self._values = dict(values)
        self._asked = HARMLESS | set(ignore)

    def wrong(self, what: str, needed: str, fix: str = "import a model of this kind only") -> UserError:
        return UserError(f"E-IOP-04 {self.where} {what}; {needed}. Fix: {fix}")

    def whole(self, key: str, default: int | None = None, *, optional: bool = False) -> Any:
        """A whole number above 0. optional: None where it is missing or null."""
        value = self.take(key, default)
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._untyped(key, value, "a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._untyped(key, value, "a number above 0")
        return float(value)

    def truth(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self._untyped(key, value, "true or false")
        return value

    def word(self, key: str, allowed: dict[str, str], default: str) -> str:
        """One of the words of `allowed`, translated."""
        value = self.take(key, default)
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong(f"{key}={value!r}", f"supported: {', '.join(allowed)}")
        return allowed[value]

    def mapping(self, key: str) -> dict[str, Any] | None:
        value = self.take(key, None)
        if value is not None and not isinstance(value, dict):
            raise self._untyped(key, value, "an object or null")
        return value

    def finish(self) -> None:
        """Refuse every key that says something and that nobody asked for."""
        left = [key for key, value in self._values.items() if key not in self._asked and value not in (None, False)]
        if "quantization_config" in left:
            raise self.wrong("quantization_config", "weights in float32, bfloat16 or float16 are needed")
        if "auto_map" in left:
            raise self.wrong("auto_map", "the folder brings its own code, which is never run here")
        if left:
            shown = ", ".join(f"{key}={self._values[key]!r}" for key in left)[:300]
            raise self.wrong(
                shown, "it is not known here and may change what the model computes",
                f"when it changes nothing, ignore={','.join(left)} (in a training start.ignore=[{','.join(left)}])",
            )  # fmt: skip

    def take(self, key: str, default: Any = None) -> Any:
        """The value as it is; the default where it is missing or null."""
        self._asked.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def _untyped(self, key: str, value: Any, needed: str) -> UserError:
        return UserError(
            f"E-IOP-03 {self.where} {key}={value!r}: must be {needed}. Fix: download or export the folder again"
        )


def architecture(folder: Path, ignore: tuple[str, ...] = ()) -> Architecture:
    """What the model of a Hugging Face folder computes.

    ignore: keys of config.json known to change nothing. Raises UserError E-IOP-03 (unreadable, wrong type), E-IOP-04
    (understood, and not what we compute; or not understood).
    """
    path = folder / NAME
    values = read_json(path)
    if isinstance(values.get(OWN), dict):
        return _own(path, values[OWN])
    keys = Keys(path, values, ignore)
    family = values.get("model_type")
    if parts := uncovered.parts(values):
        raise keys.wrong(f"model_type={family!r}", f"it has parts that are not covered here: {', '.join(parts)}")
    if family not in FAMILIES:
        raise keys.wrong(f"model_type={family!r}", f"known are {', '.join(FAMILIES)} and our own exports")
    try:
        sections = (_neox if family == "gpt_neox" else _llama)(keys, family)
        architecture = _typed(path, **sections)
    except hugging_face.NotTheSame as error:
        raise keys.wrong(f"positions: {error}", "this is not what we compute") from None
    keys.finish()
    return architecture


def _llama(keys: Keys, family: str) -> dict[str, Any]:
    bias = keys.truth("attention_bias", False)
    if family != "mistral" and keys.truth("mlp_bias", False) != bias:
        raise keys.wrong(f"attention_bias={bias}, mlp_bias={not bias}", "biases are everywhere or nowhere here")
    defaults = DEFAULTS[family]
    max_positions = keys.whole("max_position_embeddings", defaults.max_positions)
    rotary_pct, frequencies = _rotation(keys, max_positions, 1.0, "rope_theta", defaults.theta)
    if rotary_pct != 1:
        raise keys.wrong(f"partial_rotary_factor={rotary_pct:g}", "LLaMA, Mistral and SmolLM3 rotate the whole head")
    window = keys.whole("sliding_window", optional=True) if family == "mistral" else None
    keys.word("hidden_act", {"silu": "swiglu", "swish": "swiglu"}, "silu")
    return {
        "model": _shape(keys, tied=family == "smollm3") | {
            "n_kv_heads": keys.whole("num_key_value_heads", defaults.n_kv_heads, optional=True),
            "head_dim": keys.whole("head_dim", optional=True),
            "norm": "rmsnorm",
            "norm_eps": keys.number("rms_norm_eps", 1e-6),
            "activation": "swiglu",
            "residual": "sequential",
            "bias": bias,
        },
        "position": rope.from_transformers(rotary_pct, frequencies),
        "visibility": {"name": "causal"} if window is None else {"name": "sliding_window", "window": window},
        "seq_len": max_positions,
        **({"layers": _layers(keys)} if family == "smollm3" else {}),
    }  # fmt: skip


def _layers(keys: Keys) -> dict[str, Any]:
    """SmolLM3's schedule."""
    windowed = keys.truth("use_sliding_window", False)
    window = keys.whole("sliding_window", optional=True)
    interval, n_layers = keys.whole("no_rope_layer_interval", 4), keys.whole("num_hidden_layers")
    lists = [keys.take(key) for key in ("no_rope_layers", "layer_types")]
    return smollm3.layers(n_layers, lists[0], interval, lists[1], window if windowed else None)


def _neox(keys: Keys, family: str) -> dict[str, Any]:
    if not keys.truth("attention_bias", True):
        raise keys.wrong("attention_bias=False", "GPT-NeoX has biases everywhere here")
    max_positions = keys.whole("max_position_embeddings", 2048)
    rotary_pct, frequencies = _rotation(keys, max_positions, 0.25, "rotary_emb_base")
    gelu = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
    parallel = keys.truth("use_parallel_residual", True)
    return {
        "model": _shape(keys) | {
            "n_kv_heads": None,
            "head_dim": None,
            "norm": "layernorm",
            "norm_eps": keys.number("layer_norm_eps", 1e-5),
            "activation": keys.word("hidden_act", gelu, "gelu"),
            "residual": "parallel" if parallel else "sequential",
            "bias": True,
        },
        "position": rope.from_transformers(rotary_pct, frequencies),
        "visibility": {"name": "causal"},
        "seq_len": max_positions,
    }  # fmt: skip


def _shape(keys: Keys, tied: bool = False) -> dict[str, Any]:
    """What all families share, names translated; what only training needs has our defaults."""
    return {
        "n_layers": keys.whole("num_hidden_layers"),
        "d_model": keys.whole("hidden_size"),
        "n_heads": keys.whole("num_attention_heads"),
        "d_ff": keys.whole("intermediate_size"),
        "vocab_size": keys.whole("vocab_size"),
        "tie_embeddings": keys.truth("tie_word_embeddings", tied),
        "dropout": 0.0,
        "init_std": keys.number("initializer_range", 0.02),
        "init_depth_scaled": False,
    }


def _rotation(
    keys: Keys, max_positions: int, default_pct: float, base: str, default_theta: float = 10000.0
) -> tuple[float, dict[str, Any]]:
    """The rotated share of a head and our frequencies, from wherever a version of transformers wrote them."""
    older, newer = keys.mapping("rope_scaling") or {}, keys.mapping("rope_parameters") or {}
    scaling = dict(older or newer)
    shares = [part.get("partial_rotary_factor") for part in (older, newer)]
    shares += [keys.take("partial_rotary_factor"), keys.take("rotary_pct")]
    thetas = [older.get("rope_theta"), newer.get("rope_theta"), keys.take(base)]
    rotary_pct = _agreed(keys, "partial_rotary_factor", shares, default_pct)
    theta = _agreed(keys, base, thetas, default_theta)
    if theta <= 1:
        raise keys.wrong(f"{base}={theta:g}", "a base above 1 is needed")
    for key in ("rope_theta", "partial_rotary_factor"):
        scaling.pop(key, None)
    if original := keys.whole("original_max_position_embeddings", optional=True):  # where Phi-3 has it
        scaling.setdefault("original_max_position_embeddings", original)
    return rotary_pct, hugging_face.frequencies(scaling, theta, max_positions, rotary_pct)


def _agreed(keys: Keys, what: str, values: list[Any], default: float) -> float:
    """The one value that is given, in one place or in several."""
    given = {value for value in values if value is not None}
    if len(given) > 1:
        raise keys.wrong(f"{what}: {', '.join(map(str, given))}", "one value is needed", "correct the file")
    value = given.pop() if given else default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise keys.wrong(f"{what}={value!r}", "a number above 0 is needed", "correct the file")
    return float(value)


def _own(path: Path, sections: dict[str, Any]) -> Architecture:
    if not set(sections) >= {"model", "position", "visibility", "seq_len"}:
        raise UserError(f"E-IOP-03 {path} {OWN}: sections are missing. Fix: export the folder again")
    named = ("model", "position", "visibility", "seq_len", "layers")
    return _typed(path, **{key: sections[key] for key in named if key in sections})


def _typed(
    path: Path, model: dict[str, Any], position: Any, visibility: Any, seq_len: int, layers: Any = None
) -> Architecture:
    """The sections, typed and held against each other."""
    try:
        typed = model_config(model)
        for whole, parts, what in (
            (typed.d_model, None if typed.head_dim else typed.n_heads, "attention heads do not divide the width"),
            (typed.n_heads, typed.n_kv_heads, "key/value heads do not divide the query heads"),
        ):
            if parts is not None and whole % parts:
                raise ValueError(f"{parts} {what} of {whole}")
        settings = positions.settings(position)
        problems = getattr(settings, "problems", lambda model: [])(typed)
        if problems:
            raise ValueError(problems[0][1])
        schedule = UNIFORM if layers is None else TypeAdapter(LayersConfig).validate_json(json.dumps(layers))
        return Architecture(typed, settings, visibilities.settings(visibility), seq_len, schedule)
    except (ValidationError, ValueError, TypeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise UserError(f"E-IOP-04 {path}: {reason}; such a model cannot be built. Fix: download it again") from None
