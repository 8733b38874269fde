"""The layers of the network: attention, feed-forward, normalisation, block, head.

Attention calls every hook of the position scheme and never reads which scheme it is.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim, P projected key width, K cached
key width, C d_model, F d_ff, M positions of a memory, V vocab_size.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from coca_train.attention.kernels import Kernel, by_heads
from coca_train.attention.pattern import Layout
from coca_train.attention.scores import part_of
from coca_train.config.schema import DEFAULT, ModelConfig
from coca_train.models import fused_loss
from coca_train.models.cache import Cache
from coca_train.models.loss import logits, summed_cross_entropy, token_nll
from coca_train.models.qkv_projection import project
from coca_train.models.score_options import HeadScale, HeadSink, cap_scores
from coca_train.models.ulysses import SequenceShare
from coca_train.positions.base import (
    ALL_HEADS,
    LayerPosition,
    Position,
    PositionedQK,
    Projections,
)


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
    of_heads: Sequence[Layout] = ()  # of equal groups of heads, which see different keys; (): all see the same

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
        self.scale = model.attention_multiplier or head_dim**-0.5
        n_queries, n_keys, biased = self.n_heads * head_dim, self.n_kv_heads * projected_key_dim, "qkv" in model.bias
        self.q = nn.Linear(model.d_model, n_queries, bias=biased)
        self.k = nn.Linear(model.d_model, n_keys, bias=biased)
        self.v = nn.Linear(model.d_model, self.n_kv_heads * head_dim, bias=biased)
        self.out = nn.Linear(n_queries, model.d_model, bias="out" in model.bias)
        self.q_norm = _qk_norm(model, head_dim, n_queries)
        self.k_norm = _qk_norm(model, projected_key_dim, n_keys)
        self.score_scale = HeadScale(self.n_heads) if model.score_scale == "head" else None
        self.sink = HeadSink(self.n_heads) if model.learned_sink else None
        self.position = position
        self.cap, self.clip = model.score_cap, model.clip_qkv
        self.gathers_weights = False  # set where ranks gather sharded weights for the one layer that is about to run

    def project_q(self, x_C: Tensor) -> Tensor:
        """Return the queries, (..., H, D)."""
        return _normed(self.q_norm, self._clipped(self.q(x_C)).unflatten(-1, (self.n_heads, -1)))

    def project_k(self, x_C: Tensor) -> Tensor:
        """Return the keys as the cache holds them, (..., G, K)."""
        k_CGP = self._clipped(self.k(x_C)).unflatten(-1, (self.n_kv_heads, -1))
        return self.position.reduce_keys(_normed(self.k_norm, k_CGP))

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(-self.clip, self.clip)

    def _project(self, x_BTC: Tensor, x_BSC: Tensor, context: AttentionContext) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys as the cache holds them, values."""
        if (
            self.gathers_weights
        ):  # weights of several layers are never gathered together, least of all in the backward pass
            v_BSC = self._clipped(self.v(x_BSC))
            return self.project_q(x_BTC), self.project_k(x_BSC), v_BSC.unflatten(-1, (-1, self.head_dim))
        if x_BSC is x_BTC:
            tables = None if context.cache is None else context.cache.decode_tables
            joined = None if tables is None else tables.joined_weights
            q, k, v = project(x_BTC, (self.q, self.k, self.v), self.widths, joined)
        else:
            (q,) = project(x_BTC, (self.q,), self.widths[:1])
            k, v = project(x_BSC, (self.k, self.v), self.widths[1:])
        q, k, v = map(self._clipped, (q, k, v))
        return _normed(self.q_norm, q), self.position.reduce_keys(_normed(self.k_norm, k)), v

    def apply_positions(
        self,
        position: Position,
        q_BTHD: Tensor,
        k_BSGK: Tensor,
        tables: object,
        project: Projections,
        tokens: tuple[Tensor, ...],
    ) -> PositionedQK:
        """Return queries and keys with positions applied, and what their scores become: the scheme's, scaled by head,
        then capped; and what they share the softmax with."""
        mapped = self.position(position, q_BTHD, k_BSGK, tables, project, tokens)
        mapped = mapped if self.score_scale is None else self.score_scale(mapped, project.heads.query)
        mapped = mapped if self.cap is None else mapped._replace(score_mod=cap_scores(self.cap, mapped))
        return mapped if self.sink is None else mapped._replace(score_mod=self.sink(mapped.score_mod))

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
            mapped = self.apply_positions(context.position, q_BTHD, k_BSGK, tables, project, tuple(tokens))
            if shared is not None:
                mapped = shared.mapped(mapped, project.heads, self.n_heads)
            parts.append(part_of(mapped, layout, context.scale_BT))
        if context.cache is not None and context.rotated:  # a key is the same in all views
            k_BSGE, v_BSGD = context.cache.extend(self.layer, parts[0].k_BSGE, v_BSGD)
            parts = [part._replace(k_BSGE=k_BSGE) for part in parts]
        # By the width of the values: a scheme may make queries and keys wider, and that must not make the scores
        # smaller.
        if context.of_heads:
            out_BTHD = by_heads(context.kernel, parts[0], context.of_heads, v_BSGD, self.scale)
        else:
            out_BTHD = context.kernel(parts, v_BSGD, self.scale)
        if shared is not None:
            out_BTHD = shared.to_tokens(out_BTHD, self.n_heads)
        out_BTC = self.out(out_BTHD.flatten(-2))
        return F.dropout(out_BTC, self.dropout) if self.training and self.dropout else out_BTC


class OnePlusRMSNorm(nn.Module):
    """RMSNorm that multiplies by 1 + w, in float32 before the cast (Gemma, arXiv 2403.08295)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return F.rms_norm(x.to(wide), self.weight.shape, 1 + self.weight.to(wide), self.eps).to(x.dtype)


def build_norm(model: ModelConfig, width: int | None = None, name: str | None = None) -> nn.Module:
    """Build LayerNorm (arXiv 1607.06450) or RMSNorm (arXiv 1910.07467) over a width, by default the residual one. name:
    which of them, where the model's does not decide."""
    width, weighted = width or model.d_model, model.norm_weight != "none"
    if (name or model.norm) == "layernorm":
        return nn.LayerNorm(width, eps=model.norm_eps, elementwise_affine=weighted, bias="norm" in model.bias)
    if model.norm_weight == "one_plus":
        return OnePlusRMSNorm(width, model.norm_eps)
    return nn.RMSNorm(width, eps=model.norm_eps, elementwise_affine=weighted)


def _qk_norm(model: ModelConfig, head: int, full: int) -> nn.Module | None:
    """Build the RMSNorm of queries or keys. head, full: the width of one head, and of all of them."""
    widths = {"head": head, "full": full}
    return build_norm(model, widths[model.qk_norm], "rmsnorm") if model.qk_norm in widths else None


def _normed(norm: nn.Module | None, x_HD: Tensor) -> Tensor:
    """Normalise queries or keys, (..., H, D): each head, or all together."""
    if norm is None:
        return x_HD
    width = getattr(norm, "normalized_shape", None) or norm.get_parameter("weight").shape
    return norm(x_HD) if width[0] == x_HD.shape[-1] else norm(x_HD.flatten(-2)).view_as(x_HD)


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


class MLP(nn.Module):
    """f(x W_up) W_down (arXiv 1706.03762; relu2: 2109.08668), or gated: (f(x W_gate) * x W_up) W_down (arXiv
    2002.05202)."""

    def __init__(self, model: ModelConfig, tile: int | None = None) -> None:
        super().__init__()
        self.activation, self.dropout, biased = model.activation, model.dropout, "mlp" in model.bias
        self.up = nn.Linear(model.d_model, model.d_ff, bias=biased)
        self.gate = nn.Linear(model.d_model, model.d_ff, bias=biased) if model.activation in GATES else None
        self.down = nn.Linear(model.d_ff, model.d_model, bias=biased)
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
            h_BTF = GATES[self.activation](self.gate(x_BTC)) * h_BTF
        else:
            h_BTF = ACTIVATIONS[self.activation](h_BTF)
        out_BTC = self.down(h_BTF)
        return F.dropout(out_BTC, self.dropout) if self.training and self.dropout else out_BTC


class Block(nn.Module):
    """One Transformer layer: branches parallel (GPT-NeoX, arXiv 2204.06745) or sequential, their inputs or outputs
    normalised, or both."""

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
        self.residual, self.multiplier = model.residual, model.residual_multiplier
        pre, post = model.norm_placement != "post", model.norm_placement != "pre"
        self.attention_norm = build_norm(model) if pre else nn.Identity()
        self.attention = Attention(model, layer, head_dim, projected_key_dim, position)
        self.attention_out_norm = build_norm(model) if post else nn.Identity()
        self.mlp_norm = build_norm(model) if pre and model.residual != "parallel_one_norm" else nn.Identity()
        self.mlp = MLP(model, mlp_tile)
        self.mlp_out_norm = build_norm(model) if post else nn.Identity()

    def forward(self, x_BTC: Tensor, context: AttentionContext, past_BMC: Tensor | None = None) -> Tensor:
        """Compute the block. past_BMC: this block's inputs at earlier positions, used as keys and values only."""
        normed_past = None if past_BMC is None else self.attention_norm(past_BMC)
        normed_BTC = self.attention_norm(x_BTC)
        attended_BTC = self._scaled(self.attention_out_norm(self.attention(normed_BTC, context, normed_past)))
        if self.residual == "sequential":
            x_BTC = x_BTC + attended_BTC
            return x_BTC + self._scaled(self.mlp_out_norm(self.mlp(self.mlp_norm(x_BTC))))
        fed_BTC = self.mlp(normed_BTC if self.residual == "parallel_one_norm" else self.mlp_norm(x_BTC))
        return x_BTC + attended_BTC + self._scaled(self.mlp_out_norm(fed_BTC))

    def _scaled(self, branch_BTC: Tensor) -> Tensor:
        return branch_BTC if self.multiplier == 1 else branch_BTC * self.multiplier


class Head(nn.Module):
    """The output projection: logits, or the summed loss without ever holding all logits."""

    def __init__(self, model: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, model.d_model))
        self.bias = nn.Parameter(torch.empty(vocab_size)) if "head" in model.bias else None
        self.multiplier, self.cap = model.logits_multiplier, model.logits_cap

    def forward(self, x_BTC: Tensor, targets_BT: Tensor | None = None, by_token: bool = False) -> Tensor:
        """Return logits; or the sum of the losses; or by_token each of them, without gradients."""
        if targets_BT is None:
            return logits(self._scaled(x_BTC), self.weight, self.bias, self.cap).float()
        if by_token:
            return self.nll(x_BTC, targets_BT)
        x_NC = self._scaled(x_BTC).flatten(0, 1)
        return summed_cross_entropy(x_NC, self.weight, targets_BT.flatten(), fused_loss.score, self.bias, self.cap)

    def nll(self, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        x_NC = self._scaled(x_BTC).flatten(0, 1)
        return token_nll(x_NC, self.weight, targets_BT.flatten(), self.bias, self.cap).view_as(targets_BT)

    def _scaled(self, x_BTC: Tensor) -> Tensor:
        """Scale the hidden states, which is fewer numbers than the logits."""
        return x_BTC if self.multiplier == 1 else x_BTC * self.multiplier
