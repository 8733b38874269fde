"""Causal self-attention. Every hook of the position scheme is called; which scheme it is, nobody asks.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim, K cached key width, C d_model.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import ModelConfig
from coca_train.models.cache import KVCache
from coca_train.models.kernels import Bias, Kernel
from coca_train.positions.base import Position


class AttentionContext(NamedTuple):
    """What is the same for every layer of one forward."""

    position: Position
    kernel: Kernel
    tables: Any
    bias: Bias
    cache: KVCache | None


class Attention(nn.Module):
    """Projections, the position scheme's map of queries and keys, one attention kernel."""

    def __init__(self, model: ModelConfig, layer: int, head_dim: int, key_dim: int) -> None:
        super().__init__()
        self.layer, self.head_dim, self.key_dim, self.dropout = layer, head_dim, key_dim, model.dropout
        self.n_heads, self.n_kv_heads = model.n_heads, model.n_kv_heads or model.n_heads
        self.q = nn.Linear(model.d_model, self.n_heads * head_dim, bias=model.bias)
        self.k = nn.Linear(model.d_model, self.n_kv_heads * key_dim, bias=model.bias)
        self.v = nn.Linear(model.d_model, self.n_kv_heads * head_dim, bias=model.bias)
        self.out = nn.Linear(self.n_heads * head_dim, model.d_model, bias=model.bias)

    def forward(self, x_BTC: Tensor, context: AttentionContext) -> Tensor:
        q_BTHD = self.q(x_BTC).unflatten(-1, (self.n_heads, self.head_dim))
        k_BSGK = self.k(x_BTC).unflatten(-1, (self.n_kv_heads, self.key_dim))
        v_BSGD = self.v(x_BTC).unflatten(-1, (self.n_kv_heads, self.head_dim))
        if context.cache is not None:
            k_BSGK, v_BSGD = context.cache.extend(self.layer, k_BSGK, v_BSGD)
        q_BTHE, k_BSGE = context.position.rotate(q_BTHD, k_BSGK, context.tables)
        out_BTHD = context.kernel(q_BTHE, k_BSGE, v_BSGD, self.head_dim**-0.5, context.bias)
        return F.dropout(self.out(out_BTHD.flatten(-2)), self.dropout, self.training)
