"""Model families with a class in transformers: a declaration of each, for `import` and `export`.

A family declares its class, the keys of its config.json, options with a fixed value, how its layers differ
(layer_rules.py), the names of its weights, and which of their rows are not where ours are (layouts.py). Both ways
refuse, by NotTheSame or UserError, what the other side would compute differently.
"""

from collections.abc import Mapping

from coca_train.hub.config_keys import (
    COUNT,
    COUNT_OR_NULL,
    LAYERS,
    NUMBER,
    NUMBER_OR_NULL,
    SHARE,
    TANH,
    TRUTH,
    Fixed,
    Json,
)
from coca_train.hub.family import INVERSE, INVERSE_ROOT, BiasKey, Family, Field, Words
from coca_train.hub.layer_rules import (
    LaterWindowLayers,
    ListedLayers,
    TypedLayers,
    WindowLayers,
)
from coca_train.hub.layouts import PAIRS, Columns, PerGroup, Rows, SkippedRows
from coca_train.hub.position_rules import AlibiRule, LearnedRule, RopeRule, TwoRopesRule


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


def llama_fields(tied: bool = False, eps: float = 1e-6) -> tuple[Field, ...]:
    """Return the keys of LLaMA and its heirs. tied, eps: the defaults of tie_word_embeddings and rms_norm_eps."""
    return (
        Field("hidden_act", "activation", {"silu": "swiglu", "swish": "swiglu"}, "silu"),
        Field("rms_norm_eps", "norm_eps", NUMBER, eps),
        Field("tie_word_embeddings", "tie_embeddings", TRUTH, tied),
    )


WIDER = 4  # times the width is a feed-forward layer of which config.json does not say the width
KV_HEADS, HEAD_DIM = ("num_key_value_heads", "n_kv_heads"), ("head_dim", "head_dim")
BIASES = (BiasKey("attention_bias", ("qkv", "out")), BiasKey("mlp_bias", ("mlp",)))
GELU: Words = {"gelu": "gelu", TANH: "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
GEGLU: Words = {TANH: "geglu_tanh", "gelu": "geglu"}
MPT_NORMS: Words = {"low_precision_layernorm": "layernorm", "layernorm": "layernorm"}
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
FALCON_NAMES = {
    "embed": "transformer.word_embeddings",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "blocks": "transformer.h",
    "attention.q": "self_attention.query_key_value",
    "attention.k": "self_attention.query_key_value",
    "attention.v": "self_attention.query_key_value",
    "attention.out": "self_attention.dense",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}

GPT2_NAMES = {
    "embed": "transformer.wte",
    "position.table": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "blocks": "transformer.h",
    "attention_norm": "ln_1",
    **dict.fromkeys(("attention.q", "attention.k", "attention.v"), "attn.c_attn"),
    "attention.out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


def glm(transformers_class: str, norm_placement: str = "pre", **names: str) -> Family:
    """Return GLM 4 in one of its forms. names: of the modules that the other lacks."""
    return Family(
        transformers_class=transformers_class,
        fields=(
            *shape_fields(151552, 4096, 40, 32, 13696),
            Field(*KV_HEADS, COUNT_OR_NULL, 2),
            Field(*HEAD_DIM, COUNT, 128),
            *llama_fields(eps=1.5625e-07),
        ),
        always=RMS | {"norm_placement": norm_placement},
        names=LLAMA_NAMES | dict.fromkeys(("mlp.gate", "mlp.up"), "mlp.gate_up_proj") | names,
        biases=(BiasKey("attention_bias", ("qkv",), True),),
        layouts=(*PAIRS, Rows("mlp.gate", "mlp.up")),
        positions=RopeRule(share=0.5, whole_head=False, max_positions=131072),
    )


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
        positions=RopeRule(
            max_positions=4096 * 32,
            scaled_since="4.48",
            yarn_authors="beta_fast 128, beta_slow 2 and a temperature of 0.07 ln(factor) + 1",
        ),
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
        positions=RopeRule(theta=2_000_000.0, max_positions=32768),
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
        layouts=(PerGroup(),),
        positions=RopeRule(theta_key="rotary_emb_base", share_key="rotary_pct", share=0.25, whole_head=False),
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
        positions=RopeRule(max_positions=32768),
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
        positions=RopeRule(max_positions=32768),
    ),
    "olmo2": Family(
        transformers_class="Olmo2ForCausalLM",
        fields=(
            *shape_fields(50304, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields(eps=1e-5),
        ),
        always=RMS | {"norm_placement": "post", "qk_norm": "full"},
        names=OLMO2_NAMES,
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
    ),
    "olmo3": Family(
        transformers_class="Olmo3ForCausalLM",
        fields=(
            *shape_fields(50304, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields(eps=1e-5),
        ),
        always=RMS | {"norm_placement": "post", "qk_norm": "full"},
        names=OLMO2_NAMES,
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        layers=TypedLayers(4, own_positions=True),
        positions=TwoRopesRule(theta=5e5, of_windows=5e5),
    ),
    "exaone4": Family(
        transformers_class="Exaone4ForCausalLM",
        fields=(
            *shape_fields(102400, 4096, 32, 32, 16384),
            Field(*KV_HEADS, COUNT, 32),
            Field(*HEAD_DIM, COUNT_OR_NULL),
            *llama_fields(eps=1e-5),
        ),
        always=RMS | {"norm_placement": "post", "qk_norm": "head"},
        names=OLMO2_NAMES,
        layers=TypedLayers(4, "sliding_window_pattern", nope=True, nope_alone=False),
    ),
    "ministral": Family(
        transformers_class="MinistralForCausalLM",
        fields=(
            *shape_fields(32000, 4096, 32, 32, 14336),
            Field(*KV_HEADS, COUNT, 8),
            Field(*HEAD_DIM, COUNT_OR_NULL),
            *llama_fields(),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        layers=TypedLayers(0),
        positions=RopeRule(max_positions=4096 * 32),
    ),
    "internlm3": Family(
        transformers_class="",
        fields=(
            *shape_fields(128512, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            Field(*HEAD_DIM, COUNT_OR_NULL),
            *llama_fields(),
        ),
        always=RMS,
        names=LLAMA_NAMES,
        biases=(BiasKey("qkv_bias", ("qkv",)), BiasKey("bias", ("out", "mlp"))),
        positions=RopeRule(max_positions=32768),
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
        positions=RopeRule(max_positions=524288),
    ),
    "starcoder2": Family(
        transformers_class="Starcoder2ForCausalLM",
        fields=(
            *shape_fields(49152, 3072, 30, 24, 12288, 0.018042),
            Field(*KV_HEADS, COUNT_OR_NULL, 2),
            Field("hidden_act", "activation", GELU, TANH),
            Field("norm_epsilon", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        always=LAYERNORM,
        bias=("norm",),
        names=LLAMA_NAMES | {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"},
        biases=(BiasKey("use_bias", ("qkv", "out", "mlp"), True),),
        layers=WindowLayers(default=None),
        positions=RopeRule(max_positions=4096),
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
        positions=RopeRule(share=0.25, whole_head=False, max_positions=4096),
    ),
    "phi3": Family(
        transformers_class="Phi3ForCausalLM",
        fields=(
            *shape_fields(32064, 3072, 32, 32, 8192),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields(eps=1e-5),
        ),
        always=RMS,
        names=LLAMA_NAMES
        | dict.fromkeys(("attention.q", "attention.k", "attention.v"), "self_attn.qkv_proj")
        | dict.fromkeys(("mlp.gate", "mlp.up"), "mlp.gate_up_proj"),
        layouts=(Rows("attention.q", "attention.k", "attention.v"), Rows("mlp.gate", "mlp.up")),
        layers=WindowLayers(default=None),
        positions=RopeRule(whole_head=False, max_positions=4096, scalings=("longrope",)),
    ),
    "glm": glm("GlmForCausalLM"),
    "glm4": glm(
        "Glm4ForCausalLM", "both", attention_out_norm="post_self_attn_layernorm", mlp_out_norm="post_mlp_layernorm"
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
        positions=RopeRule(theta=500_000.0, max_positions=8192),
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
        positions=RopeRule(max_positions=8192),
        for_llama_cpp=(("rotary_pct", 1.0),),
    ),
    "gemma": Family(
        transformers_class="GemmaForCausalLM",
        fields=(
            *shape_fields(256000, 3072, 28, 16, 24576),
            Field(*KV_HEADS, COUNT, 16),
            Field(*HEAD_DIM, COUNT, 256),
            # "gelu" is what the releases say, and tanh to 5.23; where a version computes the exact one, parity fails
            Field("hidden_act", "activation", dict.fromkeys((TANH, "gelu"), "geglu_tanh"), TANH),
            Field("rms_norm_eps", "norm_eps", NUMBER, 1e-6),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        always=RMS | {"norm_weight": "one_plus"},
        names=LLAMA_NAMES,
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        root_embedding=True,
        positions=RopeRule(max_positions=8192),
    ),
    "gemma2": Family(
        transformers_class="Gemma2ForCausalLM",
        fields=(
            *shape_fields(256000, 2304, 26, 8, 9216),
            Field(*KV_HEADS, COUNT, 4),
            Field(*HEAD_DIM, COUNT, 256),
            Field("hidden_activation", "activation", GEGLU, TANH),
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
        divisible=True,
        positions=RopeRule(max_positions=8192),
    ),
    "gemma3_text": Family(
        transformers_class="Gemma3ForCausalLM",
        fields=(
            *shape_fields(262208, 2304, 26, 8, 9216),
            Field(*KV_HEADS, COUNT, 4),
            Field(*HEAD_DIM, COUNT, 256),
            Field("hidden_activation", "activation", GEGLU, "gelu_pytorch_tanh"),
            Field("rms_norm_eps", "norm_eps", NUMBER, 1e-6),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
            Field("query_pre_attn_scalar", "attention_multiplier", NUMBER, 256, INVERSE_ROOT),
            Field("final_logit_softcapping", "logits_cap", NUMBER_OR_NULL),
        ),
        fixed=(Fixed("use_bidirectional_attention", False, False),),
        always=RMS | {"norm_weight": "one_plus", "norm_placement": "both", "qk_norm": "head"},
        names=GEMMA2_NAMES | {name: QWEN3_NAMES[name] for name in ("attention.q_norm", "attention.k_norm")},
        biases=(BiasKey("attention_bias", ("qkv", "out")),),
        root_embedding=True,
        layers=TypedLayers(6, "sliding_window_pattern", own_positions=True),
        positions=TwoRopesRule(theta=1e6, of_windows=1e4, of_windows_key="rope_local_base_freq", max_positions=131072),
        harmless=("attn_logit_softcapping", "hidden_act"),
        divisible=True,
    ),
    "olmo": Family(
        transformers_class="OlmoForCausalLM",
        fields=(
            *shape_fields(50304, 4096, 32, 32, 11008),
            Field(*KV_HEADS, COUNT_OR_NULL),
            *llama_fields()[:1],
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, False),
            Field("clip_qkv", "clip_qkv", NUMBER_OR_NULL),
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
        divisible=True,
        positions=RopeRule(max_positions=4096),
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
        positions=RopeRule(share=0.5, whole_head=False),
    ),
    "gpt2": Family(
        transformers_class="GPT2LMHeadModel",
        fields=(
            Field("vocab_size", "vocab_size", COUNT, 50257),
            Field("n_embd", "d_model", COUNT, 768, also="hidden_size"),
            Field("n_layer", "n_layers", LAYERS, 12, also="num_hidden_layers"),
            Field("n_head", "n_heads", COUNT, 12, also="num_attention_heads"),
            Field("n_inner", "d_ff", COUNT_OR_NULL),
            Field("initializer_range", "init_std", SHARE, 0.02),
            Field("activation_function", "activation", {"gelu_new": "gelu_tanh", "relu": "relu", **GELU}, "gelu_new"),
            Field("layer_norm_epsilon", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        fixed=(Fixed("scale_attn_weights", True, True), Fixed("scale_attn_by_inverse_layer_idx", False, False)),
        always=LAYERNORM,
        bias=("qkv", "out", "mlp", "norm"),
        names=GPT2_NAMES,
        layouts=(
            Columns("attention.q", "attention.k", "attention.v"),
            *map(Columns, ("attention.out", "mlp.up", "mlp.down")),
        ),
        positions=LearnedRule("n_positions", 1024, also="n_ctx"),
        harmless=(
            *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
            *("summary_first_dropout", "n_ctx", "n_special", "reorder_and_upcast_attn", "attn_pdrop"),
            *("output_past", "predict_special_tokens", "_num_labels"),
        ),
        packs=False,
        divisible=True,
    ),
    "gpt_bigcode": Family(
        transformers_class="GPTBigCodeForCausalLM",
        fields=(
            Field("vocab_size", "vocab_size", COUNT, 50257),
            Field("n_embd", "d_model", COUNT, 768, also="hidden_size"),
            Field("n_layer", "n_layers", LAYERS, 12, also="num_hidden_layers"),
            Field("n_head", "n_heads", COUNT, 12, also="num_attention_heads"),
            Field("n_inner", "d_ff", COUNT_OR_NULL),
            Field("initializer_range", "init_std", SHARE, 0.02),
            Field("activation_function", "activation", {"relu": "relu", **GELU}, TANH),
            Field("layer_norm_epsilon", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        fixed=(Fixed("scale_attn_weights", True, True), Fixed("multi_query", True, True)),
        always=LAYERNORM | {"n_kv_heads": 1},
        bias=("qkv", "out", "mlp", "norm"),
        names=GPT2_NAMES,
        layouts=(Rows("attention.q", "attention.k", "attention.v"),),
        positions=LearnedRule("n_positions", 1024),
        harmless=(
            *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "attn_pdrop", "num_key_value_heads"),
            *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
            *("summary_first_dropout", "inference_runner", "pad_key_length", "validate_runner_input"),
        ),
        divisible=True,
    ),
    "opt": Family(
        transformers_class="OPTForCausalLM",
        fields=(
            Field("vocab_size", "vocab_size", COUNT, 50272),
            Field("hidden_size", "d_model", COUNT, 768),
            Field("num_hidden_layers", "n_layers", LAYERS, 12),
            Field("num_attention_heads", "n_heads", COUNT, 12),
            Field("ffn_dim", "d_ff", COUNT, 3072),
            Field("init_std", "init_std", SHARE, 0.02),
            Field("activation_function", "activation", {"relu": "relu", **GELU}, "relu"),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
            Field("word_embed_proj_dim", "d_model", COUNT_OR_NULL),
        ),
        fixed=(
            Fixed("do_layer_norm_before", True, True),
            Fixed("_remove_final_layer_norm", False, False),
            Fixed("layer_norm_elementwise_affine", True, True),
        ),
        always=LAYERNORM | {"norm_eps": 1e-5},
        bias=("norm",),
        names={
            "embed": "model.decoder.embed_tokens",
            "position.table": "model.decoder.embed_positions",
            "final_norm": "model.decoder.final_layer_norm",
            "head": "lm_head",
            "blocks": "model.decoder.layers",
            "attention_norm": "self_attn_layer_norm",
            "attention.q": "self_attn.q_proj",
            "attention.k": "self_attn.k_proj",
            "attention.v": "self_attn.v_proj",
            "attention.out": "self_attn.out_proj",
            "mlp_norm": "final_layer_norm",
            "mlp.up": "fc1",
            "mlp.down": "fc2",
        },
        biases=(BiasKey("enable_bias", ("qkv", "out", "mlp"), True),),
        layouts=(SkippedRows("position.table", 2),),
        positions=LearnedRule("max_position_embeddings", 2048),
        harmless=("dropout", "layerdrop", "activation_dropout"),
        packs=False,
        divisible=True,
    ),
    "bloom": Family(
        transformers_class="BloomForCausalLM",
        fields=(
            Field("vocab_size", "vocab_size", COUNT, 250880),
            Field("hidden_size", "d_model", COUNT, 64, also="n_embed"),
            Field("n_layer", "n_layers", LAYERS, 2, also="num_hidden_layers"),
            Field("n_head", "n_heads", COUNT, 8, also="num_attention_heads"),
            Field("initializer_range", "init_std", SHARE, 0.02),
            Field("layer_norm_epsilon", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        fixed=(Fixed("apply_residual_connection_post_layernorm", False, False),),
        always=LAYERNORM | {"embedding_norm": True, "activation": "gelu_tanh"},
        bias=("qkv", "out", "mlp", "norm"),
        names=FALCON_NAMES
        | {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
        | {"embedding_norm": "transformer.word_embeddings_layernorm"},
        layouts=(PerGroup(),),
        positions=AlibiRule("seq_length"),
        harmless=(
            *("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi"),
            *("skip_bias_add", "skip_bias_add_qkv", "slow_but_exact", "unk_token_id"),
        ),
        divisible=True,
    ),
    "mpt": Family(
        transformers_class="MptForCausalLM",
        fields=(
            Field("vocab_size", "vocab_size", COUNT, 50368),
            Field("d_model", "d_model", COUNT, 2048, also="hidden_size"),
            Field("n_layers", "n_layers", LAYERS, 24, also="num_hidden_layers"),
            Field("n_heads", "n_heads", COUNT, 16, also="num_attention_heads"),
            Field("initializer_range", "init_std", SHARE, 0.02),
            Field("attn_config.clip_qkv", "clip_qkv", NUMBER_OR_NULL),
            Field("norm_type", "norm", MPT_NORMS, "layernorm"),
            Field("layer_norm_epsilon", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
        ),
        fixed=(
            Fixed("expansion_ratio", 4, 4),
            Fixed("no_bias", True, True),
            Fixed("attn_config.alibi", True, True),
            Fixed("attn_config.alibi_bias_max", 8, 8),
            Fixed("attn_config.attn_type", "multihead_attention", "multihead_attention"),
            Fixed("attn_config.prefix_lm", False, False),
            Fixed("attn_config.qk_ln", False, False),
            Fixed("attn_config.softmax_scale", None, None),
        ),
        always={"residual": "sequential", "qk_norm": "none", "activation": "gelu"},
        names={
            "embed": "transformer.wte",
            "final_norm": "transformer.norm_f",
            "head": "lm_head",
            "blocks": "transformer.blocks",
            "attention_norm": "norm_1",
            **dict.fromkeys(("attention.q", "attention.k", "attention.v"), "attn.Wqkv"),
            "attention.out": "attn.out_proj",
            "mlp_norm": "norm_2",
            "mlp.up": "ffn.up_proj",
            "mlp.down": "ffn.down_proj",
        },
        layouts=(Rows("attention.q", "attention.k", "attention.v"),),
        positions=AlibiRule("max_seq_len", ends=True),
        # learned_pos_emb: with ALiBi there are none.
        harmless=(
            *("emb_pdrop", "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "tokenizer_name"),
            *("verbose", "attn_config.attn_impl", "attn_config.attn_pdrop"),
        ),
        divisible=True,
    ),
}


def falcon(
    names: Mapping[str, str],
    always: Json,
    *fixed: Fixed,
    fields: tuple[Field, ...] = (),
    for_llama_cpp: tuple[tuple[str, object], ...] = (),
) -> Family:
    """Return Falcon in one of its architectures. names: of its norms."""
    return Family(
        transformers_class="FalconForCausalLM",
        model_type="falcon",
        fields=(
            Field("vocab_size", "vocab_size", COUNT, 65024),
            Field("hidden_size", "d_model", COUNT, 4544, also="n_embed"),
            Field("num_hidden_layers", "n_layers", LAYERS, 32),
            Field("num_attention_heads", "n_heads", COUNT, 71),
            Field("ffn_hidden_size", "d_ff", COUNT_OR_NULL),
            Field("initializer_range", "init_std", SHARE, 0.02),
            Field("activation", "activation", {"gelu": "gelu"}, "gelu"),
            Field("layer_norm_epsilon", "norm_eps", NUMBER, 1e-5),
            Field("tie_word_embeddings", "tie_embeddings", TRUTH, True),
            *fields,
        ),
        # Its ALiBi is rounded to bfloat16 and divided by the root of a head's width.
        fixed=(Fixed("alibi", False, False), Fixed("parallel_attn", True, True), *fixed),
        always={"norm": "layernorm", "qk_norm": "none", **always},
        names={**FALCON_NAMES, **names},
        bias=("norm",),
        biases=(BiasKey("bias", ("qkv", "out", "mlp")),),
        layouts=(PerGroup(),),
        # multi_query and num_kv_heads are read in one of its architectures only.
        harmless=("multi_query", "num_kv_heads", "apply_residual_connection_post_layernorm"),
        for_llama_cpp=for_llama_cpp,
        packs=False,
    )


FAMILIES |= {
    "falcon": falcon(
        {"attention_norm": "input_layernorm"},
        {"residual": "parallel_one_norm", "n_kv_heads": 1},
        Fixed("new_decoder_architecture", False, False),
        Fixed("multi_query", True, True),
        for_llama_cpp=(("num_kv_heads", 1),),
    ),
    "falcon_40b": falcon(
        {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"},
        {"residual": "parallel"},
        Fixed("new_decoder_architecture", True, False),
        Fixed("num_ln_in_parallel_attn", 2, 2),
        fields=(Field("num_kv_heads", "n_kv_heads", COUNT_OR_NULL),),
    ),
    "falcon_11b": falcon(
        {"attention_norm": "input_layernorm"},
        {"residual": "parallel_one_norm"},
        Fixed("new_decoder_architecture", True, False),
        Fixed("num_ln_in_parallel_attn", 1, 2),
        fields=(Field("num_kv_heads", "n_kv_heads", COUNT_OR_NULL),),
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


def name_of(config: Json) -> str:
    """Return the name of the family of a config.json, one of several of the same model_type by its fixed keys; of one
    that is not known its model_type."""
    model_type = str(config.get("model_type"))
    named = [name for name, family in FAMILIES.items() if (family.model_type or name) == model_type]
    if not named and model_type in FAMILIES:
        return ""  # a name that is ours alone
    fitting = (name for name in named if all(key.holds(config) for key in FAMILIES[name].fixed))
    return next(fitting, named[0] if named else model_type)
