"""config.json of a CoCA model: a decoder whose layers may differ in their positions and in the keys that they see."""

from copy import deepcopy
from typing import Any

import transformers
from transformers import PretrainedConfig

if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 4):
    raise ImportError(
        f"this model needs transformers 5.4 or later, and {transformers.__version__} is here: 5.3 leaves weights of "
        "the last layer unset where embeddings are tied; pip install -U transformers"
    )

SCHEMES = ("coca", "rope", "alibi", "nope")
ATTENTION_PATTERNS = ("causal", "sliding_window")
ROPE_SCALINGS = (
    "plain", "partial", "linear", "ntk", "ntk_by_parts", "yarn", "llama3", "longrope",
    "dynamic_linear", "dynamic_ntk", "dynamic_ntk_by_parts", "dynamic_yarn", "dynamic_yarn_tuned",
)  # fmt: skip
CONVENTIONS = ("paper", "code", "authors", "indices", "unrounded")  # of YaRN and NTK-by-parts
LOGIT_SCALES = ("none", "log", "steps")
WORDS = {
    "norm": ("rmsnorm", "layernorm"),
    "norm_weight": ("plain", "one_plus", "none"),
    "norm_placement": ("pre", "post", "both"),
    "qk_norm": ("none", "head", "full"),
    "residual": ("sequential", "parallel", "parallel_one_norm"),
}
BIASED = ("qkv", "out", "mlp", "norm", "head")
OWN: dict[str, Any] = {
    "position": {
        "scheme": "coca",
        "variant": "slack",
        "t_width": "full_mean",
        "rotary_pct": 1.0,
        "rope_scaling": {"name": "plain", "theta": 10000.0},
    },
    "attention_pattern": {"name": "causal"},
    "logit_scale": {"name": "none", "length": None, "beta": 1.0},
}


class CocaConfig(PretrainedConfig):
    """The shape of the model, and what its layers do with positions.

    kinds: by name, what the layers of a kind have: `position` (scheme, and its frequencies), `attention_pattern`
    (causal, or sliding_window with its `window`), `logit_scale` (none; log and steps let scores grow with the length).
    layer_kinds: the kind of every layer. max_position_embeddings: the window the weights were trained with [tokens].
    gated_mlp: act(gate x) * up x, else act(up x). norm: rmsnorm or layernorm; norm_weight: times its weight w, 1 + w
    (one_plus, of rmsnorm), or nothing; norm_placement: of the input of attention and feed-forward (pre), their output
    (post), or both; embedding_norm: of the embeddings. qk_norm: RMSNorm of queries and keys, over each head or all of
    them (full). residual: branches one after the other, or parallel, with a norm each or one for both. bias: the parts
    that have one: qkv, out (of attention), mlp, norm (of layernorm), head.

    attention_multiplier: factor of q·k, None: 1 / sqrt(head_dim). clip_qkv: limit of what queries, keys and values are
    clipped to as they are projected, None: they are not. score_cap, logits_cap: a score or logit x becomes
    cap tanh(x / cap), None: x; scores by attention that is eager (sdpa becomes that) or flash. embedding_multiplier,
    residual_multiplier, logits_multiplier: factors of the embeddings, of each branch before it is added, of the logits.

    Raises ValueError for what modeling_coca.py does not compute.
    """

    model_type = "coca"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]  # noqa: RUF012

    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 1024,
        intermediate_size: int = 2816,
        num_hidden_layers: int = 24,
        num_attention_heads: int = 16,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        hidden_act: str = "silu",
        gated_mlp: bool = True,
        norm: str = "rmsnorm",
        norm_eps: float = 1e-6,
        norm_weight: str = "plain",
        norm_placement: str = "pre",
        embedding_norm: bool = False,
        qk_norm: str = "none",
        residual: str = "sequential",
        bias: list[str] | None = None,
        attention_multiplier: float | None = None,
        clip_qkv: float | None = None,
        score_cap: float | None = None,
        embedding_multiplier: float = 1.0,
        residual_multiplier: float = 1.0,
        logits_multiplier: float = 1.0,
        logits_cap: float | None = None,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        max_position_embeddings: int = 2048,
        layer_kinds: list[str] | None = None,
        kinds: dict[str, Any] | None = None,
        use_cache: bool = True,
        tie_word_embeddings: bool = False,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.max_position_embeddings = vocab_size, max_position_embeddings
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.hidden_act, self.gated_mlp = hidden_act, gated_mlp
        self.norm, self.norm_eps, self.norm_weight, self.norm_placement = norm, norm_eps, norm_weight, norm_placement
        self.embedding_norm, self.qk_norm, self.residual, self.bias = embedding_norm, qk_norm, residual, bias or []
        self.attention_multiplier, self.score_cap, self.logits_cap = attention_multiplier, score_cap, logits_cap
        self.clip_qkv = clip_qkv
        self.embedding_multiplier, self.residual_multiplier = embedding_multiplier, residual_multiplier
        self.logits_multiplier, self.dropout, self.initializer_range = logits_multiplier, dropout, initializer_range
        self.kinds = kinds or {"default": deepcopy(OWN)}
        self.layer_kinds = layer_kinds or [next(iter(self.kinds))] * num_hidden_layers
        self.use_cache = use_cache
        self._check()
        # What transformers' caches ask for: layers with a window keep the widest one, and no more.
        windows = [self.kinds[kind]["attention_pattern"].get("window") for kind in self.layer_kinds]
        self.sliding_window = max((window for window in windows if window), default=None)
        self.layer_types = ["sliding_attention" if window else "full_attention" for window in windows]
        super().__init__(
            **kwargs
            | {
                "tie_word_embeddings": tie_word_embeddings,
                "bos_token_id": bos_token_id,
                "eos_token_id": eos_token_id,
                "pad_token_id": pad_token_id,
            }
        )

    def _check(self) -> None:
        for key, words in WORDS.items():
            self._known(key, getattr(self, key), words)
        for part in self.bias:
            self._known("bias", part, BIASED)
        if (self.norm, self.norm_weight) == ("layernorm", "one_plus"):
            raise ValueError("norm_weight='one_plus': modeling_coca.py computes it of norm='rmsnorm'")
        if len(self.layer_kinds) != self.num_hidden_layers:
            raise ValueError(f"layer_kinds: {len(self.layer_kinds)} entries for {self.num_hidden_layers} layers")
        for name in dict.fromkeys(self.layer_kinds):
            if name not in self.kinds:
                raise ValueError(f"layer_kinds: {name!r} is none of kinds ({', '.join(self.kinds)})")
            if absent := [part for part in OWN if part not in self.kinds[name]]:
                raise ValueError(f"kinds.{name}: {absent[0]} is missing; give all of {', '.join(OWN)}")
            position, attention_pattern, scale = (
                self.kinds[name][part] for part in ("position", "attention_pattern", "logit_scale")
            )
            self._known(f"kinds.{name}.position.scheme", position["scheme"], SCHEMES)
            self._known(f"kinds.{name}.attention_pattern.name", attention_pattern["name"], ATTENTION_PATTERNS)
            self._known(f"kinds.{name}.logit_scale.name", scale["name"], LOGIT_SCALES)
            if attention_pattern["name"] == "sliding_window" and not attention_pattern.get("window"):
                raise ValueError(f"kinds.{name}.attention_pattern: sliding_window needs its window [tokens]")
            if position["scheme"] == "alibi" and self.score_cap is not None:
                raise ValueError("score_cap: modeling_coca.py computes it of schemes that add nothing to a score")
            if position["scheme"] == "coca":
                self._known(f"kinds.{name}.position.variant", position.get("variant"), ("slack", "strict"))
                self._known(f"kinds.{name}.position.t_width", position.get("t_width"), ("half", "full_mean"))
            if position["scheme"] in ("coca", "rope"):
                rope_scaling = position["rope_scaling"]
                self._known(f"kinds.{name}.position.rope_scaling.name", rope_scaling["name"], ROPE_SCALINGS)
                convention = rope_scaling.get("convention", "paper")
                self._known(f"kinds.{name}.position.rope_scaling.convention", convention, CONVENTIONS)

    def _known(self, key: str, value: Any, known: tuple[str, ...]) -> None:
        if value not in known:
            raise ValueError(f"{key}={value!r}: modeling_coca.py computes {', '.join(known)}")
