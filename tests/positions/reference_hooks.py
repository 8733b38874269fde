"""Schemes whose scores no table over the distance can hold, in the float64 reference: every pair spelled out.

Nothing is carried, cut or summed in advance: where a pair depends on the tokens between its key and its query, there
is a term for each of them.

Shape legend: B batch, T queries, S = L keys, H heads, C d_model.
"""

import torch

from tests.positions import support
from tests.positions.reference_terms import WIDE, content, distance


def fox(given):
    """Σ log σ(w·x_l + b) over the tokens after the key up to the query, of those that the query sees."""
    w_HC, b_H = given.parameters["gate.weight"], given.parameters["gate.bias"]
    x_BLC = support.inputs(given.k_BSGK, w_HC.shape[1])
    log_f_BLH = -torch.log1p(torch.exp(-(torch.einsum("blc,hc->blh", x_BLC, w_HC) + b_H)))
    s_S1, l_1L = torch.arange(given.seen_BTS.shape[2])[:, None], torch.arange(given.seen_BTS.shape[2])
    between_BTSL = (given.seen_BTS[:, :, None, :] & (l_1L > s_S1)).to(WIDE)
    return content(given) + torch.einsum("btsl,blh->bhts", between_BTSL, log_f_BLH)


def fire(given):
    """f(ψ(m - n) / ψ(max(L, m))), one hidden unit of f after the other."""
    return content(given) + fire_bias(given, given.settings["threshold"])


def fire_bias(given, threshold):
    c, a, w1, b1, w2 = (given.parameters[name] for name in ("c", "a", "w1", "b1", "w2"))
    far = torch.maximum(given.m_BTS.to(WIDE), (a * threshold).abs())
    share = torch.log((c * distance(given)).abs() + 1) / (torch.log((c * far).abs() + 1) + 1e-6)
    total = 0
    for unit in range(len(w1)):
        total = total + w2[:, unit, None, None] * (w1[unit] * share + b1[unit]).clamp(min=0)[:, None]
    return total
