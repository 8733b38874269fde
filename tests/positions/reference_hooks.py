"""Schemes whose scores no table over the distance can hold, in the float64 reference: every pair spelled out.

Nothing is carried, cut or summed in advance: where a pair depends on the tokens between its key and its query, there
is a term for each of them.

Shape legend: B batch, T queries, S = L keys, H heads, C d_model.
"""

import torch

from tests.positions import support
from tests.positions.reference_terms import WIDE, alibi_slopes, by_head, content, distance, held


def fox(given):
    """Σ log σ(w·x_l + b) over the tokens after the key up to the query, of those that the query sees."""
    w_HC, b_H = given.parameters["gate.weight"], given.parameters["gate.bias"]
    x_BLC = support.inputs(given.k_BSGK, w_HC.shape[1])
    log_f_BLH = -torch.log1p(torch.exp(-(torch.einsum("blc,hc->blh", x_BLC, w_HC) + b_H)))
    s_S1, l_1L = _key_pairs(given)
    between_BTSL = (given.seen_BTS[:, :, None, :] & (l_1L > s_S1)).to(WIDE)
    return content(given) + torch.einsum("btsl,blh->bhts", between_BTSL, log_f_BLH)


def fire(given):
    """f(ψ(m - n) / ψ(max(L, m))), one hidden unit of f after the other."""
    return content(given) + fire_bias(given, given.settings["threshold"])


def fire_bias(given, threshold, module="function"):
    c, a, w1, b1, w2 = (given.parameters[f"{module}.{name}"] for name in ("c", "a", "w1", "b1", "w2"))
    far = torch.maximum(given.m_BTS.to(WIDE), (a * threshold).abs())
    share = torch.log((c * distance(given)).abs() + 1) / (torch.log((c * far).abs() + 1) + 1e-6)
    total = 0
    for unit in range(len(w1)):
        total = total + w2[:, unit, None, None] * (w1[unit] * share + b1[unit]).clamp(min=0)[:, None]
    return total


def dape(given):
    """a + b + f([a ; b]), one hidden unit of f after the other."""
    a_BHTS, p = content(given), given.parameters
    b_BHTS = DAPE_BIASES[given.settings["bias"]](given).expand_as(a_BHTS)
    both, total = torch.cat((a_BHTS, b_BHTS), 1), a_BHTS + b_BHTS
    for unit in range(len(p["b_in"])):
        h_BTS = torch.einsum("bfts,f->bts", both, p["w_in"][unit]) + p["b_in"][unit]
        h_BTS = torch.where(h_BTS > 0, h_BTS, 0.01 * h_BTS)
        total = total + p["w_out"][:, unit, None, None] * h_BTS[:, None]
    return total


def _dape_kerple(given):
    r1, r2 = (by_head(held(given.parameters[f"bias.{name}"], 0.01)) for name in ("r1", "r2"))
    return -r1 * torch.log(1 + r2 * distance(given)[:, None])


DAPE_BIASES = {
    "alibi": lambda given: -by_head(alibi_slopes(given.q_BHTD.shape[1])) * distance(given)[:, None],
    "kerple_log": _dape_kerple,
    "fire": lambda given: fire_bias(given, 512.0, "bias"),
}


def cope(given):
    """q·e between two whole counts; the count is a sum over the keys back to the key itself."""
    e_PD, s_S1, l_1L = given.parameters["e"], *_key_pairs(given)
    gate_BHTL = 1 / (1 + torch.exp(-content(given)))
    counted_BTSL = (given.seen_BTS[:, :, None, :] & (l_1L >= s_S1)).to(WIDE)
    count_BHTS = torch.einsum("btsl,bhtl->bhts", counted_BTSL, gate_BHTL).clamp(max=len(e_PD) - 1)
    total = content(given)
    for p in range(len(e_PD)):  # a tent over each whole count
        weight = (1 - (count_BHTS - p).abs()).clamp(min=0)
        total = total + weight * (given.q_BHTD @ e_PD[p])[..., None]
    return total


def _key_pairs(given):
    """Indices of two keys, to be compared."""
    n_keys = given.seen_BTS.shape[2]
    return torch.arange(n_keys)[:, None], torch.arange(n_keys)
