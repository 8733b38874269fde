"""The layers of the network: attention, feed-forward, normalisation, block, head.

Attention calls every hook of the position scheme and never reads which scheme it is.

Shape legend: B batch, T queries, S keys, H query heads, G key/value heads, D head_dim, P projected key width, K cached
key width, C d_model, F d_ff, M positions of a memory, V vocab_size.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
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
from coca_train.models.loss import logits, summed_cross_entropy, token_nll
from coca_train.models.qkv_projection import project
from coca_train.models.ulysses import SequenceShare
from coca_train.positions.base import (
    ALL_HEADS,
    Hook,
    LayerPosition,
    Pair,
    Pairs,
    Position,
    PositionedQK,
    Projections,
    ScoreMod,
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
        out_BTHD = context.kernel(parts, v_BSGD, self.scale)
        if shared is not None:
            out_BTHD = shared.to_tokens(out_BTHD, self.n_heads)
        out_BTC = self.out(out_BTHD.flatten(-2))
        return F.dropout(out_BTC, self.dropout) if self.training and self.dropout else out_BTC


class HeadScale(nn.Module):
    """A learned factor of the scores of each head, s_h in Scalable-Softmax (arXiv 2501.19399, Eq. 4)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_heads))

    def forward(self, mapped: PositionedQK, heads: slice) -> PositionedQK:
        """Scale queries and everything that is added to their scores. heads: those of the queries; tables have a row
        for every head."""
        own_H1, terms = self.weight[heads, None], mapped.terms

        def rows(n_heads: int) -> Tensor:  # of a table of all heads, of one for all, or of this process's
            return own_H1 if n_heads == len(own_H1) else self.weight[:, None]

        if terms.distance_HR is not None:
            terms = terms._replace(distance_HR=terms.distance_HR * rows(len(terms.distance_HR)))
        if terms.query is not None:
            terms = terms._replace(query=((terms.query[0] * own_H1).to(terms.query[0].dtype), terms.query[1]))
        if terms.key is not None:
            terms = terms._replace(
                key=(terms.key[0], (terms.key[1] * rows(terms.key[1].shape[1])).to(terms.key[1].dtype))
            )
        return mapped._replace(q_BTHE=(mapped.q_BTHE * own_H1).to(mapped.q_BTHE.dtype), terms=terms)


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


def _capped(score: Tensor, cap: Tensor) -> Tensor:
    return cap * torch.tanh(score / cap)


@cache
def _cap_before(hook: Hook | None) -> Hook:
    """Return the hook that caps scores and then does what a scheme's hook does. Its first parameter is the cap."""

    def scores(pairs: Pairs, carry_BHtN: Tensor) -> tuple[Tensor, Tensor]:
        cap, *own = pairs.parameters
        capped_BHts = _capped(pairs.scores_BHts, cap)
        if hook is None:
            return capped_BHts, carry_BHtN
        return hook.scores(pairs._replace(scores_BHts=capped_BHts, parameters=tuple(own)), carry_BHtN)

    def pointwise(score_mod: ScoreMod) -> Callable[[Tensor, Pair], Tensor]:
        cap, *own = score_mod.parameters
        if hook is None or hook.pointwise is None:
            return lambda score, pair: _capped(score, cap)
        then = hook.pointwise(score_mod._replace(by=hook, parameters=tuple(own)))
        return lambda score, pair: then(_capped(score, cap), pair)

    if hook is None:
        return Hook(scores, pointwise=pointwise)
    by_pair, rest = None if hook.pointwise is None else pointwise, hook.rest
    return hook._replace(
        scores=scores,
        pointwise=by_pair,
        per_head=tuple(number + 1 for number in hook.per_head),
        rest=None if rest is None else lambda parameters, carry_BHtN: rest(parameters[1:], carry_BHtN),
    )


def cap_scores(cap: float, mapped: PositionedQK) -> ScoreMod:
    """Return the hook that caps scores, cap tanh(score / cap) (Gemma 2, arXiv 2408.00118), before the scheme's."""
    limit, own = torch.tensor(cap, dtype=torch.float32, device=mapped.q_BTHE.device), mapped.score_mod
    if own is None:
        return ScoreMod(_cap_before(None), (limit,))
    return own._replace(by=_cap_before(own.by), parameters=(limit, *own.parameters))


class HeadSink(nn.Module):
    """A learned score, for each head, of a key without a value (gpt-oss, arXiv 2508.10925)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_heads))

    def forward(self, own: ScoreMod | None) -> ScoreMod:
        """Return the hook that does what a scheme's does, and has this key besides."""
        score_H = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32), copy=True)
        own = ScoreMod(AS_THEY_ARE) if own is None else own
        return own._replace(by=_with_sink(own.by), parameters=(score_H, *own.parameters))


def _as_they_are(pairs: Pairs, carry_BHtN: Tensor) -> tuple[Tensor, Tensor]:
    return pairs.scores_BHts, carry_BHtN


AS_THEY_ARE = Hook(_as_they_are, pointwise=lambda _: lambda score, pair: score)


@cache
def _with_sink(hook: Hook) -> Hook:
    """Return the hook with one more key. Its first parameter is the score of that, by head."""

    def scores(pairs: Pairs, carry_BHtN: Tensor) -> tuple[Tensor, Tensor]:
        return hook.scores(pairs._replace(parameters=pairs.parameters[1:]), carry_BHtN)

    def pointwise(score_mod: ScoreMod) -> Callable[[Tensor, Pair], Tensor]:
        assert hook.pointwise is not None
        return hook.pointwise(score_mod._replace(by=hook, parameters=score_mod.parameters[1:]))

    def rest(parameters: tuple[Tensor, ...], carry_BHtN: Tensor) -> Tensor:
        sink_1H11 = parameters[0][None, :, None, None]
        return sink_1H11 if hook.rest is None else torch.logaddexp(hook.rest(parameters[1:], carry_BHtN), sink_1H11)

    return hook._replace(
        scores=scores,
        pointwise=None if hook.pointwise is None else pointwise,
        per_head=(0, *(number + 1 for number in hook.per_head)),
        rest=rest,
    )


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


def logit_scale(
    settings: LogitScaleConfig,
    text_BT: Tensor,
    max_seq_len: int,
    n_tokens: int | None = None,
    most_seen: int | None = None,
) -> Tensor | None:
    """Return the factor of every query, float32 (B, T); None: one. text_BT: integer positions.

    max_seq_len: the training window [tokens]. n_tokens: the length of the text, which by_length follows [tokens]; None:
    that window. most_seen: keys that a query sees at most, which ssmax counts; None: all before it.

    log: Su, kexue.fm/archives/8823. ssmax: arXiv 2501.19399, Eq. 4, where s_h is divided by ln(length) here. steps:
    Llama 4. shifted_log: HyPE, arXiv 2601.22156. by_length: DroPE, arXiv 2512.12167.
    """
    if settings.name == "none":
        return None
    length, n_keys_BT = settings.length or max_seq_len, text_BT + 1
    if settings.name == "log":
        return (n_keys_BT.float().log() / math.log(length)).clamp(min=1.0)
    if settings.name == "ssmax":
        seen_BT = n_keys_BT if most_seen is None else n_keys_BT.clamp(max=most_seen)
        return seen_BT.float().log() / math.log(length)
    if settings.name == "shifted_log":
        return (text_BT + length).float().log() / math.log(length)
    if settings.name == "by_length":
        stretch = max(1.0, (n_tokens or max_seq_len) / length)
        return torch.full_like(text_BT, 1.0 + settings.beta * math.log(stretch), dtype=torch.float32)
    return 1.0 + settings.beta * torch.log1p((n_keys_BT // length).float())
