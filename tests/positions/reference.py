"""A float64 dense reference of positions and attention, written from the papers' formulas and nothing else.

Scores are whole T x S matrices, in which every pair of tokens has positions (m, n) of its own: no table, map or
mask is shared between pairs. Slow, and meant to be read.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.positions import reference_hooks, reference_rotary, reference_terms, reference_visibility


class Given(NamedTuple):
    """One problem. Keys are already repeated to the query heads."""

    settings: Mapping[str, Any]
    q_BHTD: Tensor
    k_BHSK: Tensor
    k_BSGK: Tensor  # not repeated
    seen_BTS: Tensor
    m_BTS: Tensor  # where the query stands, for every pair
    n_BTS: Tensor
    length: int
    parameters: Mapping[str, Tensor]
    project: Any  # .query and .key: the layer's own W_Q and W_K


# Score of every pair, already divided by √D. Schemes that only change the embeddings leave scores alone.
SCORES = {
    "nope": reference_terms.content,
    "learned": reference_terms.content,
    "sinusoidal": reference_terms.content,
    "rope": reference_rotary.rope,
    "xpos": reference_rotary.xpos,
    "coca": reference_rotary.coca,
    "alibi": reference_terms.alibi,
    "kerple_log": reference_terms.kerple_log,
    "kerple_power": reference_terms.kerple_power,
    "t5": reference_terms.t5,
    "sandwich": reference_terms.sandwich,
    "shaw": reference_terms.shaw,
    "transformer_xl": reference_terms.transformer_xl,
    "tupe": reference_terms.tupe,
    "disentangled": reference_terms.disentangled,
    "fox": reference_hooks.fox,
    "fire": reference_hooks.fire,
    "dape": reference_hooks.dape,
    "cope": reference_hooks.cope,
}
VALUES = {"shaw": reference_terms.shaw_values}
frequencies = reference_rotary.frequencies
alibi_slopes = reference_terms.alibi_slopes


def given(settings, q_BTHD, k_BSGK, pos_BT, pos_BS, length, parameters=None, project=None):
    """A problem whose pairs stand where their tokens do. Causal: the queries are the last T tokens."""
    q, k = q_BTHD.transpose(1, 2), k_BSGK.transpose(1, 2)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    m_BTS, n_BTS = torch.broadcast_tensors(pos_BT[:, :, None], pos_BS[:, None, :])
    seen_BTS = torch.ones(m_BTS.shape, dtype=torch.bool).tril(m_BTS.shape[2] - m_BTS.shape[1])
    return Given(settings, q, k, k_BSGK, seen_BTS, m_BTS, n_BTS, length, parameters or {}, project)


def scores(settings, q_BTHD, k_BSGK, pos_BT, pos_BS, length, parameters=None, project=None):
    """Scores before visibility, (B, H, T, S), already divided by √D. Any float64 inputs, GQA by repetition."""
    return SCORES[settings["scheme"]](given(settings, q_BTHD, k_BSGK, pos_BT, pos_BS, length, parameters, project))


def embed(settings, x_BTC, pos_BT, parameters):
    """Token embeddings and what the scheme adds to them."""
    if settings["scheme"] == "learned":
        return x_BTC + torch.stack([parameters["table.weight"][row] for row in pos_BT.tolist()])
    if settings["scheme"] == "sinusoidal":
        return x_BTC + settings["scale"] * reference_terms.sinusoid(pos_BT, x_BTC.shape[-1], settings["theta"])
    return x_BTC


def attention(
    settings, q_BTHD, k_BSGK, v_BSGD, pos_BS, length, parameters=None, project=None, visibility=None, doc_BS=None
):
    """Attention of a whole sequence, (B, T, H, D): T = S. Settings of the visibility, None: causal."""
    problem = given(settings, q_BTHD, k_BSGK, pos_BS, pos_BS, length, parameters, project)
    seen, m_BTS, n_BTS = reference_visibility.places(visibility, pos_BS, doc_BS)
    problem = problem._replace(seen_BTS=seen, m_BTS=m_BTS, n_BTS=n_BTS)
    kind = settings["scheme"]
    alpha = SCORES[kind](problem).masked_fill(~seen[:, None], -math.inf).softmax(-1)
    out = alpha @ v_BSGD.transpose(1, 2).repeat_interleave(alpha.shape[1] // v_BSGD.shape[2], 1)
    if kind in VALUES:
        values_BTSD = VALUES[kind](problem).expand(alpha.shape[0], -1, -1, -1)
        out = out + torch.einsum("bhts,btsd->bhtd", alpha, values_BTSD)
    return out.transpose(1, 2)


def attend(scores_BHTS, v_BSGD, seen_TS):
    """Softmax over the visible keys, (B, T, H, D)."""
    v = v_BSGD.transpose(1, 2).repeat_interleave(scores_BHTS.shape[1] // v_BSGD.shape[2], 1)
    return (scores_BHTS.masked_fill(~seen_TS, -math.inf).softmax(-1) @ v).transpose(1, 2)
