"""A plain GPT, as one writes it who wants speed and nothing else: what nanoGPT computes, in a model config's shape.

Learned positions, one product for Q, K and V, torch's fused causal attention, a GELU MLP, residual branches one after
the other (GPT-2), the cross entropy of all logits at once.

Shape legend: B batch, T time, H heads, D head width, C d_model, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import ModelConfig
from coca_train.models.layers import build_norm


class _Attention(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.n_heads = model.n_heads
        self.qkv = nn.Linear(model.d_model, 3 * model.d_model, bias="qkv" in model.bias)
        self.out = nn.Linear(model.d_model, model.d_model, bias="out" in model.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        heads = self.qkv(x_BTC).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        out_BHTD = F.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        return self.out(out_BHTD.transpose(1, 2).flatten(-2))


class _Block(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = build_norm(model), _Attention(model)
        self.mlp_norm = build_norm(model)
        self.up = nn.Linear(model.d_model, model.d_ff, bias="mlp" in model.bias)
        self.down = nn.Linear(model.d_ff, model.d_model, bias="mlp" in model.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC))
        return x_BTC + self.down(F.gelu(self.up(self.mlp_norm(x_BTC))))


class PlainGPT(nn.Module):
    """vocab_size: rows of the embedding. max_seq_len: rows of the table of positions."""

    def __init__(self, model: ModelConfig, vocab_size: int, max_seq_len: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, model.d_model), nn.Embedding(max_seq_len, model.d_model)
        self.blocks = nn.Sequential(*(_Block(model) for _ in range(model.n_layers)))
        self.norm = build_norm(model)
        self.head = nn.Linear(model.d_model, vocab_size, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=model.init_std)
        if model.tie_embeddings:
            self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """Logits, (B, T, V); or with targets their mean loss [nats], computed in float32 as nanoGPT's autocast does."""
        pos_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        logits_BTV = self.head(self.norm(self.blocks(self.tokens(tokens_BT) + self.positions(pos_T))))
        if targets_BT is None:
            return logits_BTV
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())
