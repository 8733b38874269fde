"""Families of models that transformers has a class for: a declaration of each, which `import` reads one way and
`export` the other.

A family is the name of its class, the keys of its config.json, what its class knows one value of only, how its layers
differ from each other, and what its weights are called. Both ways refuse, by NotTheSame or UserError, in words, what
the other side would compute differently.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from coca_train.attention.layer_types import in_words
from coca_train.config.schema import OWN, ModelConfig
from coca_train.hub.architecture import Architecture
from coca_train.hub.keys import Keys
from coca_train.hub.rope_sections import SHARE, Number, Outside, rotary_frequencies
from coca_train.positions.hugging_face import NotTheSame, rotation
from coca_train.positions.schemes import rope

FULL, SLIDING = "full_attention", "sliding_attention"
CAUSAL = {"name": "causal"}


class Field(NamedTuple):
    """A key of config.json that is an option of ours."""

    theirs: str
    ours: str
    kind: Callable[[Keys, str, Any], Any] | Mapping[Any, Any]  # how it is read, or their words and which of ours it is
    default: Any = None  # what the class takes where the key is missing

    def value(self, keys: Keys) -> Any:
        """Ours."""
        if isinstance(self.kind, Mapping):
            return keys.word(self.theirs, self.kind, self.default)
        return self.kind(keys, self.theirs, self.default)

    def written(self, model: ModelConfig) -> Any:
        """Theirs; of several words for one of ours the first."""
        value = getattr(model, self.ours)
        if isinstance(self.kind, Mapping):
            return next(theirs for theirs, ours in self.kind.items() if ours == value)
        return value


class Layers(NamedTuple):
    """How the layers of a family's models differ from each other."""

    read: Callable[[Keys, int], dict[str, Any]]  # (keys, n_layers) -> our sections `visibility` and `layers`
    written: Callable[[Architecture], dict[str, Any]]  # keys of config.json; NotTheSame where its layers are others


class Family(NamedTuple):
    """What transformers calls model_type. Numbers are what its class takes where a key is missing from config.json."""

    transformers_class: str
    fields: tuple[Field, ...]
    always: Mapping[str, Any]  # options that its class knows no other value of
    layers: Layers
    names: Mapping[str, str]  # of its weights, by ours
    base: str = "rope_theta"  # what it calls theta
    share: str = SHARE  # what it calls the rotated share of a head
    theta: float = 10000.0
    rotary_pct: float = 1.0
    whole_head: bool = True  # it rotates no part of a head
    max_positions: int = 2048
    scaled_since: str = ""  # the version of transformers whose class reads rope_scaling first; "": all that matter
    yarn_authors: str = ""  # as Outside.authors
    divisible: bool = False  # its class refuses a width that the heads do not divide, even where head_dim is given


def alike(architecture: Architecture, *visibilities: str) -> dict[str, Any]:
    """Layers of one kind, with one of these visibilities."""
    if not architecture.is_uniform:
        raise NotTheSame(f"layers of several kinds ({in_words(architecture.layers, architecture.model.n_layers)})")
    if architecture.visibility.name not in visibilities:
        raise NotTheSame(f"visibility {architecture.visibility.name}")
    return {}


def window(keys: Keys, n_layers: int) -> dict[str, Any]:
    """Mistral's: one window for all layers, or none, which its config.json has to say."""
    size = keys.optional("sliding_window", 4096)
    return {"visibility": CAUSAL if size is None else {"name": "sliding_window", "window": size}}


def window_written(architecture: Architecture) -> dict[str, Any]:
    alike(architecture, "causal", "sliding_window")
    return {"sliding_window": getattr(architecture.visibility, "window", None)}


def mixed(keys: Keys, n_layers: int) -> dict[str, Any]:
    """SmolLM3's: RoPE or no positions (`no_rope_layers`, 1: RoPE), everything or one window (`layer_types`)."""
    windowed, size = keys.truth("use_sliding_window", False), keys.optional("sliding_window")
    interval = keys.whole("no_rope_layer_interval", 4)
    ropes, types = keys.take("no_rope_layers"), keys.take("layer_types")
    return {"visibility": CAUSAL, "layers": pattern(n_layers, ropes, interval, types, size if windowed else None)}


def pattern(n_layers: int, ropes: Any, interval: int, types: Any, window: int | None) -> dict[str, Any]:
    """Our `layers` section. window: None where use_sliding_window is false. Raises NotTheSame."""
    ropes = _of_layers("no_rope_layers", ropes, (0, 1), [int((i + 1) % interval != 0) for i in range(n_layers)])
    windowed = [SLIDING if window is not None and not rope else FULL for rope in ropes]
    types = _of_layers("layer_types", types, (FULL, SLIDING), windowed)
    if window is None and SLIDING in types:
        raise NotTheSame("layer_types with sliding_attention, and no window in use_sliding_window and sliding_window")
    names = {(1, FULL): OWN, (0, FULL): "nope", (1, SLIDING): "local", (0, SLIDING): "nope_local"}
    every = [names[one] for one in zip(ropes, types, strict=True)]
    # The shortest beginning that gives all of them when it is repeated: what a person would have written.
    n = next(n for n in range(1, len(every) + 1) if all(name == every[i % n] for i, name in enumerate(every)))
    nope, local = {"position": {"scheme": "nope"}}, {"visibility": {"name": "sliding_window", "window": window}}
    kinds = {"nope": nope, "local": local, "nope_local": nope | local}
    used = {name: kind for name, kind in kinds.items() if name in every}
    return {"pattern": every[:n] if used else [], "kinds": used}


def _of_layers(key: str, values: Any, known: tuple[Any, Any], default: list[Any]) -> list[Any]:
    """One of two values for each layer. The default where there are none. Raises NotTheSame."""
    if values is None:
        return default
    right = isinstance(values, list) and len(values) == len(default)
    if not right or not all(any(type(one) is type(value) and one == value for one in known) for value in values):
        raise NotTheSame(f"{key}: {len(default)} of {known[0]} and {known[1]} are needed")
    return values


def mixed_written(architecture: Architecture) -> dict[str, Any]:
    ropes, types, windows = [], [], set()
    for kind in architecture.kinds:
        rotated = rotation(kind.position, architecture.head_dim)
        size = getattr(kind.visibility, "window", None)
        if rotated is not None and kind.position != architecture.position:
            raise NotTheSame(f"layers with other positions than the run's ({kind.position.scheme})")
        if kind.visibility.name not in ("causal", "sliding_window"):
            raise NotTheSame(f"visibility {kind.visibility.name}")
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


def shape(vocab_size: int, d_model: int, n_layers: int, n_heads: int, d_ff: int) -> tuple[Field, ...]:
    """Those of every family, with their defaults."""
    return (
        Field("vocab_size", "vocab_size", Keys.whole, vocab_size),
        Field("hidden_size", "d_model", Keys.whole, d_model),
        Field("num_hidden_layers", "n_layers", Keys.layers, n_layers),
        Field("num_attention_heads", "n_heads", Keys.whole, n_heads),
        Field("intermediate_size", "d_ff", Keys.whole, d_ff),
        Field("initializer_range", "init_std", Keys.share, 0.02),
    )


def llama_fields(tied: bool = False) -> tuple[Field, ...]:
    """Those of LLaMA and its heirs. tied: its default."""
    return (
        Field("hidden_act", "activation", {"silu": "swiglu", "swish": "swiglu"}, "silu"),
        Field("rms_norm_eps", "norm_eps", Keys.number, 1e-6),
        Field("tie_word_embeddings", "tie_embeddings", Keys.truth, tied),
    )


KV_HEADS, HEAD_DIM = ("num_key_value_heads", "n_kv_heads"), ("head_dim", "head_dim")
BIASES = tuple(Field(key, "bias", Keys.truth, False) for key in ("attention_bias", "mlp_bias"))
GELU = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
RMS = {"norm": "rmsnorm", "residual": "sequential", "qk_norm": "none"}
UNIFORM = Layers(lambda keys, n_layers: {"visibility": CAUSAL}, lambda architecture: alike(architecture, "causal"))

LLAMA = {
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
COCA = LLAMA | {"attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm"}  # of model_type coca
NEOX = {
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
        "LlamaForCausalLM",
        (
            *shape(32000, 4096, 32, 32, 11008),
            Field(*KV_HEADS, Keys.optional),
            Field(*HEAD_DIM, Keys.optional),
            *llama_fields(),
            *BIASES,
        ),
        RMS,
        UNIFORM,
        LLAMA,
        divisible=True,
    ),
    "mistral": Family(
        "MistralForCausalLM",
        (
            *shape(32000, 4096, 32, 32, 14336),
            Field(*KV_HEADS, Keys.whole, 8),
            Field(*HEAD_DIM, Keys.optional),
            *llama_fields(),
        ),
        RMS | {"bias": False},
        Layers(window, window_written),
        LLAMA,
        max_positions=4096 * 32,
        scaled_since="4.48",
        yarn_authors="beta_fast 128, beta_slow 2 and a temperature of 0.07 ln(factor) + 1",
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        (
            *shape(128256, 2048, 36, 16, 11008),
            Field(*KV_HEADS, Keys.optional, 4),
            Field(*HEAD_DIM, Keys.whole_or_missing),
            *llama_fields(tied=True),
            *BIASES,
        ),
        RMS,
        Layers(mixed, mixed_written),
        LLAMA,
        theta=2_000_000.0,
        max_positions=32768,
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        (
            *shape(50432, 6144, 44, 64, 24576),
            Field("hidden_act", "activation", GELU, "gelu"),
            Field("layer_norm_eps", "norm_eps", Keys.number, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", Keys.truth, False),
            Field("use_parallel_residual", "residual", {True: "parallel", False: "sequential"}, True),
            Field("attention_bias", "bias", {True: True}, True),
        ),
        {"norm": "layernorm", "qk_norm": "none"},
        UNIFORM,
        NEOX,
        base="rotary_emb_base",
        share="rotary_pct",
        rotary_pct=0.25,
        whole_head=False,
    ),
}


def sections(keys: Keys, family: Family) -> dict[str, Any]:
    """Our sections for a config.json of this family. Raises UserError E-IOP-04, and NotTheSame."""
    model = {"n_kv_heads": None, "head_dim": None, "dropout": 0.0, "init_depth_scaled": False, **family.always}
    stands_in: dict[str, str] = {}
    for field in family.fields:
        value, other = field.value(keys), stands_in.setdefault(field.ours, field.theirs)
        if other != field.theirs and model[field.ours] != value:
            raise keys.wrong(f"{other}={model[field.ours]}, {field.theirs}={value}", "they are one option here")
        model[field.ours] = value
    width, heads = model["d_model"], model["n_heads"]
    if family.divisible and width % heads:
        raise keys.wrong(f"num_attention_heads={heads}", f"{heads} heads do not divide a width of {width}")
    max_positions = keys.whole("max_position_embeddings", family.max_positions)
    theta, share = Number(family.base, family.theta), Number(family.share, family.rotary_pct)
    outside = Outside(theta, share, family.yarn_authors)
    rotary_pct, frequencies = rotary_frequencies(keys, outside, max_positions)
    if family.whole_head and rotary_pct != 1:
        raise keys.wrong(f"partial_rotary_factor={rotary_pct:g}", "its class rotates the whole head")
    return {
        "model": model,
        "position": rope.from_transformers(rotary_pct, frequencies),
        "seq_len": max_positions,
        **family.layers.read(keys, model["n_layers"]),
    }


def config(architecture: Architecture, preferred: str = "") -> dict[str, Any]:
    """The config.json of a native class. preferred: which, where several would do. Raises NotTheSame, in words.

    The scaling is written as released models have it (rope_theta, rope_scaling), which old and new versions read.
    """
    rotated = rotation(architecture.position, architecture.head_dim)
    if rotated is None:
        raise NotTheSame(f"position scheme {architecture.position.scheme}; native classes have RoPE only")
    reasons = {name: _reasons(architecture, rotated.rotary_pct, family) for name, family in FAMILIES.items()}
    able = [name for name in FAMILIES if not reasons[name]]
    if preferred in reasons and preferred not in able:
        raise NotTheSame(f"{preferred}: {'; '.join(reasons[preferred])}")
    if not able:
        nearest = min(reasons, key=lambda name: len(reasons[name]))
        raise NotTheSame(f"{', '.join(reasons[nearest])}, which no native class has (the nearest is {nearest})")
    chosen = preferred if preferred in able else able[0]
    family, words, model = FAMILIES[chosen], rotated.words, architecture.complete
    # p-RoPE's share of pairs stands in rope_scaling, under another name of what rotary_pct says: one of both.
    said = family.whole_head or "partial_rotary_factor" in (words.scaling or {})
    return {
        "architectures": [family.transformers_class],
        "model_type": chosen,
        **{field.theirs: field.written(model) for field in family.fields},
        "max_position_embeddings": words.max_positions or max(architecture.seq_len, words.min_positions),
        **({} if words.original is None else {"original_max_position_embeddings": words.original}),
        "rope_scaling": words.scaling,
        family.base: words.theta,
        **({} if said else {"rotary_pct": rotated.rotary_pct}),
        **family.layers.written(architecture),
        "use_cache": True,
    }


def _reasons(architecture: Architecture, rotary_pct: float, family: Family) -> list[str]:
    """Why a family's class computes something else; empty: it does not."""
    model = architecture.complete
    options = {field.ours for field in family.fields}
    known = {ours: [value] for ours, value in family.always.items()}
    known |= {field.ours: list(field.kind.values()) for field in family.fields if isinstance(field.kind, Mapping)}
    known |= {} if "n_kv_heads" in options else {"n_kv_heads": [model.n_heads]}
    known |= {} if "head_dim" in options else {"head_dim": [model.d_model / model.n_heads]}
    reasons = [f"{ours} {getattr(model, ours)}" for ours, values in known.items() if getattr(model, ours) not in values]
    if any(kind.logit_scale.name != "none" for kind in architecture.kinds):
        reasons.append("scores that grow with the length")
    if family.whole_head and rotary_pct != 1:
        reasons.append(f"rotary_pct {rotary_pct:g}")
    if model.d_model % model.n_heads:
        reasons.append(f"d_model {model.d_model} with {model.n_heads} heads")
    try:
        family.layers.written(architecture)
    except NotTheSame as error:
        reasons.append(str(error))
    return reasons
