"""Model families with a class in transformers: a declaration of each, for `import` and `export`.

A family declares its class, the keys of its config.json, options with a fixed value, how its layers differ, and the
names of its weights. Both ways refuse, by NotTheSame or UserError, what the other side would compute differently.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from coca_train.attention.layer_types import describe_layers
from coca_train.config.schema import DEFAULT, ModelConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_keys import (
    COUNT,
    COUNT_OR_NULL,
    LAYERS,
    NUMBER,
    NUMBER_OR_NULL,
    SHARE,
    TRUTH,
    WHOLE,
    Json,
    Keys,
    Kind,
)
from coca_train.positions.hugging_face import NotTheSame, rotation
from coca_train.positions.rotary import width

FULL, SLIDING = "full_attention", "sliding_attention"
Words = Mapping[str | bool, object]  # theirs, and ours for each
CAUSAL: Json = {"name": "causal"}
Item = TypeVar("Item", int, str)


class Power(NamedTuple):
    """Our number is theirs to a power."""

    exponent: float

    def ours(self, theirs: float) -> float:
        return theirs**self.exponent

    def theirs(self, ours: float) -> float:
        value = ours ** (1 / self.exponent)
        return round(value) if math.isclose(value, round(value), rel_tol=1e-12) else value


INVERSE, INVERSE_ROOT = Power(-1.0), Power(-0.5)


class Field(NamedTuple):
    """A key of config.json that is an option of ours."""

    theirs: str
    ours: str
    kind: Kind[Any] | Words
    default: object = None  # of the class, where the key is missing
    power: Power | None = None

    def read(self, keys: Keys) -> object:
        """Return our value."""
        if isinstance(self.kind, Mapping):
            return keys.word(self.theirs, self.kind, self.default)
        value: Any = keys.read(self.theirs, self.kind, self.default)
        return value if self.power is None else self.power.ours(value)

    def write(self, model: ModelConfig) -> object:
        """Return their value; the first of several words for one of ours."""
        value = getattr(model, self.ours)
        if isinstance(self.kind, Mapping):
            return next(theirs for theirs, ours in self.kind.items() if ours == value)
        return value if self.power is None else self.power.theirs(value)


class BiasKey(NamedTuple):
    """A key of config.json that gives parts of the model biases, or none."""

    theirs: str
    parts: tuple[str, ...]
    default: bool = False


class LayerRule(ABC):
    """How the layers of a model differ from each other."""

    @abstractmethod
    def read(self, keys: Keys, n_layers: int) -> tuple[Json, Json | None]:
        """Return our section `attention_pattern`, and `layers` where they differ. Raises NotTheSame."""

    @abstractmethod
    def write(self, architecture: Architecture) -> Json:
        """Return keys of config.json. Raises NotTheSame where the family has no such layers."""


class CausalLayers(LayerRule):
    """All layers alike, without a window."""

    def read(self, keys: Keys, n_layers: int) -> tuple[Json, Json | None]:
        return CAUSAL, None

    def write(self, architecture: Architecture) -> Json:
        _refuse_other_layers(architecture, "causal")
        return {}


@dataclass(frozen=True)
class WindowLayers(LayerRule):
    """All layers alike, with one window or none, as config.json says (Mistral). default: where it says nothing."""

    default: int | None = 4096

    def read(self, keys: Keys, n_layers: int) -> tuple[Json, Json | None]:
        size = keys.read("sliding_window", COUNT_OR_NULL, self.default)
        return (CAUSAL if size is None else {"name": "sliding_window", "window": size}), None

    def write(self, architecture: Architecture) -> Json:
        _refuse_other_layers(architecture, "causal", "sliding_window")
        return {"sliding_window": getattr(architecture.attention_pattern, "window", None)}


@dataclass(frozen=True)
class TypedLayers(LayerRule):
    """A window or all keys, as `layer_types` says of each layer. period: where it says nothing, every so many layers
    one has all keys. nope: those have no positions (Cohere 2)."""

    period: int
    period_key: str = ""
    nope: bool = False

    def read(self, keys: Keys, n_layers: int) -> tuple[Json, Json | None]:
        period = keys.read(self.period_key, COUNT, self.period) if self.period_key else self.period
        size = keys.read("sliding_window", COUNT_OR_NULL, 4096)
        default = [SLIDING if (layer + 1) % period else FULL for layer in range(n_layers)]
        types = _of_layers("layer_types", keys.take("layer_types"), (FULL, SLIDING), default)
        if size is None and SLIDING in types:
            raise NotTheSame(f"layer_types with {SLIDING}, and no sliding_window")
        if not self.nope:
            return CAUSAL, windows_of(types, size)
        window: Json = {"name": "sliding_window", "window": size} if size is not None else CAUSAL
        far = {"position": {"scheme": "nope"}, "attention_pattern": CAUSAL}
        pattern = _shortest([DEFAULT if kind == SLIDING else "far" for kind in types])
        return window, {"pattern": pattern, "types": {"far": far}} if FULL in types else None

    def write(self, architecture: Architecture) -> Json:
        types, size = types_of(architecture, nope=self.nope)
        return {"layer_types": types, "sliding_window": size}


class LaterWindowLayers(LayerRule):
    """A window in the layers from `max_window_layers` on, where `use_sliding_window` is true (Qwen); `layer_types`
    says the same of each layer."""

    def read(self, keys: Keys, n_layers: int) -> tuple[Json, Json | None]:
        windowed = keys.read("use_sliding_window", TRUTH, False)
        size, first = keys.read("sliding_window", COUNT_OR_NULL, 4096), keys.read("max_window_layers", WHOLE, 28)
        size = size if windowed else None
        default = [SLIDING if size is not None and layer >= first else FULL for layer in range(n_layers)]
        types = _of_layers("layer_types", keys.take("layer_types"), (FULL, SLIDING), default)
        if size is None and SLIDING in types:
            raise NotTheSame(f"layer_types with {SLIDING}, and no window in use_sliding_window and sliding_window")
        return CAUSAL, windows_of(types, size)

    def write(self, architecture: Architecture) -> Json:
        types, size = types_of(architecture)
        return {
            "layer_types": types,
            "use_sliding_window": size is not None,
            "sliding_window": size,
            "max_window_layers": types.index(SLIDING) if SLIDING in types else len(types),
        }


def windows_of(types: list[str], size: int | None) -> Json | None:
    """Return our `layers` section where some layers have a window; None: none has."""
    if SLIDING not in types:
        return None
    local = {"attention_pattern": {"name": "sliding_window", "window": size}}
    return {"pattern": _shortest([DEFAULT if kind == FULL else "local" for kind in types]), "types": {"local": local}}


def _shortest(names: list[str]) -> list[str]:
    """Return the shortest pattern that gives all of them when it is repeated, as a person would write it."""
    lengths = range(1, len(names) + 1)
    return names[: next(n for n in lengths if all(name == names[i % n] for i, name in enumerate(names)))]


def types_of(architecture: Architecture, nope: bool = False) -> tuple[list[str], int | None]:
    """Return the type of each layer, and the window of those that have one. Raises NotTheSame for layers that differ
    in more, or by windows of several sizes. nope: layers without a window have no positions."""
    types, windows = [], set()
    for kind in architecture.layer_types:
        if kind.attention_pattern.name not in ("causal", "sliding_window"):
            raise NotTheSame(f"attention pattern {kind.attention_pattern.name}")
        size = getattr(kind.attention_pattern, "window", None)
        if kind.position.scheme != "nope" if nope and size is None else kind.position != architecture.position:
            raise NotTheSame(f"layers with other positions than the run's ({kind.position.scheme})")
        types.append(FULL if size is None else SLIDING)
        windows |= {size} - {None}
    if len(windows) > 1:
        raise NotTheSame(f"windows of {' and '.join(map(str, sorted(windows)))} tokens; it has one")
    return types, next(iter(windows), None)


def _refuse_other_layers(architecture: Architecture, *attention_patterns: str) -> None:
    """Raise NotTheSame unless all layers are alike and have one of these attention patterns."""
    if not architecture.is_uniform:
        raise NotTheSame(
            f"layers of several types ({describe_layers(architecture.layers, architecture.model.n_layers)})"
        )
    if architecture.attention_pattern.name not in attention_patterns:
        raise NotTheSame(f"attention pattern {architecture.attention_pattern.name}")


class ListedLayers(LayerRule):
    """For each layer RoPE or no positions (`no_rope_layers`, 1: RoPE), and all keys or one window (`layer_types`)."""

    def read(self, keys: Keys, n_layers: int) -> tuple[Json, Json | None]:
        windowed = keys.read("use_sliding_window", TRUTH, False)
        size = keys.read("sliding_window", COUNT_OR_NULL)
        interval = keys.read("no_rope_layer_interval", COUNT, 4)
        ropes, types = keys.take("no_rope_layers"), keys.take("layer_types")
        return CAUSAL, self.section(n_layers, ropes, interval, types, size if windowed else None)

    def section(self, n_layers: int, ropes: object, interval: int, types: object, window: int | None) -> Json:
        """Return our `layers` section. window: None where use_sliding_window is false. Raises NotTheSame."""
        ropes = _of_layers("no_rope_layers", ropes, (0, 1), [int((i + 1) % interval != 0) for i in range(n_layers)])
        default = [SLIDING if window is not None and not rope else FULL for rope in ropes]
        types = _of_layers("layer_types", types, (FULL, SLIDING), default)
        if window is None and SLIDING in types:
            raise NotTheSame(f"layer_types with {SLIDING}, and no window in use_sliding_window and sliding_window")
        names = {(1, FULL): DEFAULT, (0, FULL): "nope", (1, SLIDING): "local", (0, SLIDING): "nope_local"}
        kind_of = [names[one] for one in zip(ropes, types, strict=True)]
        nope, local = (
            {"position": {"scheme": "nope"}},
            {"attention_pattern": {"name": "sliding_window", "window": window}},
        )
        kinds = {"nope": nope, "local": local, "nope_local": nope | local}
        used = {name: kind for name, kind in kinds.items() if name in kind_of}
        return {"pattern": _shortest(kind_of) if used else [], "types": used}

    def write(self, architecture: Architecture) -> Json:
        ropes, types, windows = [], [], set()
        for kind in architecture.layer_types:
            rotated = rotation(kind.position, architecture.head_dim)
            size = getattr(kind.attention_pattern, "window", None)
            if rotated is not None and kind.position != architecture.position:
                raise NotTheSame(f"layers with other positions than the run's ({kind.position.scheme})")
            if kind.attention_pattern.name not in ("causal", "sliding_window"):
                raise NotTheSame(f"attention pattern {kind.attention_pattern.name}")
            ropes.append(int(rotated is not None))
            types.append(FULL if size is None else SLIDING)
            windows |= {size} - {None}
        if len(windows) > 1:
            raise NotTheSame(f"windows of {' and '.join(map(str, sorted(windows)))} tokens; it has one")
        return {
            "no_rope_layers": ropes,
            "layer_types": types,
            "use_sliding_window": bool(windows),
            "sliding_window": next(iter(windows), None),
        }


def _of_layers(key: str, values: object, known: tuple[Item, Item], default: list[Item]) -> list[Item]:
    """Return one of two values for each layer, the default where there are none. Raises NotTheSame."""
    if values is None:
        return default
    each = values if isinstance(values, list) else []
    kept = [one for value in each for one in known if type(one) is type(value) and one == value]
    if not len(each) == len(kept) == len(default):
        raise NotTheSame(f"{key}: {len(default)} of {known[0]} and {known[1]} are needed")
    return kept


class Layout(ABC):
    """Modules of ours in one tensor of theirs, by rows. parts: the modules, as they follow each other."""

    parts: tuple[str, ...]

    @abstractmethod
    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        """Return our parameter out of their tensor."""

    @abstractmethod
    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        """Return their tensor out of ours, one for each part."""


class Rows(Layout):
    """The rows of one module after those of another (Phi-3)."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        rows = {"attention.q": architecture.model.n_heads, "attention.k": architecture.n_kv_heads}
        rows["attention.v"] = rows["attention.k"]
        sizes = [rows[name] * architecture.head_dim if name in rows else architecture.model.d_ff for name in self.parts]
        return tensor.split(sizes)[part]

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        return torch.cat(tensors)


class PerHead(Layout):
    """The rows of the first head's query, key and value, then of the second's, and so on; there are as many key heads
    as query heads (GPT-NeoX)."""

    parts = ("attention.q", "attention.k", "attention.v")

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        by_head = tensor.unflatten(0, (architecture.model.n_heads, len(self.parts), architecture.head_dim))
        return by_head[:, part].flatten(0, 1)

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        by_head = [tensor.unflatten(0, (architecture.model.n_heads, -1)) for tensor in tensors]
        return torch.stack(by_head, 1).flatten(0, 2)


class Interleaved(Layout):
    """Features that are rotated together are neighbours, 2j and 2j + 1, where ours are j and j + half the rotated width
    (GLM, Cohere)."""

    def __init__(self, part: str) -> None:
        self.parts = (part,)

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        by_head, width = tensor.unflatten(0, (-1, architecture.head_dim)), self._width(architecture)
        pairs = by_head[:, :width].unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
        return torch.cat((pairs, by_head[:, width:]), 1).flatten(0, 1)

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        (tensor,) = tensors
        by_head, width = tensor.unflatten(0, (-1, architecture.head_dim)), self._width(architecture)
        pairs = by_head[:, :width].unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
        return torch.cat((pairs, by_head[:, width:]), 1).flatten(0, 1)

    def _width(self, architecture: Architecture) -> int:
        """Return the rotated features of a head."""
        rotated = rotation(architecture.position, architecture.head_dim)
        assert rotated is not None, "families with this layout have RoPE"
        return width(architecture.head_dim, rotated.rotary_pct)


PAIRS = (Interleaved("attention.q"), Interleaved("attention.k"))


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model_type of transformers. Numbers are the defaults of its class for keys missing from config.json."""

    transformers_class: str
    fields: tuple[Field, ...]  # keys that are options of ours
    always: Json  # options with a fixed value in its class
    names: Mapping[str, str]  # of its modules, by ours
    bias: tuple[str, ...] = ()  # the parts that always have one
    biases: tuple[BiasKey, ...] = ()  # keys of the others
    root_embedding: bool = False  # it multiplies embeddings by the root of their width
    layers: LayerRule = CausalLayers()  # noqa: RUF009  # it has no state
    layouts: tuple[Layout, ...] = ()  # modules whose rows are not as ours
    theta_key: str = "rope_theta"
    theta: float = 10000.0
    share_key: str = "partial_rotary_factor"  # of the rotated share of a head
    share: float = 1.0
    whole_head: bool = True  # it always rotates the whole head
    max_positions: int = 2048
    scaled_since: str = ""  # the first version of transformers whose class reads rope_scaling; "": all that matter
    yarn_authors: str = ""  # constants of YaRN in its authors' code for this family, where its class has others
    divisible: bool = False  # its class refuses heads that do not divide the width, even where head_dim is given


def shape_fields(
    vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_ff: int, init_std: float = 0.02
) -> tuple[Field, ...]:
    """Return the keys that every family has, with their defaults."""
    return (
        Field("vocab_size", "vocab_size", COUNT, vocab_size),
        Field("hidden_size", "d_model", COUNT, d_model),
        Field("num_hidden_layers", "n_layers", LAYERS, n_layers),
        Field("num_attention_heads", "n_heads", COUNT, n_heads),
        Field("intermediate_size", "d_ff", COUNT, d_ff),
        Field("initializer_range", "init_std", SHARE, init_std),
    )


def llama_fields(tied: bool = False) -> tuple[Field, ...]:
    """Return the keys of LLaMA and its heirs. tied: the default of tie_word_embeddings."""
    return (
        Field("hidden_act", "activation", {"silu": "swiglu", "swish": "swiglu"}, "silu"),
        Field("rms_norm_eps", "norm_eps", NUMBER, 1e-6),
        Field("tie_word_embeddings", "tie_embeddings", TRUTH, tied),
    )


KV_HEADS, HEAD_DIM = ("num_key_value_heads", "n_kv_heads"), ("head_dim", "head_dim")
BIASES = (BiasKey("attention_bias", ("qkv", "out")), BiasKey("mlp_bias", ("mlp",)))
GELU: Words = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
GEGLU: Words = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu"}
RMS: Json = {"norm": "rmsnorm", "residual": "sequential", "qk_norm": "none"}
LAYERNORM: Json = {"norm": "layernorm", "residual": "sequential", "qk_norm": "none"}

# No permutation of rows: transformers' q_proj and k_proj already pair feature j with j + D/2 (its converter from Meta's
# files did that), and so do we.
LLAMA_NAMES = {
    "embed": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.up_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.down": "mlp.down_proj",
}
QWEN3_NAMES = LLAMA_NAMES | {"attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm"}
OLMO2_NAMES = {name: theirs for name, theirs in QWEN3_NAMES.items() if name not in ("attention_norm", "mlp_norm")} | {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
GLM_NAMES = LLAMA_NAMES | dict.fromkeys(("mlp.gate", "mlp.up"), "mlp.gate_up_proj")
GEMMA2_NAMES = LLAMA_NAMES | {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}
NEOX_NAMES = {
    "embed": "gpt_neox.embed_in",
    "final_norm": "gpt_neox.final_layer_norm",
    "head": "embed_out",
    "blocks": "gpt_neox.layers",
    "attention_norm": "input_layernorm",
    "attention.q": "attention.query_key_value",
    "attention.k": "attention.query_key_value",
    "attention.v": "attention.query_key_value",
    "attention.out": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}

FAMILIES = {
    "llama": Family(
        transformers_class="LlamaForCausalLM",
        fields=(
            *shape_fields(32000, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            Field(*HEAD_DIM, COUNT_OR_NULL),
            *llama_fields(),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        biases=BIASES,
        divisible=True,
    ),
    "mistral": Family(
        transformers_class="MistralForCausalLM",
        fields=(
            *shape_fields(32000, 4096, 32, 32, 14336),
            Field(*KV_HEADS, COUNT, 8),
            Field(*HEAD_DIM, COUNT_OR_NULL),
            *llama_fields(),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        layers=WindowLayers(),
        max_positions=4096 * 32,
        scaled_since="4.48",
        yarn_authors="beta_fast 128, beta_slow 2 and a temperature of 0.07 ln(factor) + 1",
    ),
    "smollm3": Family(
        transformers_class="SmolLM3ForCausalLM",
        fields=(
            *shape_fields(128256, 2048, 36, 16, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL, 4),
            Field(*HEAD_DIM, COUNT),
            *llama_fields(tied=True),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        biases=BIASES,
        layers=ListedLayers(),
        theta=2_000_000.0,
        max_positions=32768,
    ),
    "gpt_neox": Family(
        transformers_class="GPTNeoXForCausalLM",
        fields=(
            *shape_fields(50432, 6144, 44, 64, 24576),
            Field("hidden_act", "activation", GELU, "gelu"),
            Field("layer_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
            Field("use_parallel_residual", "residual", {True: "parallel", False: "sequential"}, True),
        ),
        always={"norm": "layernorm", "qk_norm": "none"},
        names=NEOX_NAMES,
        bias=("mlp", "norm"),
        biases=(BiasKey("attention_bias", ("qkv", "out"), True),),
        layouts=(PerHead(),),
        theta_key="rotary_emb_base",
        share_key="rotary_pct",
        share=0.25,
        whole_head=False,
    ),
    "qwen2": Family(
        transformers_class="Qwen2ForCausalLM",
        fields=(
            *shape_fields(151936, 4096, 32, 32, 22016),
            Field(*KV_HEADS, COUNT_OR_NULL, 32),
            *llama_fields(),
        ),
        always=RMS,
        bias=("qkv",),
        names=LLAMA_NAMES,
        layers=LaterWindowLayers(),
        max_positions=32768,
    ),
    "qwen3": Family(
        transformers_class="Qwen3ForCausalLM",
        fields=(
            *shape_fields(151936, 4096, 32, 32, 22016),
            Field(*KV_HEADS, COUNT_OR_NULL, 32),
            Field(*HEAD_DIM, COUNT, 128),
            *llama_fields(),
        ),
        always=RMS | {"qk_norm": "head"},
        names=QWEN3_NAMES,
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        layers=LaterWindowLayers(),
        max_positions=32768,
    ),
    "olmo2": Family(
        transformers_class="Olmo2ForCausalLM",
        fields=(
            *shape_fields(50304, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields()[:1],
            Field("rms_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
        ),
        always=RMS | {"norm_placement": "post", "qk_norm": "full"},
        names=OLMO2_NAMES,
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
    ),
    "granite": Family(
        transformers_class="GraniteForCausalLM",
        fields=(
            *shape_fields(32000, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields(),
            Field("embedding_multiplier", "embedding_multiplier", NUMBER, 1.0),
            Field("residual_multiplier", "residual_multiplier", NUMBER, 1.0),
            Field("attention_multiplier", "attention_multiplier", NUMBER, 1.0),
            Field("logits_scaling", "logits_multiplier", NUMBER, 1.0, INVERSE),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        biases=BIASES,
    ),
    "seed_oss": Family(
        transformers_class="SeedOssForCausalLM",
        fields=(
            *shape_fields(155136, 4096, 64, 80, 27648),
            Field(*KV_HEADS, COUNT_OR_NULL, 8),
            Field(*HEAD_DIM, COUNT, 128),
            *llama_fields(),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        biases=(
            BiasKey("attention_bias", ("qkv",), True),
            BiasKey("attention_out_bias", ("out",)),
            BiasKey("mlp_bias", ("mlp",)),
        ),
        max_positions=524288,
    ),
    "starcoder2": Family(
        transformers_class="Starcoder2ForCausalLM",
        fields=(
            *shape_fields(49152, 3072, 30, 24, 12288, 0.018042),
            Field(*KV_HEADS, COUNT_OR_NULL, 2),
            Field("hidden_act", "activation", GELU, "gelu_pytorch_tanh"),
            Field("norm_epsilon", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        always=LAYERNORM,
        bias=("norm",),
        names=LLAMA_NAMES | {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"},
        biases=(BiasKey("use_bias", ("qkv", "out", "mlp"), True),),
        layers=WindowLayers(default=None),
        max_positions=4096,
    ),
    "stablelm": Family(
        transformers_class="StableLmForCausalLM",
        fields=(
            *shape_fields(50304, 2560, 32, 32, 6912),
            Field(*KV_HEADS, COUNT_OR_NULL, 32),
            *llama_fields()[:1],
            Field("layer_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
            Field("use_parallel_residual", "residual", {False: "sequential"}, False),
            Field("qk_layernorm", "qk_norm", {False: "none"}, False),
        ),
        always=LAYERNORM,
        bias=("norm",),
        names=LLAMA_NAMES,
        biases=(BiasKey("use_qkv_bias", ("qkv",)),),
        share=0.25,
        whole_head=False,
        max_positions=4096,
    ),
    "phi3": Family(
        transformers_class="Phi3ForCausalLM",
        fields=(
            *shape_fields(32064, 3072, 32, 32, 8192),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields()[:1],
            Field("rms_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
        ),
        always=RMS,
        names=LLAMA_NAMES
        | dict.fromkeys(("attention.q", "attention.k", "attention.v"), "self_attn.qkv_proj")
        | dict.fromkeys(("mlp.gate", "mlp.up"), "mlp.gate_up_proj"),
        layouts=(Rows("attention.q", "attention.k", "attention.v"), Rows("mlp.gate", "mlp.up")),
        layers=WindowLayers(default=None),
        whole_head=False,
        max_positions=4096,
    ),
    "glm": Family(
        transformers_class="GlmForCausalLM",
        fields=(
            *shape_fields(151552, 4096, 40, 32, 13696),
            Field(*KV_HEADS, COUNT_OR_NULL, 2),
            Field(*HEAD_DIM, COUNT, 128),
            *llama_fields()[:1],
            Field("rms_norm_eps", "norm_eps", NUMBER, 1.5625e-07),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
        ),
        always=RMS,
        names=GLM_NAMES,
        biases=(BiasKey("attention_bias", ("qkv",), True),),
        layouts=(*PAIRS, Rows("mlp.gate", "mlp.up")),
        share=0.5,
        whole_head=False,
        max_positions=131072,
    ),
    "glm4": Family(
        transformers_class="Glm4ForCausalLM",
        fields=(
            *shape_fields(151552, 4096, 40, 32, 13696),
            Field(*KV_HEADS, COUNT_OR_NULL, 2),
            Field(*HEAD_DIM, COUNT, 128),
            *llama_fields()[:1],
            Field("rms_norm_eps", "norm_eps", NUMBER, 1.5625e-07),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
        ),
        always=RMS | {"norm_placement": "both"},
        names=GLM_NAMES | {"attention_out_norm": "post_self_attn_layernorm", "mlp_out_norm": "post_mlp_layernorm"},
        biases=(BiasKey("attention_bias", ("qkv",), True),),
        layouts=(*PAIRS, Rows("mlp.gate", "mlp.up")),
        share=0.5,
        whole_head=False,
        max_positions=131072,
    ),
    "cohere": Family(
        transformers_class="CohereForCausalLM",
        fields=(
            *shape_fields(256000, 8192, 40, 64, 22528),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields()[:1],
            Field("layer_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
            Field("logit_scale", "logits_multiplier", NUMBER, 0.0625),
            Field("use_qk_norm", "qk_norm", {False: "none"}, False),
        ),
        always={"norm": "layernorm", "residual": "parallel_one_norm"},
        names={name: theirs for name, theirs in LLAMA_NAMES.items() if name != "mlp_norm"},
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        layouts=PAIRS,
        max_positions=8192,
    ),
    "cohere2": Family(
        transformers_class="Cohere2ForCausalLM",
        fields=(
            *shape_fields(256000, 8192, 40, 64, 22528),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields()[:1],
            Field("layer_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
            Field("logit_scale", "logits_multiplier", NUMBER, 0.0625),
        ),
        always={"norm": "layernorm", "residual": "parallel_one_norm", "qk_norm": "none"},
        names={name: theirs for name, theirs in LLAMA_NAMES.items() if name != "mlp_norm"},
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        layouts=PAIRS,
        layers=TypedLayers(4, "sliding_window_pattern", nope=True),
        max_positions=8192,
    ),
    "gemma": Family(
        transformers_class="GemmaForCausalLM",
        fields=(
            *shape_fields(256000, 3072, 28, 16, 24576),
            Field(*KV_HEADS, COUNT, 16),
            Field(*HEAD_DIM, COUNT, 256),
            # "gelu" means tanh to some versions and exact to others
            Field("hidden_act", "activation", {"gelu_pytorch_tanh": "geglu_tanh"}, "gelu_pytorch_tanh"),
            Field("rms_norm_eps", "norm_eps", NUMBER, 1e-6),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        always=RMS | {"norm_weight": "one_plus"},
        names=LLAMA_NAMES,
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        root_embedding=True,
        max_positions=8192,
    ),
    "gemma2": Family(
        transformers_class="Gemma2ForCausalLM",
        fields=(
            *shape_fields(256000, 2304, 26, 8, 9216),
            Field(*KV_HEADS, COUNT, 4),
            Field(*HEAD_DIM, COUNT, 256),
            Field("hidden_activation", "activation", GEGLU, "gelu_pytorch_tanh"),
            Field("rms_norm_eps", "norm_eps", NUMBER, 1e-6),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
            Field("query_pre_attn_scalar", "attention_multiplier", NUMBER, 256, INVERSE_ROOT),
            Field("attn_logit_softcapping", "score_cap", NUMBER_OR_NULL, 50.0),
            Field("final_logit_softcapping", "logits_cap", NUMBER_OR_NULL, 30.0),
        ),
        always=RMS | {"norm_weight": "one_plus", "norm_placement": "both"},
        names=GEMMA2_NAMES,
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        root_embedding=True,
        layers=TypedLayers(2),
        max_positions=8192,
        divisible=True,
    ),
    "olmo": Family(
        transformers_class="OlmoForCausalLM",
        fields=(
            *shape_fields(50304, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields()[:1],
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
        ),
        always=LAYERNORM | {"norm_eps": 1e-5, "norm_weight": "none"},
        names={name: theirs for name, theirs in LLAMA_NAMES.items() if "norm" not in name},
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
    ),
    "arcee": Family(
        transformers_class="ArceeForCausalLM",
        fields=(
            *shape_fields(32000, 2560, 32, 32, 18432),
            Field(*KV_HEADS, COUNT_OR_NULL),
            Field(*HEAD_DIM, COUNT_OR_NULL),
            Field("hidden_act", "activation", {"relu2": "relu2"}, "relu2"),
            Field("rms_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        biases=BIASES,
        max_positions=4096,
        divisible=True,
    ),
    "phi": Family(
        transformers_class="PhiForCausalLM",
        fields=(
            *shape_fields(51200, 2048, 24, 32, 8192),
            Field(*KV_HEADS, COUNT_OR_NULL),
            Field("hidden_act", "activation", {"gelu_new": "gelu_tanh", **GELU}, "gelu_new"),
            Field("layer_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
            Field("qk_layernorm", "qk_norm", {False: "none"}, False),
        ),
        always={"norm": "layernorm", "residual": "parallel_one_norm"},
        names={name: theirs for name, theirs in LLAMA_NAMES.items() if name != "mlp_norm"}
        | {"final_norm": "model.final_layernorm", "attention.out": "self_attn.dense"}
        | {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"},
        bias=("qkv", "out", "mlp", "norm", "head"),
        share=0.5,
        whole_head=False,
    ),
}

# Keys of config.json that say what a model is, whatever its family.
NOT_COVERED = {
    "a mixture of experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"),
    "a model with latent attention": ("kv_lora_rank",),
    "a multimodal model": ("vision_config", "audio_config", "text_config"),
    "a state-space model": ("state_size", "ssm_cfg", "mamba_d_state"),
    "an encoder": ("is_encoder_decoder",),
}


def parts_not_covered(config: Json) -> list[str]:
    """Return what the model of this config.json is and ours cannot be."""
    return [what for what, keys in NOT_COVERED.items() if any(config.get(key) for key in keys)]
