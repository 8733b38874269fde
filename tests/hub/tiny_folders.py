"""Tiny folders of every model type that an installed transformers can make. `python -m tests.hub.tiny_folders <folder>`

Imports nothing of ours, so that any version of transformers can run it.
"""

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TINY: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.15,
}  # fmt: skip
OLD_NAMES = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48, "d_model": 64, "n_layers": 2,
    "n_heads": 4, "ffn_dim": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "max_seq_len": 64, "d_ff": 48,
    "word_embed_proj_dim": 64, "embedding_size": 64, "num_layers": 2, "num_heads": 4, "num_local_experts": 4,
    "num_experts": 4, "moe_intermediate_size": 16, "n_routed_experts": 4, "encoder_layers": 2, "rotary_dim": 8,
}  # fmt: skip
LARGEST = 3_000_000  # parameters; what stays larger does not take the small numbers


def write(folder: Path, model_type: str) -> Path | None:
    """A folder of random weights; None where this version makes none from small numbers."""
    with contextlib.suppress(Exception):  # each of some 200 classes has errors of its own
        config_class = transformers.CONFIG_MAPPING[model_type]
        known = set(config_class().to_dict())
        small = {key: value for key, value in (TINY | OLD_NAMES).items() if key in known}
        config = config_class(**small)
        with torch.device("meta"):
            size = sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
        if size > LARGEST:
            return None
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        model.save_pretrained(folder, safe_serialization=True)
        return folder
    return None


def write_all(into: Path) -> list[Path]:
    """One for each model type."""
    transformers.logging.set_verbosity_error()
    into.mkdir(parents=True, exist_ok=True)
    folders = (write(into / name, name) for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
    return [folder for folder in folders if folder is not None]


if __name__ == "__main__":
    print(f"{len(write_all(Path(sys.argv[1])))} folders with transformers {transformers.__version__}")
