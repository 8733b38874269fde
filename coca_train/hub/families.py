"""Families of models that transformers has a class for: a declaration of each, for `import` and `export`.

A family is the name of its class, the keys of its config.json, the options that its class knows one value of, how its
layers differ from each other, what its weights are called, and which of them lie in one tensor. Both ways refuse, by
NotTheSame or UserError, what the other side would compute differently.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coca_train.attention.layer_types import in_words
from coca_train.config.schema import DEFAULT, ModelConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_keys import Keys
from coca_train.positions.hugging_face import NotTheSame, rotation

FULL, SLIDING = "full_attention", "sliding_attention"
CAUSAL = {"name": "causal"}


class Field(NamedTuple):
    """A key of config.json that is an option of ours.

    kind: how it is read, or their words and which of ours each is. default: what the class takes where it is missing.
    """

    theirs: str
    ours: str
    kind: Callable[[Keys, str, Any], Any] | Mapping[Any, Any]
    default: Any = None

    def read(self, keys: Keys) -> Any:
        """Return our value."""
        if isinstance(self.kind, Mapping):
            return keys.word(self.theirs, self.kind, self.default)
        return self.kind(keys, self.theirs, self.default)

    def write(self, model: ModelConfig) -> Any:
        """Return their value; of several words for one of ours the first."""
        value = getattr(model, self.ours)
        if isinstance(self.kind, Mapping):
            return next(theirs for theirs, ours in self.kind.items() if ours == value)
        return value


class LayerRule(ABC):
    """How the layers of a family's models differ from each other."""

    @abstractmethod
    def read(self, keys: Keys, n_layers: int) -> dict[str, Any]:
        """Return our sections `attention_pattern` and `layers`. Raises NotTheSame."""

    @abstractmethod
    def write(self, architecture: Architecture) -> dict[str, Any]:
        """Return keys of config.json. Raises NotTheSame where the family has no such layers."""


class CausalLayers(LayerRule):
    """All layers alike, without a window."""

    def read(self, keys: Keys, n_layers: int) -> dict[str, Any]:
        return {"attention_pattern": CAUSAL}

    def write(self, architecture: Architecture) -> dict[str, Any]:
        _refuse_other_layers(architecture, "causal")
        return {}


class WindowLayers(LayerRule):
    """All layers alike, with one window or none, which config.json has to say (Mistral)."""

    def read(self, keys: Keys, n_layers: int) -> dict[str, Any]:
        size = keys.optional("sliding_window", 4096)
        return {"attention_pattern": CAUSAL if size is None else {"name": "sliding_window", "window": size}}

    def write(self, architecture: Architecture) -> dict[str, Any]:
        _refuse_other_layers(architecture, "causal", "sliding_window")
        return {"sliding_window": getattr(architecture.attention_pattern, "window", None)}


def _refuse_other_layers(architecture: Architecture, *attention_patterns: str) -> None:
    """Raise NotTheSame unless all layers are alike and have one of these attention patterns."""
    if not architecture.is_uniform:
        raise NotTheSame(f"layers of several kinds ({in_words(architecture.layers, architecture.model.n_layers)})")
    if architecture.attention_pattern.name not in attention_patterns:
        raise NotTheSame(f"attention pattern {architecture.attention_pattern.name}")


class ListedLayers(LayerRule):
    """For each layer RoPE or no positions (`no_rope_layers`, 1: RoPE), and all keys or one window (`layer_types`)."""

    def read(self, keys: Keys, n_layers: int) -> dict[str, Any]:
        windowed, size = keys.truth("use_sliding_window", False), keys.optional("sliding_window")
        interval = keys.whole("no_rope_layer_interval", 4)
        ropes, types = keys.take("no_rope_layers"), keys.take("layer_types")
        layers = self.section(n_layers, ropes, interval, types, size if windowed else None)
        return {"attention_pattern": CAUSAL, "layers": layers}

    def section(self, n_layers: int, ropes: Any, interval: int, types: Any, window: int | None) -> dict[str, Any]:
        """Return our `layers` section. window: None where use_sliding_window is false. Raises NotTheSame."""
        ropes = _of_layers("no_rope_layers", ropes, (0, 1), [int((i + 1) % interval != 0) for i in range(n_layers)])
        default = [SLIDING if window is not None and not rope else FULL for rope in ropes]
        types = _of_layers("layer_types", types, (FULL, SLIDING), default)
        if window is None and SLIDING in types:
            raise NotTheSame(f"layer_types with {SLIDING}, and no window in use_sliding_window and sliding_window")
        names = {(1, FULL): DEFAULT, (0, FULL): "nope", (1, SLIDING): "local", (0, SLIDING): "nope_local"}
        kind_of = [names[one] for one in zip(ropes, types, strict=True)]
        # The shortest beginning that gives all of them when it is repeated: what a person would have written.
        shortest = next(
            n for n in range(1, len(kind_of) + 1) if all(name == kind_of[i % n] for i, name in enumerate(kind_of))
        )
        nope, local = (
            {"position": {"scheme": "nope"}},
            {"attention_pattern": {"name": "sliding_window", "window": window}},
        )
        kinds = {"nope": nope, "local": local, "nope_local": nope | local}
        used = {name: kind for name, kind in kinds.items() if name in kind_of}
        return {"pattern": kind_of[:shortest] if used else [], "types": used}

    def write(self, architecture: Architecture) -> dict[str, Any]:
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
            "pad_token_id": None,  # its default is a row that only the original has
        }


def _of_layers(key: str, values: Any, known: tuple[Any, Any], default: list[Any]) -> list[Any]:
    """Return one of two values for each layer, the default where there are none. Raises NotTheSame."""
    if values is None:
        return default
    right = isinstance(values, list) and len(values) == len(default)
    if not right or not all(any(type(one) is type(value) and one == value for one in known) for value in values):
        raise NotTheSame(f"{key}: {len(default)} of {known[0]} and {known[1]} are needed")
    return values


class Fusion(ABC):
    """Several of our modules in one tensor of theirs, stacked by rows in some order. parts: the modules."""

    parts: tuple[str, ...]

    @abstractmethod
    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        """Return our parameter out of their tensor."""

    @abstractmethod
    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        """Return their tensor out of ours, one for each part."""


class PerHeadQKV(Fusion):
    """Query, key and value of the first head, then of the second, and so on; as many key heads as query heads."""

    parts = ("attention.q", "attention.k", "attention.v")

    def split(self, tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
        by_head = tensor.unflatten(0, (architecture.model.n_heads, len(self.parts), architecture.head_dim))
        return by_head[:, part].flatten(0, 1)

    def join(self, tensors: list[Tensor], architecture: Architecture) -> Tensor:
        by_head = [tensor.unflatten(0, (architecture.model.n_heads, -1)) for tensor in tensors]
        return torch.stack(by_head, 1).flatten(0, 2)


@dataclass(frozen=True, kw_only=True)
class Family:
    """What transformers calls model_type. Numbers are what its class takes where a key is missing from config.json.

    fields: keys that are options of ours. always: options that its class knows no other value of. names: of its
    modules, by ours. fused: modules that lie in one tensor. theta_key, share_key: what it calls theta and the rotated
    share of a head. whole_head: it rotates no part of a head. scaled_since: the version of transformers whose class
    reads rope_scaling first; "": all that matter. yarn_authors: constants of YaRN in its authors' own code for this
    family, where they are not its class's. divisible: its class refuses a width that the heads do not divide, even
    where head_dim is given.
    """

    transformers_class: str
    fields: tuple[Field, ...]
    always: Mapping[str, Any]
    names: Mapping[str, str]
    layers: LayerRule = CausalLayers()  # noqa: RUF009  # it has no state
    fused: tuple[Fusion, ...] = ()
    theta_key: str = "rope_theta"
    theta: float = 10000.0
    share_key: str = "partial_rotary_factor"
    share: float = 1.0
    whole_head: bool = True
    max_positions: int = 2048
    scaled_since: str = ""
    yarn_authors: str = ""
    divisible: bool = False


def shape_fields(vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_ff: int) -> tuple[Field, ...]:
    """Return the keys that every family has, with their defaults."""
    return (
        Field("vocab_size", "vocab_size", Keys.whole, vocab_size),
        Field("hidden_size", "d_model", Keys.whole, d_model),
        Field("num_hidden_layers", "n_layers", Keys.layers, n_layers),
        Field("num_attention_heads", "n_heads", Keys.whole, n_heads),
        Field("intermediate_size", "d_ff", Keys.whole, d_ff),
        Field("initializer_range", "init_std", Keys.share, 0.02),
    )


def llama_fields(tied: bool = False) -> tuple[Field, ...]:
    """Return the keys of LLaMA and its heirs. tied: the default of tie_word_embeddings."""
    return (
        Field("hidden_act", "activation", {"silu": "swiglu", "swish": "swiglu"}, "silu"),
        Field("rms_norm_eps", "norm_eps", Keys.number, 1e-6),
        Field("tie_word_embeddings", "tie_embeddings", Keys.truth, tied),
    )


KV_HEADS, HEAD_DIM = ("num_key_value_heads", "n_kv_heads"), ("head_dim", "head_dim")
BIASES = tuple(Field(key, "bias", Keys.truth, False) for key in ("attention_bias", "mlp_bias"))
GELU = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
RMS = {"norm": "rmsnorm", "residual": "sequential", "qk_norm": "none"}

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
            Field(*KV_HEADS, Keys.optional),
            Field(*HEAD_DIM, Keys.optional),
            *llama_fields(),
            *BIASES,
        ),
        always=RMS,
        names=LLAMA_NAMES,
        divisible=True,
    ),
    "mistral": Family(
        transformers_class="MistralForCausalLM",
        fields=(
            *shape_fields(32000, 4096, 32, 32, 14336),
            Field(*KV_HEADS, Keys.whole, 8),
            Field(*HEAD_DIM, Keys.optional),
            *llama_fields(),
        ),
        always=RMS | {"bias": False},
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
            Field(*KV_HEADS, Keys.optional, 4),
            Field(*HEAD_DIM, Keys.whole_or_missing),
            *llama_fields(tied=True),
            *BIASES,
        ),
        always=RMS,
        names=LLAMA_NAMES,
        layers=ListedLayers(),
        theta=2_000_000.0,
        max_positions=32768,
    ),
    "gpt_neox": Family(
        transformers_class="GPTNeoXForCausalLM",
        fields=(
            *shape_fields(50432, 6144, 44, 64, 24576),
            Field("hidden_act", "activation", GELU, "gelu"),
            Field("layer_norm_eps", "norm_eps", Keys.number, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", Keys.truth, False),
            Field("use_parallel_residual", "residual", {True: "parallel", False: "sequential"}, True),
            Field("attention_bias", "bias", {True: True}, True),
        ),
        always={"norm": "layernorm", "qk_norm": "none"},
        names=NEOX_NAMES,
        fused=(PerHeadQKV(),),
        theta_key="rotary_emb_base",
        share_key="rotary_pct",
        share=0.25,
        whole_head=False,
    ),
}

NORM, BRANCH_NORMS = "norms that multiply by 1 + weight", "norms after attention and feed-forward"
PARALLEL, PAIRS = "attention and feed-forward in parallel with one norm", "features rotated as pairs 2j and 2j + 1"
SCALED_EMBEDDING, FUSED = "embeddings times the root of hidden_size", "projections that are one tensor"
# What the models of other families have and ours have not: the reason in an error.
NOT_COVERED: dict[str, tuple[str, ...]] = {
    "cohere": (PARALLEL, "logits times logit_scale"),
    "cohere2": (PARALLEL, "logits times logit_scale"),
    "falcon": (f"{FUSED}, for one key head", "attention and feed-forward in parallel"),
    "gemma": (NORM, SCALED_EMBEDDING, "a feed-forward layer gated by GELU"),
    "gemma2": (NORM, BRANCH_NORMS, "scores and logits that are capped"),
    "gemma3": (NORM, BRANCH_NORMS, SCALED_EMBEDDING, "a feed-forward layer gated by GELU", "query_pre_attn_scalar"),
    "glm4": (BRANCH_NORMS, PAIRS),
    "gpt2": ("learned positions with LayerNorm, in transposed projections",),
    "gptj": (PARALLEL, PAIRS),
    "granite": (
        "embedding_multiplier, attention_multiplier, residual_multiplier and logits_scaling, which scale its parts",
    ),
    "llama4": ("a mixture of experts (num_local_experts)", PAIRS, "norms of queries and keys after the rotation"),
    "ministral": ("windows in some of its layers",),
    "mixtral": ("a mixture of experts (num_local_experts)",),
    "olmo": ("norms without weights", "queries, keys and values that are clipped"),
    "olmo2": (BRANCH_NORMS, "norms of queries and keys over all heads"),
    "opt": ("learned positions with LayerNorm",),
    "phi": (f"{FUSED} or biases everywhere", PARALLEL),
    "phi3": (f"{FUSED} (qkv_proj, gate_up_proj)",),
    "qwen2": ("biases in the query, key and value projections only",),
    "qwen3": ("norms of queries and keys, head by head",),
    "qwen3_moe": ("a mixture of experts (num_experts)",),
    "stablelm": ("LayerNorm with a gated feed-forward layer",),
    "starcoder2": ("biases everywhere with LayerNorm, and a feed-forward layer without a gate",),
}


def parts_not_covered(config: Mapping[str, Any]) -> list[str]:
    """Return what the model of this config.json has and ours have not; empty: nothing is known about its family."""
    missing = list(NOT_COVERED.get(str(config.get("model_type")).removesuffix("_text"), ()))
    return [*missing, *(["a vision tower"] if missing and "text_config" in config else [])]
