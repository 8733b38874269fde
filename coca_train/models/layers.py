"""Normalisation, feed-forward and block. Shape legend: B batch, T time, M memory, C d_model, F d_ff."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from coca_train.config.schema import ModelConfig
from coca_train.models.attention import Attention, AttentionContext
from coca_train.positions.base import LayerPosition


def build_norm(model: ModelConfig) -> nn.Module:
    """LayerNorm (arXiv 1607.06450) or RMSNorm (arXiv 1910.07467) over the residual width."""
    norm = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}[model.norm]
    return norm(model.d_model, eps=model.norm_eps)


class MLP(nn.Module):
    """gelu(x W_up) W_down, or SwiGLU: (silu(x W_gate) * x W_up) W_down (arXiv 2002.05202)."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.activation, self.dropout = model.activation, model.dropout
        self.up = nn.Linear(model.d_model, model.d_ff, bias=model.bias)
        self.gate = nn.Linear(model.d_model, model.d_ff, bias=model.bias) if model.activation == "swiglu" else None
        self.down = nn.Linear(model.d_ff, model.d_model, bias=model.bias)
        self.tile: int | None = None  # positions computed at a time [tokens]; None: all

    def forward(self, x_BTC: Tensor) -> Tensor:
        """In tiles of long sequences, where a tile's inner activations are recomputed in the backward pass: of width
        d_ff, all of them would be the most that a block keeps."""
        # Without gradients nothing is kept. And there windows differ, where ranks that gather weights together must ask
        # for them equally often.
        if self.tile is None or x_BTC.shape[1] <= self.tile or not torch.is_grad_enabled():
            return self._feed(x_BTC)
        tiles = [checkpoint(self._feed, x_BtC, use_reentrant=False) for x_BtC in x_BTC.split(self.tile, 1)]
        return torch.cat(tiles, 1)

    def _feed(self, x_BTC: Tensor) -> Tensor:
        h_BTF = self.up(x_BTC)
        if self.gate is not None:
            h_BTF = F.silu(self.gate(x_BTC)) * h_BTF
        else:
            h_BTF = F.gelu(h_BTF, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        out_BTC = self.down(h_BTF)
        return F.dropout(out_BTC, self.dropout) if self.training and self.dropout else out_BTC


class Block(nn.Module):
    """One Transformer layer, residual branches parallel (GPT-NeoX, arXiv 2204.06745) or sequential."""

    def __init__(
        self, model: ModelConfig, layer: int, head_dim: int, projected_key_dim: int, position: LayerPosition
    ) -> None:
        super().__init__()
        self.parallel = model.residual == "parallel"
        self.attention_norm = build_norm(model)
        self.attention = Attention(model, layer, head_dim, projected_key_dim, position)
        self.mlp_norm = build_norm(model)
        self.mlp = MLP(model)

    def forward(self, x_BTC: Tensor, context: AttentionContext, past_BMC: Tensor | None = None) -> Tensor:
        """past_BMC: this block's inputs at the positions before, as keys and values only."""
        normed_past = None if past_BMC is None else self.attention_norm(past_BMC)
        attended_BTC = self.attention(self.attention_norm(x_BTC), context, normed_past)
        if self.parallel:
            return x_BTC + attended_BTC + self.mlp(self.mlp_norm(x_BTC))
        x_BTC = x_BTC + attended_BTC
        return x_BTC + self.mlp(self.mlp_norm(x_BTC))
