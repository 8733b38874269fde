"""The keys of a config.json: each is read by whoever understands it, says nothing about what a model computes, or is
refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coca_train.positions.hugging_face import is_positive
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import UserError

LIMIT = 4 << 20  # [bytes]
MOST = 2**31 - 1  # of anything counted: what a 32-bit index holds
MOST_LAYERS = 1 << 16
CODE = "auto_map"  # the key by which a folder names code of its own; never followed


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UserError E-IOP-03."""
    try:
        return untrusted_io.read_object(path, LIMIT)
    except (OSError, ValueError) as error:
        raise UserError(
            f"E-IOP-03 {path}: cannot be read ({getattr(error, 'strerror', None) or error}); a JSON object is needed. "
            "Fix: download or export the folder again"
        ) from None


def without_code(values: Any) -> Any:
    """Return the same JSON without the key CODE, at any depth."""
    if isinstance(values, dict):
        return {key: without_code(value) for key, value in values.items() if key != CODE}
    return [without_code(value) for value in values] if isinstance(values, list) else values


def is_whole(value: Any) -> bool:
    """Return whether it is a whole number. Python takes true and false for numbers too, JSON does not."""
    return isinstance(value, int) and not isinstance(value, bool)


class Type(NamedTuple):
    """A type of value, and its name in an error."""

    matches: Callable[[Any], bool]
    words: str


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_token_ids(value: Any) -> bool:
    """A token id or a list of them; -1 is how old files write that there is none."""
    return all(is_whole(one) and one >= -1 for one in (value if isinstance(value, list) else [value]))


# Keys of bookkeeping, generation, training and kernels, which say nothing about what a model computes.
HARMLESS_BY_TYPE: dict[Type, str] = {
    Type(lambda value: True, "anything"):
        "_attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled bad_words_ids "
        "begin_suppress_tokens custom_pipelines diversity_penalty do_sample early_stopping "
        "encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task length_penalty max_length "
        "min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores "
        "prefix remove_invalid_values repetition_penalty suppress_tokens task_specific_params temperature "
        "tf_legacy_loss top_k top_p transformers.js_config typical_p unsloth_fixed unsloth_version use_bfloat16",
    Type(_is_share, "a number from 0 to 1"):
        "attention_dropout attention_probs_dropout_prob classifier_dropout hidden_dropout hidden_dropout_prob",
    Type(is_whole, "a whole number"): "chunk_size_feed_forward max_sequence_length num_labels pretraining_tp",
    Type(lambda value: isinstance(value, bool), "true or false"):
        "gradient_checkpointing is_decoder output_attentions output_hidden_states return_dict "
        "return_dict_in_generate torchscript use_cache",
    Type(lambda value: isinstance(value, str), "text"):
        "_name_or_path dtype problem_type tokenizer_class torch_dtype transformers_version",
    Type(lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of texts"):
        "architectures keys_to_ignore_at_inference",
    Type(_is_token_ids, "a token id or a list of them"):
        "bos_token_id decoder_start_token_id eos_token_id forced_bos_token_id forced_eos_token_id pad_token_id "
        "sep_token_id",
    Type(lambda value: isinstance(value, dict), "an object"): f"{CODE} id2label label2id",
}  # fmt: skip
HARMLESS: Mapping[str, Type] = {key: kind for kind, keys in HARMLESS_BY_TYPE.items() for key in keys.split()}


class Only(NamedTuple):
    """A key that says nothing for some values: a part that is switched off, or who wrote the file.

    accepts: (its value, the whole config.json). otherwise: what another value means.
    """

    accepts: Callable[[Any, dict[str, Any]], bool]
    otherwise: str


def _off(otherwise: str) -> Only:
    return Only(lambda value, config: value is False, otherwise)


ONLY: Mapping[str, Only] = {
    # SmolLM and other models that nanotron trained
    "is_llama_config": Only(lambda value, config: value is True, "a model of nanotron that is no LLaMA"),
    "rope_interleaved": _off("features rotated as pairs 2j and 2j + 1"),
    # of Falcon 3, whose hidden_act says it too
    "activation": Only(lambda value, config: value == "swiglu", "another feed-forward layer than a gated SiLU"),
    # SmolLM3's, from Qwen2's configuration; no class of these families reads it
    "max_window_layers": Only(
        lambda value, config: is_whole(value) and config.get("use_sliding_window", False) is False,
        "layers below it without a window, which layer_types says in these families",
    ),
    "pruned_heads": Only(lambda value, config: value == {}, "heads that are missing in some layers"),
    "is_encoder_decoder": _off("an encoder"),
    "add_cross_attention": _off("attention to an encoder"),
}


class Keys:
    """The keys of a config.json, each read by name; `finish` refuses those that nobody read.

    A missing key means what its class takes then, the `default`. null is no value, as in transformers: where a class
    accepts it, read with `optional`; elsewhere it is of a wrong type.

    ignore: keys known to change nothing, those of a section with a dot (rope_scaling.finetuned).
    """

    def __init__(self, where: Path, values: dict[str, Any], ignore: tuple[str, ...] = ()) -> None:
        self.where = where
        self._values = dict(values)
        self._ignored = set(ignore)
        self._read: set[str] = set()

    def wrong(self, what: str, needed: str, fix: str = "import a model of this kind only") -> UserError:
        """Return the error for a value that is understood and is not what we compute."""
        return UserError(f"E-IOP-04 {self.where} {what}; {needed}. Fix: {fix}")

    def has(self, key: str) -> bool:
        """Return whether it is there, null or not."""
        self._read.add(key)
        return key in self._values

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value as it is, the default where it is missing."""
        self._read.add(key)
        return self._values.get(key, default)

    def whole(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """Return a whole number above 0."""
        value = self.take(key, default)
        if not is_whole(value) or not 0 < value <= most:
            raise self._mistyped(key, value, f"a whole number from 1 to {most}")
        return value

    def layers(self, key: str, default: int | None = None) -> int:
        """Return a number of layers, which lists are made of."""
        return self.whole(key, default, MOST_LAYERS)

    def optional(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number above 0, or None for null."""
        return None if self.take(key, default) is None else self.whole(key, default)

    def whole_or_missing(self, key: str, default: None = None) -> int | None:
        """Return a whole number above 0, or None where the key is missing; null is refused."""
        return self.whole(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value = self.take(key, default)
        if not is_positive(value):
            raise self._mistyped(key, value, "a number above 0")
        return float(value)

    def share(self, key: str, default: float | None = None) -> float:
        """Return a number above 0 and at most 1."""
        if (value := self.number(key, default)) > 1:
            raise self._mistyped(key, value, "a number above 0 and at most 1")
        return value

    def truth(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self._mistyped(key, value, "true or false")
        return value

    def word(self, key: str, allowed: Mapping[Any, Any], default: Any) -> Any:
        """Return what `allowed` has for the value, which is one of its words (true and false are words too)."""
        value = self.take(key, default)
        if not isinstance(value, str | bool) or value not in allowed:
            raise self.wrong(f"{key}={value!r}", f"supported: {', '.join(map(str, allowed))}")
        return allowed[value]

    def mapping(self, key: str) -> dict[str, Any] | None:
        """Return an object, or None for null and for a missing key."""
        value = self.take(key)
        if value is not None and not isinstance(value, dict):
            raise self._mistyped(key, value, "an object or null")
        return value

    def positive(self, what: str, value: Any) -> float:
        """Return a number above 0 that was found at `what`."""
        if not is_positive(value):
            raise self.wrong(f"{what}={value!r}", "a number above 0 is needed", "correct the file")
        return float(value)

    def ignored_in(self, section: str) -> frozenset[str]:
        """Return the keys of a section that are known to change nothing."""
        return frozenset(key.removeprefix(f"{section}.") for key in self._ignored if key.startswith(f"{section}."))

    def finish(self) -> None:
        """Refuse every key that says something and that nobody read."""
        known = self._read | self._ignored
        left = {key: value for key, value in self._values.items() if key not in known and value is not None}
        if "quantization_config" in left:
            raise self.wrong("quantization_config", "weights in float32, bfloat16 or float16 are needed")
        for key in left.keys() & HARMLESS.keys():
            if not HARMLESS[key].matches(value := left.pop(key)):
                raise self._mistyped(key, value, HARMLESS[key].words)
        for key in sorted(left.keys() & ONLY.keys()):
            if not ONLY[key].accepts(value := left.pop(key), self._values):
                raise self.wrong(f"{key}={value!r}", f"it would mean {ONLY[key].otherwise}")
        unknown = [key for key, value in left.items() if value is not False]
        if unknown:
            shown, names = ", ".join(f"{key}={left[key]!r}" for key in unknown)[:300], ",".join(unknown)
            raise self.wrong(
                shown,
                "it is not known here and may change what the model computes",
                f"when it changes nothing, ignore={names} (in a training start.ignore=[{names}])",
            )

    def _mistyped(self, key: str, value: Any, needed: str) -> UserError:
        shown = repr(value)[:200]
        return UserError(
            f"E-IOP-03 {self.where} {key}={shown}: must be {needed}. Fix: download or export the folder again"
        )
