"""Causal self-attention. Every hook of the position scheme is called; which scheme it is, nobody asks.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim, P projected key width, K cached
key width, C d_model.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coca_train.config.schema import OWN, ModelConfig
from coca_train.models.cache import Cache
from coca_train.models.kernels import Kernel
from coca_train.models.products import products
from coca_train.models.scores import part_of
from coca_train.models.ulysses import SequenceShare
from coca_train.positions.base import ALL_HEADS, LayerPosition, Position, Projections
from coca_train.positions.visibility import Layout


class AttentionContext(NamedTuple):
    """What is the same for every layer of one kind in one forward."""

    position: Position
    kernel: Kernel
    views: Sequence[tuple[Any, Layout]]  # the scheme's tables and the layout of each view
    cache: Cache | None
    settled: bool = False  # the cache holds keys as the scheme maps them, and the tables are those of the new tokens
    scale_BT: Tensor | None = None  # of every query's scores, float32; None: one
    kind: str = OWN  # of the layers
    sequence: SequenceShare | None = None  # what this rank has of a sequence that several share; None: all of it


class Attention(nn.Module):
    """Projections, the position scheme's map of queries and keys, one attention kernel."""

    def __init__(
        self, model: ModelConfig, layer: int, head_dim: int, projected_key_dim: int, position: LayerPosition
    ) -> None:
        super().__init__()
        self.layer, self.head_dim, self.dropout = layer, head_dim, model.dropout
        self.n_heads, self.n_kv_heads = model.n_heads, model.n_kv_heads or model.n_heads
        self.widths = head_dim, projected_key_dim, head_dim  # of heads, as they are projected
        self.q = nn.Linear(model.d_model, self.n_heads * head_dim, bias=model.bias)
        self.k = nn.Linear(model.d_model, self.n_kv_heads * projected_key_dim, bias=model.bias)
        self.v = nn.Linear(model.d_model, self.n_kv_heads * head_dim, bias=model.bias)
        self.out = nn.Linear(self.n_heads * head_dim, model.d_model, bias=model.bias)
        normed = model.qk_norm == "head"
        self.q_norm = nn.RMSNorm(head_dim, eps=model.norm_eps) if normed else None
        self.k_norm = nn.RMSNorm(projected_key_dim, eps=model.norm_eps) if normed else None
        self.position = position
        self.lent = False  # set where ranks gather sharded weights for the one layer that is about to run

    def project_q(self, x_C: Tensor) -> Tensor:
        """Queries, (..., H, D)."""
        return self._queries(self.q(x_C).unflatten(-1, (self.n_heads, -1)))

    def project_k(self, x_C: Tensor) -> Tensor:
        """Keys as the cache holds them, (..., G, K)."""
        return self._keys(self.k(x_C).unflatten(-1, (self.n_kv_heads, -1)))

    def _queries(self, q_HD: Tensor) -> Tensor:
        return q_HD if self.q_norm is None else self.q_norm(q_HD)

    def _keys(self, k_GP: Tensor) -> Tensor:
        return self.position.condense(k_GP if self.k_norm is None else self.k_norm(k_GP))

    def _projected(self, x_BTC: Tensor, x_BSC: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys as the cache holds them, values."""
        if self.lent:  # weights of several layers are never here together, in the backward pass least of all
            return self.project_q(x_BTC), self.project_k(x_BSC), self.v(x_BSC).unflatten(-1, (-1, self.head_dim))
        if x_BSC is x_BTC:
            kept = None if context.cache is None or context.cache.kept is None else context.cache.kept.joints
            q, k, v = products(x_BTC, (self.q, self.k, self.v), self.widths, kept)
        else:
            (q,) = products(x_BTC, (self.q,), self.widths[:1])
            k, v = products(x_BSC, (self.k, self.v), self.widths[1:])
        return self._queries(q), self._keys(k), v

    def forward(self, x_BTC: Tensor, context: AttentionContext, past_BMC: Tensor | None = None) -> Tensor:
        """past_BMC: hidden states of positions that are no queries, in front of the keys."""
        x_BSC = x_BTC if past_BMC is None else torch.cat((past_BMC, x_BTC), dim=1)
        q_BTHD, k_BSGK, v_BSGD = self._projected(x_BTC, x_BSC, context)
        tokens = self.position.tokens(x_BSC)
        if context.cache is not None and not context.settled:
            # Before the scheme maps them: what changes with the length is applied to all keys anew. In the dtype of
            # the model: what a scheme condenses may be wider than that.
            k_BSGK, v_BSGD, *tokens = context.cache.extend(self.layer, k_BSGK.to(v_BSGD.dtype), v_BSGD, *tokens)
        project, shared = Projections(self.project_q, self.project_k, ALL_HEADS), context.sequence
        if shared is not None:
            # From here on all tokens of some heads: layouts, tables and logit scales are those of the whole row.
            heads = shared.heads(self.n_heads, self.n_kv_heads)
            of_heads = self.position.tokens_of_heads
            q_BTHD, k_BSGK, v_BSGD, tokens = shared.to_heads(q_BTHD, k_BSGK, v_BSGD, tokens, of_heads, heads)
            project = shared.projections(project, heads)
        parts = []
        for tables, layout in context.views:
            mapped = self.position(context.position, q_BTHD, k_BSGK, tables, project, tuple(tokens))
            if shared is not None:
                mapped = shared.mapped(mapped, project.heads, self.n_heads)
            parts.append(part_of(mapped, layout, context.scale_BT))
        if context.cache is not None and context.settled:  # a key is the same in all views
            k_BSGE, v_BSGD = context.cache.extend(self.layer, parts[0].k_BSGE, v_BSGD)
            parts = [part._replace(k_BSGE=k_BSGE) for part in parts]
        # By the width of the values: a scheme may make queries and keys wider, and that must not make the scores
        # smaller.
        out_BTHD = context.kernel(parts, v_BSGD, self.head_dim**-0.5)
        if shared is not None:
            out_BTHD = shared.to_tokens(out_BTHD, self.n_heads)
        out_BTC = self.out(out_BTHD.flatten(-2))
        return F.dropout(out_BTC, self.dropout) if self.training and self.dropout else out_BTC
