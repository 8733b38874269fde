"""config.json of models as they were published: every key that says something about the model, and what we make of it.

READ: by name, the keys beyond those of the base it names. REFUSED: by name, the keys, and a word of the reason.
"""

from typing import Any

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
    "Gemma": (LLAMA2 | {"model_type": "gemma", "hidden_act": "gelu"}, "hidden_act='gelu'; supported: gelu_py"),
    "Llama 4, with images": ({"model_type": "llama4", "text_config": {}}, "model_type='llama4'"),
    "Baichuan, code of its own": (LLAMA2 | {"model_type": "baichuan", "auto_map": {"AutoConfig": "x.Y"}}, "never run"),
    "Llama 2, quantised": (LLAMA2 | {"quantization_config": {"bits": 4, "quant_method": "gptq"}}, "quantization"),
    "InternLM as LLaMA with biases": (LLAMA2 | {"bias": True, "rotary": {"base": 10000, "type": "dynamic"}}, "rotary"),
}  # fmt: skip
