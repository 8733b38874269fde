"""The layers of the network: attention, feed-forward, normalisation, block, head.

Attention calls every hook of the position scheme and never reads which scheme it is.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim, P projected key width, K cached
key width, C d_model, F d_ff, M positions of a memory, V vocab_size.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from coca_train.attention.kernels import Kernel
from coca_train.attention.pattern import Layout
from coca_train.attention.scores import part_of
from coca_train.config.schema import DEFAULT, LogitScaleConfig, ModelConfig
from coca_train.models import fused_loss
from coca_train.models.cache import Cache
from coca_train.models.loss import summed_cross_entropy, token_nll
from coca_train.models.qkv_projection import project
from coca_train.models.ulysses import SequenceShare
from coca_train.positions.base import ALL_HEADS, LayerPosition, Position, Projections


class AttentionContext(NamedTuple):
    """What every layer of one type shares in one forward."""

    position: Position
    kernel: Kernel
    views: Sequence[tuple[object, Layout]]  # the scheme's tables and the layout of each view
    cache: Cache | None
    rotated: bool = False  # the cache holds keys as the scheme maps them, and the tables are those of the new tokens
    scale_BT: Tensor | None = None  # of every query's scores, float32; None: one
    layer_type: str = DEFAULT  # of the layers
    sequence: SequenceShare | None = None  # what this rank has of a sequence that several share; None: all of it

    def shared_by(self, sequence: SequenceShare) -> "AttentionContext":
        """Return the context of the heads of this rank."""
        shape = self.position.shape
        heads = sequence.heads(shape.n_heads, shape.n_kv_heads)
        views = [(self.position.select_heads(tables, heads), layout) for tables, layout in self.views]
        return self._replace(views=views, sequence=sequence)


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
        self.gathers_weights = False  # set where ranks gather sharded weights for the one layer that is about to run

    def project_q(self, x_C: Tensor) -> Tensor:
        """Return the queries, (..., H, D)."""
        q_HD = self.q(x_C).unflatten(-1, (self.n_heads, -1))
        return q_HD if self.q_norm is None else self.q_norm(q_HD)

    def project_k(self, x_C: Tensor) -> Tensor:
        """Return the keys as the cache holds them, (..., G, K)."""
        k_GP = self.k(x_C).unflatten(-1, (self.n_kv_heads, -1))
        return self.position.reduce_keys(k_GP if self.k_norm is None else self.k_norm(k_GP))

    def _project(self, x_BTC: Tensor, x_BSC: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys as the cache holds them, values."""
        if (
            self.gathers_weights
        ):  # weights of several layers are never gathered together, least of all in the backward pass
            return self.project_q(x_BTC), self.project_k(x_BSC), self.v(x_BSC).unflatten(-1, (-1, self.head_dim))
        if x_BSC is x_BTC:
            tables = None if context.cache is None else context.cache.decode_tables
            joined = None if tables is None else tables.joined_weights
            q, k, v = project(x_BTC, (self.q, self.k, self.v), self.widths, joined)
        else:
            (q,) = project(x_BTC, (self.q,), self.widths[:1])
            k, v = project(x_BSC, (self.k, self.v), self.widths[1:])
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, self.position.reduce_keys(k), v

    def forward(self, x_BTC: Tensor, context: AttentionContext, past_BMC: Tensor | None = None) -> Tensor:
        """Attend from x_BTC. past_BMC: hidden states of earlier positions, which are keys and values but not
        queries."""
        x_BSC = x_BTC if past_BMC is None else torch.cat((past_BMC, x_BTC), dim=1)
        q_BTHD, k_BSGK, v_BSGD = self._project(x_BTC, x_BSC, context)
        tokens = self.position.tokens(x_BSC)
        if context.cache is not None and not context.rotated:
            # Before the scheme maps them: what changes with the length is applied to all keys again. In the dtype of
            # the model: reduced keys may be wider than that.
            k_BSGK, v_BSGD, *tokens = context.cache.extend(self.layer, k_BSGK.to(v_BSGD.dtype), v_BSGD, *tokens)
        project, shared = Projections(self.project_q, self.project_k, ALL_HEADS), context.sequence
        if shared is not None:
            # From here on all tokens of some heads: layouts, tables and logit scales are those of the whole row.
            heads = shared.heads(self.n_heads, self.n_kv_heads)
            per_head = self.position.tokens_per_head
            q_BTHD, k_BSGK, v_BSGD, tokens = shared.to_heads(q_BTHD, k_BSGK, v_BSGD, tokens, per_head, heads)
            project = shared.projections(project, heads)
        parts = []
        for tables, layout in context.views:
            mapped = self.position(context.position, q_BTHD, k_BSGK, tables, project, tuple(tokens))
            if shared is not None:
                mapped = shared.mapped(mapped, project.heads, self.n_heads)
            parts.append(part_of(mapped, layout, context.scale_BT))
        if context.cache is not None and context.rotated:  # a key is the same in all views
            k_BSGE, v_BSGD = context.cache.extend(self.layer, parts[0].k_BSGE, v_BSGD)
            parts = [part._replace(k_BSGE=k_BSGE) for part in parts]
        # By the width of the values: a scheme may make queries and keys wider, and that must not make the scores
        # smaller.
        out_BTHD = context.kernel(parts, v_BSGD, self.head_dim**-0.5)
        if shared is not None:
            out_BTHD = shared.to_tokens(out_BTHD, self.n_heads)
        out_BTC = self.out(out_BTHD.flatten(-2))
        return F.dropout(out_BTC, self.dropout) if self.training and self.dropout else out_BTC


def build_norm(model: ModelConfig) -> nn.Module:
    """Build LayerNorm (arXiv 1607.06450) or RMSNorm (arXiv 1910.07467) over the residual width."""
    norm = {"layernorm": nn.LayerNorm, "rmsnorm": nn.RMSNorm}[model.norm]
    return norm(model.d_model, eps=model.norm_eps)


class MLP(nn.Module):
    """gelu(x W_up) W_down, or SwiGLU: (silu(x W_gate) * x W_up) W_down (arXiv 2002.05202)."""

    def __init__(self, model: ModelConfig, tile: int | None = None) -> None:
        super().__init__()
        self.activation, self.dropout = model.activation, model.dropout
        self.up = nn.Linear(model.d_model, model.d_ff, bias=model.bias)
        self.gate = nn.Linear(model.d_model, model.d_ff, bias=model.bias) if model.activation == "swiglu" else None
        self.down = nn.Linear(model.d_ff, model.d_model, bias=model.bias)
        self.tile = tile  # positions computed at a time [tokens]; None: all

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Compute long sequences in tiles, whose inner activations are recomputed in the backward pass: of width d_ff,
        all of them would be the most that a block keeps."""
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
        self,
        model: ModelConfig,
        layer: int,
        head_dim: int,
        projected_key_dim: int,
        position: LayerPosition,
        mlp_tile: int | None = None,
    ) -> None:
        super().__init__()
        self.parallel = model.residual == "parallel"
        self.attention_norm = build_norm(model)
        self.attention = Attention(model, layer, head_dim, projected_key_dim, position)
        self.mlp_norm = build_norm(model)
        self.mlp = MLP(model, mlp_tile)

    def forward(self, x_BTC: Tensor, context: AttentionContext, past_BMC: Tensor | None = None) -> Tensor:
        """Compute the block. past_BMC: this block's inputs at earlier positions, used as keys and values only."""
        normed_past = None if past_BMC is None else self.attention_norm(past_BMC)
        attended_BTC = self.attention(self.attention_norm(x_BTC), context, normed_past)
        if self.parallel:
            return x_BTC + attended_BTC + self.mlp(self.mlp_norm(x_BTC))
        x_BTC = x_BTC + attended_BTC
        return x_BTC + self.mlp(self.mlp_norm(x_BTC))


class Head(nn.Module):
    """The output projection: logits, or the summed loss without ever holding all logits."""

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))

    def forward(self, x_BTC: Tensor, targets_BT: Tensor | None = None, by_token: bool = False) -> Tensor:
        """Return logits; or the sum of the losses; or by_token each of them, without gradients."""
        if targets_BT is None:
            return (x_BTC @ self.weight.T).float()
        if by_token:
            return self.nll(x_BTC, targets_BT)
        return summed_cross_entropy(x_BTC.flatten(0, 1), self.weight, targets_BT.flatten(), fused_loss.score)

    def nll(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        return token_nll(x_BTC.flatten(0, 1), self.weight, targets_BT.flatten()).view_as(targets_BT)


def logit_scale(settings: LogitScaleConfig, text_BT: Tensor, max_seq_len: int) -> Tensor | None:
    """Return the factor of every query, float32 (B, T); None: one. text_BT: integer positions. max_seq_len: the
    training window [tokens]."""
    if settings.name == "none":
        return None
    length, n_keys_BT = settings.length or max_seq_len, text_BT + 1
    if settings.name == "log":
        return (n_keys_BT.float().log() / math.log(length)).clamp(min=1.0)
    return 1.0 + settings.beta * torch.log1p((n_keys_BT // length).float())
