"""What options of `model` make of the scores of any scheme: grown with the length, scaled by head, capped, shared with
a sink.

Shape legend: B batch, T queries, t queries and s keys of a tile, H query heads, R distances, D head_dim, E dot-product
width, N numbers carried.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from coca_train.config.schema import LogitScaleConfig
from coca_train.positions.base import Hook, Pair, Pairs, PositionedQK, ScoreMod


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
        """Return the hook that does what a scheme's does, and adds this key."""
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
