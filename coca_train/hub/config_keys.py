"""The keys of a config.json: each is read, does not change what a model computes, or is refused."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from coca_train.config.fields import needs
from coca_train.config.schema import STRICT
from coca_train.positions.hugging_face import LEAST, is_positive
from coca_train.positions.hugging_face import MOST as MOST_NUMBER
from coca_train.runtime import untrusted_io
from coca_train.runtime.errors import UserError

Value = TypeVar("Value")
Default = TypeVar("Default")
Json = dict[str, object]  # an object of JSON
LIMIT = 4 << 20  # [bytes]
MOST = 2**31 - 1  # of anything counted: what a 32-bit index holds
TANH = "gelu_pytorch_tanh"  # of hidden_act
CODE = "auto_map"  # the key by which a folder names code of its own; never followed


def read_json(path: Path) -> Json:
    """Read a JSON object. Raises UserError E-IOP-03."""
    try:
        return untrusted_io.read_object(path, LIMIT)
    except (OSError, ValueError) as error:
        raise UserError(
            f"E-IOP-03 {path}: cannot be read ({getattr(error, 'strerror', None) or error}); a JSON object is needed. "
            "Fix: download or export the folder again"
        ) from None


def without_code(values: Mapping[str, object]) -> Json:
    """Return the same JSON without the key CODE, at any depth."""

    def cleaned(value: object) -> object:
        if isinstance(value, dict):
            return without_code(value)
        return [cleaned(each) for each in value] if isinstance(value, list) else value

    return {key: cleaned(value) for key, value in values.items() if key != CODE}


@dataclass(frozen=True, eq=False)
class Kind(Generic[Value]):
    """A type of value in a config.json, and its name in an error."""

    adapter: TypeAdapter[Value]
    words: str


def _kind(annotation: Any, words: str = "") -> Kind[Any]:
    """Return the kind of a type. Strict: true and false are no numbers, and 1.0 is no whole number."""
    return Kind(TypeAdapter(annotation, config=STRICT), words or needs(annotation, []))


_Number = Annotated[float, Field(ge=LEAST, le=MOST_NUMBER)]
_Count = Annotated[int, Field(gt=0, le=MOST)]
TRUTH: Kind[bool] = _kind(bool)
WHOLE: Kind[int] = _kind(int)
COUNT: Kind[int] = _kind(_Count)
COUNT_OR_NULL: Kind[int | None] = _kind(_Count | None)
LAYERS: Kind[int] = _kind(Annotated[int, Field(gt=0, le=1 << 16)])  # lists are made of them
NUMBER: Kind[float] = _kind(_Number)
NUMBER_OR_NULL: Kind[float | None] = _kind(_Number | None)
SHARE: Kind[float] = _kind(Annotated[float, Field(ge=LEAST, le=1)])
OBJECT_OR_NULL: Kind[Json | None] = _kind(Json | None, "an object, or null")

# Keys of bookkeeping, generation, training and kernels, which do not change what a model computes. Its class reads none
# of them; by dual_chunk_attention_config others compute something else beyond the length that it says (Qwen 2.5 1M).
HARMLESS = frozenset(
    (
        "_attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path "
        "architectures attention_dropout attention_probs_dropout_prob bad_words_ids begin_suppress_tokens "
        "bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout custom_pipelines "
        "decoder_start_token_id diversity_penalty do_sample dtype dual_chunk_attention_config early_stopping "
        "embd_pdrop embedding_dropout encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty "
        "finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout "
        "hidden_dropout_prob id2label is_decoder keys_to_ignore_at_inference label2id length_penalty max_length "
        "max_sequence_length min_length model_max_length model_type no_repeat_ngram_size num_beam_groups num_beams "
        "num_labels num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix "
        "pretraining_tp problem_type remove_invalid_values repetition_penalty resid_pdrop residual_dropout "
        "return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature "
        "tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config "
        "transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache use_parallel_embedding "
        f"{CODE}"
    ).split()
)


def section_of(values: Json, key: str) -> tuple[Json, str]:
    """Return the object that a key is in, by the dot in its name, and its name there."""
    section, _, name = key.rpartition(".")
    inner = values.get(section) if section else values
    return (inner if isinstance(inner, dict) else {}), name


def nested(values: Json) -> Json:
    """Return an object in which keys with a dot are in sections."""
    tree: Json = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        inner = tree.setdefault(section, {}) if section else tree
        assert isinstance(inner, dict)
        inner[name] = value
    return tree


class Fixed(NamedTuple):
    """A key of which we compute one value only."""

    theirs: str
    value: object
    default: object  # of the class, where the key is missing

    def holds(self, config: Json) -> bool:
        """Whether a config.json has this value; null is as if the key were missing."""
        section, name = section_of(config, self.theirs)
        value = self.default if section.get(name) is None else section[name]
        return type(value) is type(self.value) and value == self.value


class Only(NamedTuple):
    """A key that changes nothing for some values: a part that is switched off, or who wrote the file."""

    accepts: Callable[[object, Json], bool]  # (its value, the whole config.json)
    otherwise: str  # what another value means


def _whole_heads(config: Json) -> float | None:
    """Return the width of a head, where heads fill the width of the model."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return width / heads if isinstance(width, int) and isinstance(heads, int) and heads else None


def _off(otherwise: str) -> Only:
    return Only(lambda value, config: value is False, otherwise)


def _of(model_type: str, only: object, otherwise: str, of_key: str = "") -> Only:
    """Accept one value in one family: that of the key `of_key`, or where that is missing, `only`."""

    def accepts(value: object, config: Json) -> bool:
        wanted = config.get(of_key, only)
        return config.get("model_type") == model_type and type(value) is type(wanted) and value == wanted

    return Only(accepts, otherwise)


ONLY: Mapping[str, Only] = {
    # SmolLM and other models that nanotron trained
    "is_llama_config": Only(lambda value, config: value is True, "a model of nanotron that is no LLaMA"),
    "rope_interleaved": _off("features rotated as pairs 2j and 2j + 1"),
    # of Falcon 3, whose hidden_act says it too
    "activation": Only(lambda value, config: value == "swiglu", "another feed-forward layer than a gated SiLU"),
    # SmolLM3's, from Qwen2's configuration; no class of these families reads it
    "max_window_layers": Only(
        lambda value, config: type(value) is int and config.get("use_sliding_window", False) is False,
        "layers below it without a window, which layer_types says in these families",
    ),
    "head_dim": Only(  # of families whose class computes it
        lambda value, config: type(value) is int and _whole_heads(config) == value, "heads of another width"
    ),
    "_sliding_window_pattern": Only(
        lambda value, config: isinstance(config.get("layer_types"), list), "windows that layer_types does not list"
    ),
    # what releases of these families say, and their classes always compute, or read in another key
    "hidden_activation": _of("gemma", TANH, "another activation"),
    "hidden_act": _of("gemma2", TANH, "another activation", "hidden_activation"),
    "sliding_window_size": _of("gemma2", 4096, "another window", "sliding_window"),
    "layer_switch": _of("cohere2", 4, "windows in other layers", "sliding_window_pattern"),
    "order_of_interleaved_layers": _of("cohere2", "local_attn_first", "windows in other layers"),
    "position_embedding_type": _of("cohere2", "rope_gptj", "other positions"),
    "rotary_pct": _of("cohere2", 1.0, "a part of each head that is not rotated"),
    "use_embedding_sharing": _of("cohere2", True, "a head of its own", "tie_word_embeddings"),
    "use_gated_activation": _of("cohere2", True, "a feed-forward layer without a gate"),
    "use_parallel_block": _of("cohere2", True, "a feed-forward layer after attention"),
    "mlp_type": _of("starcoder2", "default", "another feed-forward layer"),
    "norm_type": _of("starcoder2", "layer_norm", "another normalisation"),
    "full_attn_mod": _of("phi3", 1, "layers that do not see all keys"),
    "interpolate_factor": _of("phi3", 1, "positions that are interpolated"),
    "ff_factor": _of("falcon", 4, "a feed-forward layer of another width"),
    "pruned_heads": Only(lambda value, config: value == {}, "heads that are missing in some layers"),
    "is_encoder_decoder": _off("an encoder"),
    "add_cross_attention": _off("attention to an encoder"),
}


class Keys:
    """The keys of a config.json, each read by name; `finish` refuses those that were not read.

    A missing key has the `default` of its class. null is a value only of kinds that say so. Keys of a section are
    named with a dot (attn_config.alibi).

    ignore: keys known to change nothing.
    """

    def __init__(self, where: Path, values: Json, ignore: tuple[str, ...] = ()) -> None:
        self.where = where
        self.values = dict(values)
        self._ignored = set(ignore)
        self._read: set[str] = set()

    def wrong(self, what: str, needed: str, fix: str = "import a model of this kind only") -> UserError:
        """Return the error for a valid value that we do not compute."""
        return UserError(f"E-IOP-04 {self.where} {what}; {needed}. Fix: {fix}")

    def has(self, key: str) -> bool:
        """Return whether the key exists, null or not."""
        self._read.add(key)
        section, name = section_of(self.values, key)
        return name in section

    def take(self, key: str, default: object = None) -> object:
        """Return the value as it is, the default where it is missing."""
        self._read.add(key)
        section, name = section_of(self.values, key)
        return section.get(name, default)

    def read(self, key: str, kind: Kind[Value], default: Default = None) -> Value | Default:
        """Return a value of this kind, the default where the key is missing."""
        if not self.has(key):
            return default
        value = self.take(key)
        try:
            return kind.adapter.validate_python(value)
        except ValidationError:
            raise UserError(
                f"E-IOP-03 {self.where} {key}={repr(value)[:200]}: must be {kind.words}. Fix: download or export the "
                "folder again"
            ) from None

    def word(self, key: str, allowed: Mapping[str | bool, Value], default: object) -> Value:
        """Return what `allowed` has for the value, which is one of its words (true and false are words too)."""
        value = self.take(key, default)
        if not isinstance(value, str | bool) or value not in allowed:
            raise self.wrong(f"{key}={value!r}", f"supported: {', '.join(map(str, allowed))}")
        return allowed[value]

    def positive(self, what: str, value: object) -> float:
        """Return the number above 0 at `what`."""
        if not is_positive(value):
            raise self.wrong(f"{what}={value!r}", "a number above 0 is needed", "correct the file")
        assert isinstance(value, int | float)
        return float(value)

    def ignored_in(self, section: str) -> frozenset[str]:
        """Return the keys of a section that are known to change nothing."""
        return frozenset(key.removeprefix(f"{section}.") for key in self._ignored if key.startswith(f"{section}."))

    def finish(self, harmless: Iterable[str] = ()) -> None:
        """Refuse every key that was not read and may change what the model computes. harmless: keys that do not."""
        known, values = {*self._read, *self._ignored, *HARMLESS, *harmless}, dict(self.values)
        for name in {key.partition(".")[0] for key in self._read if "." in key}:
            section = values.get(name)
            if isinstance(section, dict):
                del values[name]
                values |= {f"{name}.{key}": value for key, value in section.items() if key not in HARMLESS}
        left = {key: value for key, value in values.items() if key not in known and value is not None}
        if "quantization_config" in left:
            raise self.wrong("quantization_config", "weights in float32, bfloat16 or float16 are needed")
        for key in sorted(left.keys() & ONLY.keys()):
            if not ONLY[key].accepts(value := left.pop(key), self.values):
                raise self.wrong(f"{key}={value!r}", f"it would mean {ONLY[key].otherwise}")
        unknown = [key for key, value in left.items() if value is not False]
        if unknown:
            shown, names = ", ".join(f"{key}={left[key]!r}" for key in unknown)[:300], ",".join(unknown)
            raise self.wrong(
                shown,
                "it is unknown and may change what the model computes",
                f"when it changes nothing, ignore={names} (in a training start.ignore=[{names}])",
            )
