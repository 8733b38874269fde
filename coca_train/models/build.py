"""From a config to its parts: vocabulary, model, initial weights; for training and all that loads a run."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from coca_train.config.schema import Config, LoraConfig, ModelConfig
from coca_train.models.init import init_parameter
from coca_train.models.trainable import adapt
from coca_train.models.transformer import Transformer
from coca_train.runtime.errors import DataError

VOCAB_MULTIPLE = 64  # embedding rows are rounded up to this: matrix kernels like round numbers


def vocab_size(model: ModelConfig, n_pieces: int, tokenizer: str) -> int:
    """Embedding rows [tokens]: as configured, else n_pieces, the tokenizer's size, rounded up to 64. tokenizer: its
    file, for the error."""
    rows = model.vocab_size or -(-n_pieces // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    if rows < n_pieces:
        raise DataError(
            f"E-TOK-09 model.vocab_size={rows}: the tokenizer {tokenizer} has {n_pieces} "
            "tokens and needs as many rows. Fix: model.vocab_size=null, which takes the tokenizer's size"
        )
    return rows


def build_model(
    config: Config, n_tokens: int, trainable: Sequence[str] = (), lora: LoraConfig | None = None
) -> Transformer:
    """The Transformer of a config with n_tokens embedding rows, weights not yet initialised.

    lora: adapters for what matches the patterns `trainable`; None: without. Raises UserError where adapters do not fit
    (E-STG-14, 16, 17) or peft is missing (E-STG-18).
    """
    model = Transformer(
        config.model,
        config.position,
        config.visibility,
        vocab_size=n_tokens,
        max_seq_len=config.train.seq_len,
        layers=config.layers,
        attention=config.engine.attention,
        activation_checkpointing=config.engine.activation_checkpointing,
    )
    if lora is not None:
        adapt(model, trainable, lora)
    return model


def init_digests(outline: Transformer, seed: int) -> dict[str, str]:
    """SHA-256 (first 16 digits) of every parameter's initial value: two schemes share what has the same digest."""
    digests = {}
    for name, parameter in outline.named_parameters():
        # Parameter by parameter: the weights of a whole model need not fit into this process.
        values: Tensor = torch.empty(parameter.shape, dtype=torch.float32)
        init_parameter(name, values, outline.config, outline.position.settings, seed, outline.layers)
        digests[name] = hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]
    return digests
