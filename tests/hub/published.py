"""config.json of models as they were published: every key that says something about the model, and what we make of it.

READ: by name, the keys beyond those of the base it names. REFUSED: by name, the keys, and a word of the reason.
"""

from typing import Any

from coca_train.hub.families import FAMILIES, name_of

ORIGINAL = "original_max_position_embeddings"


def sizes(hidden: int, d_ff: int, layers: int, heads: int, kv: int | None = None) -> dict[str, Any]:
    """The keys of widths and numbers. kv: key heads; None: there is no such key."""
    said = {
        "hidden_size": hidden, "intermediate_size": d_ff, "num_hidden_layers": layers, "num_attention_heads": heads,
    }  # fmt: skip
    return said if kv is None else said | {"num_key_value_heads": kv}


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
LLAMA2 = LLAMA | {"num_key_value_heads": 32, "pretraining_tp": 1, "rope_scaling": None}
LLAMA3 = LLAMA2 | {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "num_key_value_heads": 8, "rope_theta": 500000.0,
    "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
LLAMA31_ROPE = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
SMOLLM = LLAMA | {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "hidden_size": 576,
    "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "max_position_embeddings": 2048,
    "mlp_bias": False, "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "vocab_size": 49152,
}  # fmt: skip
YARN = {"factor": 16.0, "original_max_position_embeddings": 4096, "type": "yarn", "finetuned": True}
AUTO = {"AutoModelForCausalLM": "modeling_llama_together_yarn.LlamaForCausalLM"}
MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
MISTRAL_YARN = YARN | {"factor": 8.0, "original_max_position_embeddings": 8192}
NEOX: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 10240, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 32, "num_hidden_layers": 32,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
    "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
}  # fmt: skip

QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 131072, "max_window_layers": 28,
    "model_type": "qwen2", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 152064,
}  # fmt: skip
QWEN2_SMALL = QWEN2 | {"tie_word_embeddings": True, "vocab_size": 151936}
QWEN15 = QWEN2 | {"max_position_embeddings": 32768, "sliding_window": 32768, "vocab_size": 151936}
QWEN25 = {"use_mrope": False}
QWEN2_7B, QWEN2_72B = QWEN2 | sizes(3584, 18944, 28, 28, 4), QWEN2 | sizes(8192, 29568, 80, 64, 8)
QWEN25_32B = QWEN2 | QWEN25 | sizes(5120, 27648, 64, 40, 8) | {"max_window_layers": 64, "rms_norm_eps": 1e-05}
QWEN2_CHAT = {"eos_token_id": 151645, "max_position_embeddings": 32768}
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3", "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_4B, QWEN3_8B = (
    QWEN3 | sizes(2560, 9728, 36, 32, 8) | {"tie_word_embeddings": True}, QWEN3 | sizes(4096, 12288, 36, 32, 8)
)  # fmt: skip
GEMMA: dict[str, Any] = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2,
    "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh",
    "initializer_range": 0.02, "max_position_embeddings": 8192, "model_type": "gemma", "pad_token_id": 0,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 256000,
}  # fmt: skip
GEMMA2: dict[str, Any] = {
    key: value for key, value in GEMMA.items() if key != "rope_scaling"
} | {
    "architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh", "model_type": "gemma2",
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "torch_dtype": "float32",
}  # fmt: skip
PHI: dict[str, Any] = {
    "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": None, "embd_pdrop": 0.0,
    "eos_token_id": None, "hidden_act": "gelu_new", "initializer_range": 0.02, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "phi", "num_key_value_heads": None, "partial_rotary_factor": 0.5,
    "qk_layernorm": False, "resid_pdrop": 0.0, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True, "vocab_size": 51200,
}  # fmt: skip
PHI3: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 4096, "model_type": "phi3", "original_max_position_embeddings": 4096,
    "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
    "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 32064,
}  # fmt: skip
PHI3_MINI, PHI3_MEDIUM = PHI3 | sizes(3072, 8192, 32, 32, 32), PHI3 | sizes(5120, 17920, 40, 40, 10)
# In place of the published factors, of which only the number and that they differ matters here.
FACTORS = {"short_factor": [1 + j / 32 for j in range(48)], "long_factor": [1 + j for j in range(48)]}
PHI3_LONG = {
    "max_position_embeddings": 131072, "rope_scaling": FACTORS | {"type": "longrope"}, "sliding_window": 262144,
}  # fmt: skip
OLMO: dict[str, Any] = {
    "architectures": ["OlmoForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None,
    "eos_token_id": 50279, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 2048,
    "model_type": "olmo", "pad_token_id": 1, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True, "vocab_size": 50304,
}  # fmt: skip
OLMO2 = {key: value for key, value in OLMO.items() if key != "clip_qkv"} | {
    "architectures": ["Olmo2ForCausalLM"], "eos_token_id": 100257, "max_position_embeddings": 4096,
    "model_type": "olmo2", "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_theta": 500000, "vocab_size": 100352,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.1,
    "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
    "hidden_act": "silu", "initializer_range": 0.02, "logits_scaling": 8.0, "max_position_embeddings": 4096,
    "mlp_bias": False, "model_type": "granite", "pad_token_id": 0, "residual_multiplier": 0.22, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 49155,
}  # fmt: skip
GRANITE_2B = GRANITE | sizes(2048, 8192, 40, 32, 8)
GRANITE_8B = GRANITE | sizes(4096, 12800, 40, 32, 8) | {"attention_multiplier": 0.0078125, "logits_scaling": 16.0}
SEED: dict[str, Any] = {
    "architectures": ["SeedOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.1,
    "attention_out_bias": False, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
    "initializer_range": 0.02, "max_position_embeddings": 524288, "mlp_bias": False, "model_type": "seed_oss",
    "pad_token_id": 1, "pretraining_tp": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06,
    "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 155136,
}  # fmt: skip
STARCODER2: dict[str, Any] = {
    "architectures": ["Starcoder2ForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 0, "embedding_dropout": 0.1,
    "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh", "initializer_range": 0.018042,
    "max_position_embeddings": 16384, "mlp_type": "default", "model_type": "starcoder2", "norm_epsilon": 1e-05,
    "residual_dropout": 0.1, "rope_theta": 1000000, "sliding_window": 4096, "torch_dtype": "bfloat16",
    "use_bias": True, "use_cache": True, "vocab_size": 49152,
}  # fmt: skip
STABLELM: dict[str, Any] = {
    "architectures": ["StableLmForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
    "initializer_range": 0.02, "layer_norm_eps": 1e-05, "max_position_embeddings": 4096, "model_type": "stablelm",
    "partial_rotary_factor": 0.25, "rope_theta": 10000, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "use_qkv_bias": False, "vocab_size": 50304,
}  # fmt: skip
STABLELM_3B = STABLELM | sizes(2560, 6912, 32, 32, 32)
GLM: dict[str, Any] = {
    "architectures": ["GlmForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 131072, "model_type": "glm", "pad_token_id": 151329, "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07, "rope_theta": 5000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 151552,
}  # fmt: skip
GLM4 = GLM | {
    "architectures": ["Glm4ForCausalLM"], "max_position_embeddings": 32768, "model_type": "glm4",
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
}  # fmt: skip
COHERE: dict[str, Any] = {
    "architectures": ["CohereForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 5,
    "eos_token_id": 255001, "hidden_act": "silu", "initializer_range": 0.02, "layer_norm_eps": 1e-05,
    "logit_scale": 0.0625, "max_position_embeddings": 8192, "model_type": "cohere", "pad_token_id": 0,
    "rope_theta": 10000.0, "torch_dtype": "float16", "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
COHERE_35B = COHERE | sizes(8192, 22528, 40, 64, 64) | {"rope_theta": 8000000.0}
AYA_8B = COHERE | sizes(4096, 14336, 32, 32, 8) | {"use_qk_norm": False}
COHERE2 = COHERE | {
    "architectures": ["Cohere2ForCausalLM"], "cache_implementation": "hybrid", "head_dim": 128, "layer_switch": 4,
    "logit_scale": 0.25, "max_position_embeddings": 132096, "model_type": "cohere2",
    "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "rope_scaling": None,
    "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
    "torch_dtype": "bfloat16", "use_embedding_sharing": True, "use_gated_activation": True,
    "use_parallel_block": True, "use_parallel_embedding": True,
}  # fmt: skip
ARCEE: dict[str, Any] = {
    "architectures": ["ArceeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "head_dim": 128, "hidden_act": "relu2", "initializer_range": 0.02,
    "max_position_embeddings": 65536, "mlp_bias": False, "model_type": "arcee", "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 20.0, "mscale": 1.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "type": "yarn",
    },
    "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 128004,
}  # fmt: skip

GPT2: dict[str, Any] = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
}  # fmt: skip
OPT: dict[str, Any] = {
    "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu",
    "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True,
    "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
    "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "use_cache": True, "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}  # fmt: skip
BLOOM: dict[str, Any] = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True, "model_type": "bloom", "n_inner": None, "offset_alibi": 100, "pad_token_id": 3,
    "pretraining_tp": 1, "seq_length": 2048, "skip_bias_add": True, "skip_bias_add_qkv": False, "unk_token_id": 0,
    "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
BLOOM_560M = BLOOM | {"n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}
BLOOM_7B = BLOOM | {"hidden_size": 4096, "n_layer": 30, "num_attention_heads": 32, "pretraining_tp": 4}
MPT_ATTENTION = {
    "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
    "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
}  # fmt: skip
MPT: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"], "attn_config": MPT_ATTENTION,
    "auto_map": {"AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM"}, "d_model": 4096, "emb_pdrop": 0,
    "embedding_fraction": 1.0, "expansion_ratio": 4,
    "init_config": {"init_nonlinearity": "relu", "name": "kaiming_normal_", "verbose": 0}, "init_device": "cpu",
    "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048, "model_type": "mpt", "n_heads": 32,
    "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16", "use_cache": False, "verbose": 0,
    "vocab_size": 50432,
}  # fmt: skip
FALCON: dict[str, Any] = {
    "alibi": False, "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0, "bias": False,
    "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "falcon", "multi_query": True, "new_decoder_architecture": False,
    "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": True, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 65024,
}  # fmt: skip
GEMMA3: dict[str, Any] = {
    key: value for key, value in GEMMA2.items() if key != "hidden_act"
} | {
    "architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": None, "eos_token_id": [1, 106],
    "final_logit_softcapping": None, "max_position_embeddings": 32768, "model_type": "gemma3_text",
    "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
    "torch_dtype": "bfloat16", "vocab_size": 262144,
}  # fmt: skip
OLMO3: dict[str, Any] = OLMO2 | {
    "architectures": ["Olmo3ForCausalLM"], "max_position_embeddings": 65536, "model_type": "olmo3",
    "rope_scaling": {
        "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
        "original_max_position_embeddings": 8192, "rope_type": "yarn",
    },
    "sliding_window": 4096, "torch_dtype": "bfloat16", "vocab_size": 100278,
}  # fmt: skip
THREE_WINDOWS = ["sliding_attention"] * 3 + ["full_attention"]
EXAONE4: dict[str, Any] = LLAMA | {
    "architectures": ["Exaone4ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 361,
    "model_type": "exaone4", "pad_token_id": 0, "rope_scaling": LLAMA31_ROPE | {"factor": 16.0},
    "rope_theta": 1000000, "torch_dtype": "bfloat16", "vocab_size": 102400,
}  # fmt: skip
INTERNLM3: dict[str, Any] = LLAMA | sizes(4096, 10240, 48, 32, 2) | {
    "architectures": ["InternLM3ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_internlm3.InternLM3ForCausalLM"}, "bias": False,
    "eos_token_id": [2, 128131], "head_dim": 128, "max_position_embeddings": 32768, "model_type": "internlm3",
    "pad_token_id": 2, "qkv_bias": False, "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"},
    "rope_theta": 50000000, "torch_dtype": "bfloat16", "vocab_size": 128512,
}  # fmt: skip

READ: dict[str, dict[str, Any]] = {
    "LLaMA 1 7B": LLAMA | {
        "max_position_embeddings": 2048, "max_sequence_length": 2048, "pad_token_id": -1, "rms_norm_eps": 1e-06,
    },
    "Llama 2 7B": LLAMA2,
    "Llama 2 70B": LLAMA2 | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8,
    },
    "Llama 3 8B": LLAMA3,
    "Llama 3 8B Instruct": LLAMA3 | {"eos_token_id": 128009},
    "Llama 3.1 8B": LLAMA3 | {"max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": LLAMA31_ROPE},
    "Llama 3.1 8B Instruct": LLAMA3 | {
        "max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": LLAMA31_ROPE,
        "eos_token_id": [128001, 128008, 128009],
    },
    "Llama 3.2 1B": LLAMA3 | {
        "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "num_hidden_layers": 16, "rope_scaling": LLAMA31_ROPE | {"factor": 32.0},
        "tie_word_embeddings": True,
    },
    "CodeLlama 7B": LLAMA2 | {
        "max_position_embeddings": 16384, "rope_theta": 1000000, "vocab_size": 32016, "torch_dtype": "bfloat16",
    },
    "TinyLlama 1.1B": LLAMA2 | {
        "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 2048, "num_hidden_layers": 22,
        "num_key_value_heads": 4, "torch_dtype": "float32",
    },
    "Vicuna 7B 1.5": LLAMA2 | {"_name_or_path": "vicuna-7b-v1.5", "pad_token_id": 0},
    "Vicuna 7B 1.5 16k": LLAMA2 | {
        "max_sequence_length": 16384, "pad_token_id": 0, "rope_scaling": {"factor": 4.0, "type": "linear"},
    },
    "LongChat 7B 32k": LLAMA2 | {
        "max_sequence_length": 32768, "pad_token_id": 0, "rope_scaling": {"factor": 8.0, "type": "linear"},
    },
    "LLaMA 2 7B 32K": LLAMA2 | {
        "auto_map": {"AutoModelForCausalLM": "modeling_flash_llama.LlamaForCausalLM"}, "pad_token_id": 0,
        "max_position_embeddings": 32768, "rope_scaling": {"factor": 8.0, "type": "linear"},
    },
    "YaRN Llama 2 7B 64k": LLAMA2 | {
        "auto_map": AUTO, "max_position_embeddings": 65536, "rope_scaling": YARN, "rope_theta": 10000.0,
    },
    "YaRN Llama 2 7B 128k": LLAMA2 | {
        "auto_map": AUTO, "max_position_embeddings": 131072, "rope_scaling": YARN | {"factor": 32.0},
        "rope_theta": 10000.0,
    },
    "SmolLM 135M": SMOLLM,
    "SmolLM2 135M": SMOLLM | {
        "is_llama_config": True, "max_position_embeddings": 8192, "rope_interleaved": False, "rope_theta": 100000,
    },
    "SmolLM2 135M Instruct": SMOLLM | {
        "bos_token_id": 1, "eos_token_id": 2, "is_llama_config": True, "max_position_embeddings": 8192,
        "pad_token_id": 2, "rope_interleaved": False, "rope_theta": 100000,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    },
    "SmolLM3 3B": {
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": None, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
        "torch_dtype": "bfloat16", "use_cache": False, "use_sliding_window": False, "vocab_size": 128256,
    },
    "Mistral 7B 0.1": MISTRAL,
    "Mistral 7B Instruct 0.2": MISTRAL | {
        "attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None,
    },
    "Mistral 7B 0.3": MISTRAL | {"rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32768},
    "Mistral Nemo": MISTRAL | {
        "head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 1024000, "num_hidden_layers": 40,
        "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 131072,
    },
    "Zephyr 7B": MISTRAL | {"_name_or_path": "zephyr", "attention_dropout": 0.0, "pad_token_id": 2},
    "GPT-NeoX 20B": NEOX | {
        "attention_probs_dropout_prob": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144,
        "intermediate_size": 24576, "num_attention_heads": 64, "num_hidden_layers": 44, "vocab_size": 50432,
    },
    "Pythia 2.8B": NEOX,
    "Pythia as 4.46 to 4.57 save it": NEOX | {
        "attention_bias": True, "attention_dropout": 0.0, "classifier_dropout": 0.1, "hidden_dropout": 0.0,
        "partial_rotary_factor": 0.25, "rope_scaling": None, "rope_theta": 10000,
    },
    "Dolly 2 3B": NEOX | {
        "custom_pipelines": {"text-generation": {"impl": "instruct_pipeline.Pipe", "pt": "AutoModelForCausalLM"}},
        "vocab_size": 50280,
    },
    "RedPajama INCITE 3B": NEOX | {"rotary_pct": 1.0, "use_parallel_residual": False, "vocab_size": 50432},
    "StableLM alpha 3B": NEOX | {
        "hidden_size": 4096, "intermediate_size": 16384, "max_position_embeddings": 4096, "num_hidden_layers": 16,
        "vocab_size": 50688,
    },
    "CoCA 7B, its LLaMA": LLAMA2 | {"pad_token_id": 0, "rope_scaling": None},
    "Yi 6B": LLAMA2 | {
        "num_key_value_heads": 4, "pad_token_id": 0, "rope_theta": 5000000.0, "torch_dtype": "bfloat16",
        "vocab_size": 64000,
    },
    "DeepSeek LLM 7B": LLAMA2 | {
        "bos_token_id": 100000, "eos_token_id": 100001, "num_hidden_layers": 30, "rms_norm_eps": 1e-06,
        "vocab_size": 102400, "torch_dtype": "bfloat16",
    },
    "DeepSeek Coder 6.7B": LLAMA2 | {
        "bos_token_id": 32013, "eos_token_id": 32014, "max_position_embeddings": 16384, "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": 4.0, "type": "linear"}, "rope_theta": 100000, "vocab_size": 32256,
    },
    "Falcon 3 7B": LLAMA3 | {
        "activation": "swiglu", "eos_token_id": 11, "head_dim": 256, "hidden_size": 3072,
        "intermediate_size": 23040, "max_position_embeddings": 32768, "mlp_bias": False, "num_attention_heads": 12,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000042,
        "vocab_size": 131072,
    },
    "Granite 3B code": LLAMA | sizes(2560, 10240, 32, 32, 32) | {
        "attention_bias": True, "attention_dropout": 0.1, "bos_token_id": 0, "eos_token_id": 0,
        "max_position_embeddings": 2048, "mlp_bias": True, "pad_token_id": 0, "tie_word_embeddings": True,
        "vocab_size": 49152,
    },
    "Yi 1.5 34B": LLAMA2 | sizes(7168, 20480, 60, 56, 8) | {
        "attention_bias": False, "attention_dropout": 0.0, "pad_token_id": 0, "rms_norm_eps": 1e-06,
        "rope_theta": 5000000.0, "torch_dtype": "bfloat16", "vocab_size": 64000,
    },
    "Qwen1.5 0.5B": QWEN15 | sizes(1024, 2816, 24, 16, 16) | {"max_window_layers": 21, "tie_word_embeddings": True},
    "Qwen1.5 7B": QWEN15 | sizes(4096, 11008, 32, 32, 32),
    "Qwen1.5 110B": QWEN15 | sizes(8192, 49152, 80, 64, 8) | {"vocab_size": 152064},
    "Qwen2 0.5B": QWEN2_SMALL | sizes(896, 4864, 24, 14, 2) | {"max_window_layers": 24},
    "Qwen2 7B": QWEN2_7B,
    "Qwen2 7B Instruct": QWEN2_7B | QWEN2_CHAT,
    "Qwen2 72B": QWEN2_72B | {"max_window_layers": 80, "rms_norm_eps": 1e-05},
    "Qwen2.5 0.5B": QWEN2_SMALL | QWEN25 | sizes(896, 4864, 24, 14, 2) | {
        "max_position_embeddings": 32768, "max_window_layers": 24, "sliding_window": 32768,
    },
    "Qwen2.5 1.5B": QWEN2_SMALL | QWEN25 | sizes(1536, 8960, 28, 12, 2),
    "Qwen2.5 3B": QWEN2_SMALL | QWEN25 | sizes(2048, 11008, 36, 16, 2) | {
        "max_position_embeddings": 32768, "max_window_layers": 36, "sliding_window": 32768,
    },
    "Qwen2.5 7B": QWEN2_7B | QWEN25,
    "Qwen2.5 7B Instruct": QWEN2_7B | QWEN2_CHAT,
    "Qwen2.5 7B Instruct, extended as its card says": QWEN2_7B | QWEN2_CHAT | {
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    },
    "Qwen2.5 7B Instruct 1M": QWEN2_7B | QWEN2_CHAT | {
        "dual_chunk_attention_config": {
            "chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144,
        },
        "max_position_embeddings": 1010000, "rope_theta": 10000000.0, "sliding_window": 32768,
    },
    "Qwen2.5 14B": QWEN2 | QWEN25 | sizes(5120, 13824, 48, 40, 8) | {"max_window_layers": 48, "rms_norm_eps": 1e-05},
    "Qwen2.5 32B": QWEN25_32B,
    "Qwen2.5 72B Instruct": QWEN2_72B | QWEN2_CHAT | {"max_window_layers": 70},
    "Qwen2.5 Coder 7B Instruct": QWEN2_7B | QWEN2_CHAT,
    "Qwen2.5 Coder 32B Instruct": QWEN2 | sizes(5120, 27648, 64, 40, 8) | QWEN2_CHAT | {"max_window_layers": 70},
    "Qwen2.5 Math 7B": QWEN2_7B | QWEN25 | {
        "max_position_embeddings": 4096, "rope_theta": 10000, "sliding_window": 4096,
    },
    "DeepSeek R1, distilled into Qwen 7B": QWEN2_7B | QWEN25 | {"rope_theta": 10000, "sliding_window": 4096},
    "Qwen2.5 1.5B as 5.17 saves it": {
        key: value for key, value in QWEN2_SMALL.items() if key not in ("rope_theta", "torch_dtype")
    } | QWEN25 | sizes(1536, 8960, 28, 12, 2) | {
        "bos_token_id": None, "dtype": "bfloat16", "layer_types": ["full_attention"] * 28, "pad_token_id": None,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "sliding_window": None,
    },
    "Qwen3 0.6B": QWEN3 | sizes(1024, 3072, 28, 16, 8) | {"max_window_layers": 28, "tie_word_embeddings": True},
    "Qwen3 1.7B": QWEN3 | sizes(2048, 6144, 28, 16, 8) | {"max_window_layers": 28, "tie_word_embeddings": True},
    "Qwen3 4B": QWEN3_4B,
    "Qwen3 4B Instruct 2507": QWEN3_4B | {"max_position_embeddings": 262144, "rope_theta": 5000000},
    "Qwen3 8B": QWEN3_8B,
    "Qwen3 8B Base": QWEN3_8B | {"eos_token_id": 151643, "max_position_embeddings": 32768},
    "Qwen3 8B, extended as its card says": QWEN3_8B | {
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "rope_type": "yarn"},
    },
    "Qwen3 14B": QWEN3 | sizes(5120, 17408, 40, 40, 8) | {"max_window_layers": 40},
    "Qwen3 32B": QWEN3 | sizes(5120, 25600, 64, 64, 8) | {"max_window_layers": 64},
    "Gemma 2B": GEMMA | sizes(2048, 16384, 18, 8, 1),
    "Gemma 7B": GEMMA | sizes(3072, 24576, 28, 16, 16),
    "CodeGemma 7B": GEMMA | sizes(3072, 24576, 28, 16, 16) | {"hidden_act": "gelu_pytorch_tanh"},
    "Gemma 2 2B": GEMMA2 | sizes(2304, 9216, 26, 8, 4),
    "Gemma 2 2B Instruct": GEMMA2 | sizes(2304, 9216, 26, 8, 4) | {"eos_token_id": [1, 107]},
    "Gemma 2 9B": GEMMA2 | sizes(3584, 14336, 42, 16, 8) | {"sliding_window_size": 4096},
    "Gemma 2 27B": GEMMA2 | sizes(4608, 36864, 46, 32, 16) | {
        "_attn_implementation": "eager", "head_dim": 128, "query_pre_attn_scalar": 144, "sliding_window_size": 4096,
    },
    "Phi 1": PHI | sizes(2048, 8192, 24, 32),
    "Phi 1.5": PHI | sizes(2048, 8192, 24, 32) | {"torch_dtype": "float16"},
    "Phi 2": PHI | sizes(2560, 10240, 32, 32, 32) | {
        "bos_token_id": 50256, "eos_token_id": 50256, "partial_rotary_factor": 0.4, "resid_pdrop": 0.1,
    },
    "Phi 3 mini 4k": PHI3_MINI,
    "Phi 3 mini 128k": PHI3_MINI | PHI3_LONG,
    "Phi 3 medium 4k": PHI3_MEDIUM,
    "Phi 3.5 mini": PHI3_MINI | PHI3_LONG,
    "Phi 4": PHI3_MEDIUM | {
        "bos_token_id": 100257, "eos_token_id": 100265, "max_position_embeddings": 16384,
        "original_max_position_embeddings": 16384, "pad_token_id": 100257, "rope_theta": 250000,
        "sliding_window": None, "vocab_size": 100352,
    },
    "OLMo 1B": OLMO | sizes(2048, 8192, 16, 16, 16) | {"tie_word_embeddings": True},
    "OLMo 7B": OLMO | sizes(4096, 11008, 32, 32, 32),
    "OLMo 2 1B": OLMO2 | sizes(2048, 8192, 16, 16, 16),
    "OLMo 2 7B": OLMO2 | sizes(4096, 11008, 32, 32, 32),
    "OLMo 2 13B": OLMO2 | sizes(5120, 13824, 40, 40, 40),
    "OLMo 2 32B": OLMO2 | sizes(5120, 27648, 64, 40, 8),
    "Granite 3.0 2B": GRANITE_2B,
    "Granite 3.0 8B": GRANITE_8B,
    "Granite 3.1 2B": GRANITE_2B | {"max_position_embeddings": 131072, "rope_theta": 5000000.0},
    "Granite 3.1 8B": GRANITE_8B | {"max_position_embeddings": 131072, "rope_theta": 10000000.0},
    "Granite 3.3 8B Instruct": GRANITE_8B | {
        "max_position_embeddings": 131072, "rope_theta": 10000000.0, "vocab_size": 49159,
    },
    "Seed-OSS 36B": SEED | sizes(5120, 27648, 64, 80, 8),
    "StarCoder2 3B": STARCODER2 | sizes(3072, 12288, 30, 24, 2) | {
        "norm_type": "layer_norm", "rope_theta": 999999.4420358813,
    },
    "StarCoder2 7B": STARCODER2 | sizes(4608, 18432, 32, 36, 4),
    "StableLM 3B": STABLELM_3B,
    "Stable Code 3B": STABLELM_3B | {"max_position_embeddings": 16384, "rope_theta": 1000000},
    "StableLM 2 1.6B": STABLELM | sizes(2048, 5632, 24, 32, 32) | {
        "bos_token_id": 100257, "eos_token_id": 100257, "torch_dtype": "float16", "use_qkv_bias": True,
        "vocab_size": 100352,
    },
    "GLM 4 9B": GLM | sizes(4096, 13696, 40, 32, 2) | {"max_position_embeddings": 8192, "rope_theta": 10000.0},
    "GLM 4 9B Chat": GLM | sizes(4096, 13696, 40, 32, 2),
    "GLM 4 9B Chat 1M": GLM | sizes(4096, 13696, 40, 32, 4) | {
        "max_position_embeddings": 1048576, "rope_theta": 100000000.0,
    },
    "GLM 4 9B 0414": GLM4 | sizes(4096, 13696, 40, 32, 2),
    "GLM 4 32B 0414": GLM4 | sizes(6144, 23040, 61, 48, 2) | {"attention_bias": False},
    "Command R": COHERE_35B | {"model_max_length": 131072},
    "Command R 08-2024": COHERE | sizes(8192, 24576, 40, 64, 8) | {
        "max_position_embeddings": 131072, "rope_theta": 4000000.0, "use_qk_norm": False,
    },
    "Aya 23 8B": AYA_8B,
    "Aya 23 35B": COHERE_35B | {"use_qk_norm": False},
    "Aya Expanse 8B": AYA_8B | {"model_max_length": 8192},
    "Command R7B": COHERE2 | sizes(4096, 14336, 32, 32, 8),
    "Command A": COHERE2 | sizes(12288, 36864, 64, 96, 8),
    "Command R7B as 4.57 saves it": {
        key: value for key, value in COHERE2.items() if key != "sliding_window_pattern"
    } | sizes(4096, 14336, 32, 32, 8) | {
        "_sliding_window_pattern": 4, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    },
    "Arcee AFM 4.5B": ARCEE | sizes(2560, 18432, 36, 20, 4),
    "Phi 4 mini": PHI3 | sizes(3072, 8192, 32, 24, 8) | PHI3_LONG | {
        "bos_token_id": 199999, "eos_token_id": 200020, "full_attn_mod": 1, "interpolate_factor": 1,
        "lm_head_bias": False, "mlp_bias": False, "pad_token_id": 199999, "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True, "vocab_size": 200064,
    },
    "OLMo 1.7 7B": OLMO | sizes(4096, 11008, 32, 32, 32) | {"clip_qkv": 8.0, "max_position_embeddings": 4096},
    "OLMo 3 7B": OLMO3 | sizes(4096, 11008, 32, 32, 32) | {"layer_types": THREE_WINDOWS * 8},
    "OLMo 3 32B": OLMO3 | sizes(5120, 27648, 64, 40, 8) | {"layer_types": THREE_WINDOWS * 16},
    "Gemma 3 1B": GEMMA3 | sizes(1152, 6912, 26, 4, 1) | {"sliding_window_pattern": 6},
    "Gemma 3 270M": GEMMA3 | sizes(640, 2048, 18, 4, 1) | {
        "_sliding_window_pattern": 6, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "use_bidirectional_attention": False,
    },
    "EXAONE 4 32B": EXAONE4 | sizes(5120, 27392, 64, 40, 8) | {
        "head_dim": 128, "layer_types": THREE_WINDOWS * 16, "max_position_embeddings": 131072,
        "sliding_window": 4096, "sliding_window_pattern": "LLLG",
    },
    "EXAONE 4 1.2B": EXAONE4 | sizes(2048, 4096, 30, 32, 8) | {
        "head_dim": 64, "layer_types": ["full_attention"] * 30, "max_position_embeddings": 65536,
        "sliding_window": None, "sliding_window_pattern": None, "tie_word_embeddings": True,
    },
    "InternLM3 8B": INTERNLM3,
    "GPT-2": GPT2,
    "GPT-2 medium": GPT2 | {
        "n_embd": 1024, "n_head": 16, "n_layer": 24, "n_special": 0, "predict_special_tokens": True,
    },
    "GPT-2 XL": GPT2 | {"n_embd": 1600, "n_head": 25, "n_layer": 48, "output_past": True},
    "DistilGPT2": GPT2 | {"_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "n_layer": 6},
    "StarCoder": {key: value for key, value in GPT2.items() if key != "n_ctx"} | {
        "activation_function": "gelu", "architectures": ["GPTBigCodeForCausalLM"], "attention_softmax_in_fp32": True,
        "bos_token_id": 0, "eos_token_id": 0, "inference_runner": 0, "max_batch_size": None,
        "max_sequence_length": None, "model_type": "gpt_bigcode", "multi_query": True, "n_embd": 6144, "n_head": 48,
        "n_inner": 24576, "n_layer": 40, "n_positions": 8192, "pad_key_length": True, "pre_allocate_kv_cache": False,
        "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "torch_dtype": "float32",
        "use_cache": True, "validate_runner_input": True, "vocab_size": 49152,
    },
    "OPT 125M": OPT,
    "OPT 1.3B": OPT | {
        "ffn_dim": 8192, "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24,
        "word_embed_proj_dim": 2048,
    },
    "OPT 6.7B": OPT | {
        "ffn_dim": 16384, "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "word_embed_proj_dim": 4096,
    },
    "BLOOM 560M": BLOOM_560M,
    "BLOOM 7B1": BLOOM_7B,
    "BLOOMZ 560M": BLOOM_560M,
    "BLOOMZ 7B1": BLOOM_7B,
    "MPT 7B": MPT,
    "MPT 30B": MPT | {"d_model": 7168, "max_seq_len": 8192, "n_heads": 64, "n_layers": 48},
    "Falcon 7B": FALCON,
    "Falcon 40B": FALCON | {
        "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
        "num_kv_heads": 8,
    },
    "Falcon 11B": FALCON | {
        "activation": "gelu", "ff_factor": 4, "ffn_hidden_size": 16384, "hidden_size": 4096,
        "max_position_embeddings": 8192, "new_decoder_architecture": True, "num_attention_heads": 32,
        "num_hidden_layers": 60, "num_kv_heads": 8, "num_ln_in_parallel_attn": 1, "rope_scaling": None,
        "rope_theta": 500042.0, "tie_word_embeddings": False,
    },
}  # fmt: skip

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "YaRN Mistral 7B 64k": (
        MISTRAL | {"max_sequence_length": 65536, "rope_scaling": MISTRAL_YARN, "sliding_window": 65536}, "beta_fast"
    ),
    "YaRN Mistral 7B 128k": (
        MISTRAL | {"max_sequence_length": 131072, "rope_scaling": MISTRAL_YARN | {"factor": 16.0},
                   "sliding_window": 131072}, "0.07"
    ),
    "dynamic YaRN of the same authors": (LLAMA2 | {"rope_scaling": YARN | {"type": "dynamic-yarn"}}, "dynamic-yarn"),
    "Phi 3 mini 128k, as it was first": (  # its class does not read it either
        PHI3_MINI | PHI3_LONG | {"rope_scaling": FACTORS | {"type": "su"}}, "rope_type=su"
    ),
    "StableLM 2 12B": (
        STABLELM | sizes(5120, 13824, 40, 32, 8) | {
            "bos_token_id": 100257, "eos_token_id": 100257, "qk_layernorm": True, "use_parallel_residual": True,
            "vocab_size": 100352,
        },
        "use_parallel_residual=True",
    ),
    "Command R+": (
        COHERE | sizes(12288, 33792, 64, 96, 8) | {
            "logit_scale": 0.8333333333333334, "model_max_length": 131072, "rope_theta": 75000000.0,
            "use_qk_norm": True,
        },
        "use_qk_norm=True",
    ),
    "Llama 4, with images": ({"model_type": "llama4", "text_config": {}}, "model_type='llama4'"),
    "Baichuan, code of its own": (LLAMA2 | {"model_type": "baichuan", "auto_map": {"AutoConfig": "x.Y"}}, "never run"),
    "Llama 2, quantised": (LLAMA2 | {"quantization_config": {"bits": 4, "quant_method": "gptq"}}, "quantization"),
    "OPT 350M": (
        OPT | {
            "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024, "num_attention_heads": 16,
            "num_hidden_layers": 24, "word_embed_proj_dim": 512,
        },
        "do_layer_norm_before=False",
    ),
    "MPT 7B StoryWriter": (
        MPT | {
            "attn_config": MPT_ATTENTION | {"alibi_bias_max": 16, "clip_qkv": 6}, "max_seq_len": 65536,
        },
        "alibi_bias_max=16",
    ),
    "Falcon RW 1B": (
        FALCON | {
            "alibi": True, "bias": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 2048,
            "multi_query": False, "num_attention_heads": 32, "num_hidden_layers": 24, "parallel_attn": False,
            "vocab_size": 50304,
        },
        "alibi=True",
    ),
    "InternLM as LLaMA with biases": (LLAMA2 | {"bias": True, "rotary": {"base": 10000, "type": "dynamic"}}, "rotary"),
}  # fmt: skip

# The first release of each family with each kind of frequencies.
FIRST = {
    (name_of(values), str((values.get("rope_scaling") or {}).get("type"))): name
    for name, values in reversed(READ.items())
}
N_LAYERS = {"smollm3": 4, "cohere2": 4, "olmo3": 4, "exaone4": 4, "gemma3_text": 6}  # where layers differ


def small(values: dict[str, Any], length: int = 128) -> dict[str, Any]:
    """The same keys with widths and lengths that a test can build. length: of the trained window, at most."""
    name = name_of(values)
    fields = FAMILIES[name].fields
    said = {field.ours: field.also if field.also in values else field.theirs for field in reversed(fields)}
    kv, n_heads = values.get(said.get("n_kv_heads", "")), values[said["n_heads"]]
    heads = 3 if kv in (1, 3) else 4
    width = min(40, values.get("head_dim") or values[said["d_model"]] // n_heads)
    n_layers = N_LAYERS.get(name, 2)
    of_ours = {
        "d_model": heads * width, "d_ff": 48, "n_heads": heads, "vocab_size": 101, "n_layers": n_layers,
        "n_kv_heads": heads if kv == n_heads else {4: 2, 3: 1}[heads],
    }  # fmt: skip
    changed = values | {said["init_std"]: 0.15}
    for field in fields:
        key = said[field.ours] if field.also else field.theirs
        if field.ours in of_ours and values.get(key) is not None:
            changed[key] = of_ours[field.ours]
    for key in ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"):
        if key in values:
            changed[key] = min(length, values[key])
    if "head_dim" in values:
        changed["head_dim"] = width
    if values.get("logit_scale"):
        changed["logit_scale"] = 8 * values["logit_scale"]  # a sixteenth hides differences
    if values.get("clip_qkv"):
        changed["clip_qkv"] = 0.5
    for key in ("no_rope_layers", "layer_types"):
        if key in values:
            changed[key] = values[key][:n_layers]
    changed |= {key: length // 3 for key in ("sliding_window", "sliding_window_size") if values.get(key)}
    changed |= {ORIGINAL: length // 4} if ORIGINAL in values else {}
    if scaling := values.get("rope_scaling"):
        pairs = int(width * values.get("partial_rotary_factor", 1)) // 2
        lists = {key: each[:pairs] for key, each in scaling.items() if isinstance(each, list)}
        changed["rope_scaling"] = scaling | lists | ({ORIGINAL: length // 4} if ORIGINAL in scaling else {})
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if values.get(key) not in (None, -1):
            changed[key] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}[key]
    return changed
