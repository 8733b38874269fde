"""Model families with a class in transformers: a declaration of each, for `import` and `export`.

A family declares its class, the keys of its config.json, options with a fixed value, how its layers differ, and the
names of its weights. Both ways refuse, by NotTheSame or UserError, what the other side would compute differently.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from coca_train.attention.layer_types import describe_layers
from coca_train.config.schema import DEFAULT, ModelConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.config_keys import COUNT, COUNT_OR_NULL, LAYERS, NUMBER, SHARE, TRUTH, Json, Keys, Kind
from coca_train.positions.hugging_face import NotTheSame, rotation

FULL, SLIDING = "full_attention", "sliding_attention"
Words = Mapping[str | bool, object]  # theirs, and ours for each
CAUSAL: Json = {"name": "causal"}
Item = TypeVar("Item", int, str)


class Field(NamedTuple):
    """A key of config.json that is an option of ours."""

    theirs: str
    ours: str
    kind: Kind[Any] | Words
    default: object = None  # of the class, where the key is missing

    def read(self, keys: Keys) -> object:
        """Return our value."""
        if isinstance(self.kind, Mapping):
            return keys.word(self.theirs, self.kind, self.default)
        return keys.read(self.theirs, self.kind, self.default)

    def write(self, model: ModelConfig) -> object:
        """Return their value; the first of several words for one of ours."""
        value = getattr(model, self.ours)
        if isinstance(self.kind, Mapping):
            return next(theirs for theirs, ours in self.kind.items() if ours == value)
        return value


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


class WindowLayers(LayerRule):
    """All layers alike, with one window or none, as config.json says (Mistral)."""

    def read(self, keys: Keys, n_layers: int) -> tuple[Json, Json | None]:
        size = keys.read("sliding_window", COUNT_OR_NULL, 4096)
        return (CAUSAL if size is None else {"name": "sliding_window", "window": size}), None

    def write(self, architecture: Architecture) -> Json:
        _refuse_other_layers(architecture, "causal", "sliding_window")
        return {"sliding_window": getattr(architecture.attention_pattern, "window", None)}


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
        # The shortest pattern that gives all of them when it is repeated, as a person would write it.
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
            "pad_token_id": None,  # its default is a row of the original's vocabulary
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


QKV = ("attention.q", "attention.k", "attention.v")


def split_qkv(tensor: Tensor, part: int, architecture: Architecture) -> Tensor:
    """Return one of QKV out of a tensor with the rows of the first head's query, key and value, then of the second's,
    and so on; there are as many key heads as query heads."""
    by_head = tensor.unflatten(0, (architecture.model.n_heads, len(QKV), architecture.head_dim))
    return by_head[:, part].flatten(0, 1)


def join_qkv(tensors: list[Tensor], architecture: Architecture) -> Tensor:
    """Return that tensor out of the three."""
    by_head = [tensor.unflatten(0, (architecture.model.n_heads, -1)) for tensor in tensors]
    return torch.stack(by_head, 1).flatten(0, 2)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model_type of transformers. Numbers are the defaults of its class for keys missing from config.json."""

    transformers_class: str
    fields: tuple[Field, ...]  # keys that are options of ours
    always: Json  # options with a fixed value in its class
    names: Mapping[str, str]  # of its modules, by ours
    layers: LayerRule = CausalLayers()  # noqa: RUF009  # it has no state
    one_qkv: bool = False  # queries, keys and values are in one tensor
    theta_key: str = "rope_theta"
    theta: float = 10000.0
    share_key: str = "partial_rotary_factor"  # of the rotated share of a head
    share: float = 1.0
    whole_head: bool = True  # it always rotates the whole head
    max_positions: int = 2048
    scaled_since: str = ""  # the first version of transformers whose class reads rope_scaling; "": all that matter
    yarn_authors: str = ""  # constants of YaRN in its authors' code for this family, where its class has others
    divisible: bool = False  # its class refuses heads that do not divide the width, even where head_dim is given


def shape_fields(vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_ff: int) -> tuple[Field, ...]:
    """Return the keys that every family has, with their defaults."""
    return (
        Field("vocab_size", "vocab_size", COUNT, vocab_size),
        Field("hidden_size", "d_model", COUNT, d_model),
        Field("num_hidden_layers", "n_layers", LAYERS, n_layers),
        Field("num_attention_heads", "n_heads", COUNT, n_heads),
        Field("intermediate_size", "d_ff", COUNT, d_ff),
        Field("initializer_range", "init_std", SHARE, 0.02),
    )


def llama_fields(tied: bool = False) -> tuple[Field, ...]:
    """Return the keys of LLaMA and its heirs. tied: the default of tie_word_embeddings."""
    return (
        Field("hidden_act", "activation", {"silu": "swiglu", "swish": "swiglu"}, "silu"),
        Field("rms_norm_eps", "norm_eps", NUMBER, 1e-6),
        Field("tie_word_embeddings", "tie_embeddings", TRUTH, tied),
    )


KV_HEADS, HEAD_DIM = ("num_key_value_heads", "n_kv_heads"), ("head_dim", "head_dim")
BIASES = tuple(Field(key, "bias", TRUTH, False) for key in ("attention_bias", "mlp_bias"))
GELU: Words = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
RMS: Json = {"norm": "rmsnorm", "residual": "sequential", "qk_norm": "none"}

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
            Field(*KV_HEADS, COUNT_OR_NULL),
            Field(*HEAD_DIM, COUNT_OR_NULL),
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
            Field(*KV_HEADS, COUNT, 8),
            Field(*HEAD_DIM, COUNT_OR_NULL),
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
            Field(*KV_HEADS, COUNT_OR_NULL, 4),
            Field(*HEAD_DIM, COUNT),
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
            Field("layer_norm_eps", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
            Field("use_parallel_residual", "residual", {True: "parallel", False: "sequential"}, True),
            Field("attention_bias", "bias", {True: True}, True),
        ),
        always={"norm": "layernorm", "qk_norm": "none"},
        names=NEOX_NAMES,
        one_qkv=True,
        theta_key="rotary_emb_base",
        share_key="rotary_pct",
        share=0.25,
        whole_head=False,
    ),
}
