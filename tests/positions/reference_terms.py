"""Biases and vectors of their own in the float64 reference: the scores of every pair (m, n), spelled out.

Nothing is shared between pairs, and no table over distances is made: each pair takes its own rows. Parameters
come by the names that checkpoints have.

Shape legend: B batch, T queries, S keys, H heads (keys already repeated to H), D head width, C d_model.
"""

import math

import torch

WIDE = torch.float64


def content(given):
    """q·k / √D."""
    return given.q_BHTD @ given.k_BHSK.mT / math.sqrt(given.q_BHTD.shape[-1])


def distance(given):
    """r of every pair; the pairs that causality hides get 0."""
    return (given.m_BTS - given.n_BTS).clamp(min=0)


def alibi(given):
    return content(given) - by_head(alibi_slopes(given.q_BHTD.shape[1])) * distance(given)[:, None]


def alibi_slopes(heads):
    """ALiBi: the interleaving of the ALiBi paper for other head counts."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-4 * h / power) for h in range(1, 2 * power, 2)][: heads - power]


def by_head(values):
    return torch.as_tensor(values, dtype=WIDE)[:, None, None]


def held(x, low, high=math.inf):
    """x within bounds as KERPLE's authors keep it: stored numbers are cut back, so one at its bound has the gradient
    that it has in use; a step further out would be cut back again, so such a gradient is none."""
    stored = x.view_as(x)
    if x.requires_grad:
        stored.register_hook(lambda g: torch.where(((x < low) & (g > 0)) | ((x > high) & (g < 0)), 0.0, g))
    return stored + (x.clamp(low, high) - x).detach()


def kerple_log(given):
    r1, r2 = (held(given.parameters[name], 0.01) for name in ("r1", "r2"))
    return content(given) - by_head(r1) * torch.log(1 + by_head(r2) * distance(given)[:, None])


def kerple_power(given):
    r1, r2 = held(given.parameters["r1"], 0.01), held(given.parameters["r2"], 0.01, 2.0)
    r = distance(given)[:, None]
    grown = torch.exp(by_head(r2) * torch.log(r.clamp(min=1).to(WIDE)))
    return content(given) - by_head(r1) * torch.where(r > 0, grown, 0.0)


def t5(given):
    return content(given) + bucket_bias(given)


def bucket_bias(given):
    """table[bucket(r), h], (B, H, T, S)."""
    n_buckets, far = given.settings["n_buckets"], given.settings["max_distance"]
    bucket = distance(given).apply_(lambda r: t5_bucket(r, n_buckets, far))
    return given.parameters["table"][bucket].permute(0, 3, 1, 2)


def t5_bucket(r, n_buckets, max_distance):
    """Half of the buckets hold one distance each, the others are even in log r, the last one is open."""
    exact = n_buckets // 2
    if r < exact:
        return r
    share = math.log(r / exact) / math.log(max_distance / exact)
    return min(exact + math.floor(share * (n_buckets - exact) + 1e-9), n_buckets - 1)


def sandwich(given):
    """Known up to a constant of each head, which no softmax sees."""
    r, width = distance(given).to(WIDE), given.settings["d_bar"]
    total = sum(torch.cos(r / 10000 ** (2 * i / width)) for i in range(width // 2))
    heads = given.q_BHTD.shape[1]
    return content(given) + total[:, None] / by_head([8 * h / heads for h in range(1, heads + 1)])


def shaw(given):
    keys_BTSD = given.parameters["keys"][distance(given).clamp(max=given.settings["max_distance"])]
    own = torch.einsum("bhtd,btsd->bhts", given.q_BHTD, keys_BTSD)
    return content(given) + own / math.sqrt(given.q_BHTD.shape[-1])


def shaw_values(given):
    """What the value of key n becomes richer by when query m reads it, (B, T, S, D)."""
    return given.parameters["values"][distance(given).clamp(max=given.settings["max_distance"])]


def transformer_xl(given):
    u, v, w_r = (given.parameters[name] for name in ("u", "v", "w_r"))
    far_BTSHD = (sinusoid(distance(given), w_r.shape[1]) @ w_r.T).unflatten(-1, u.shape)
    with_content = torch.einsum("bhtd,bhsd->bhts", given.q_BHTD + u[:, None], given.k_BHSK)
    with_distance = torch.einsum("bhtd,btshd->bhts", given.q_BHTD + v[:, None], far_BTSHD)
    return (with_content + with_distance) / math.sqrt(given.q_BHTD.shape[-1])


def sinusoid(position, width, base=10000):
    """Sines of all frequencies, then their cosines, (..., width)."""
    angles = [position.to(WIDE) / base ** (2 * i / width) for i in range(width // 2)]
    return torch.stack([*map(torch.sin, angles), *map(torch.cos, angles)], -1)


def tupe(given):
    p, u_q, u_k = (given.parameters[name] for name in ("p", "u_q", "u_k"))
    heads, dim = given.q_BHTD.shape[1], given.q_BHTD.shape[-1]
    query_BTSHD = (p[given.m_BTS] @ u_q.T).unflatten(-1, (heads, dim))
    key_BTSGD = (p[given.n_BTS] @ u_k.T).unflatten(-1, (-1, dim))
    key_BTSHD = key_BTSGD.repeat_interleave(heads // key_BTSGD.shape[-2], -2)
    untied = torch.einsum("btshd,btshd->bhts", query_BTSHD, key_BTSHD)
    return content(given) / math.sqrt(2) + untied / math.sqrt(2 * dim) + bucket_bias(given)


def disentangled(given):
    far_BTSC = given.parameters["p"][distance(given).clamp(max=given.settings["max_distance"])]
    query_BTSHD, key_BTSGD = given.project.query(far_BTSC), given.project.key(far_BTSC)
    key_BTSHD = key_BTSGD.repeat_interleave(query_BTSHD.shape[-2] // key_BTSGD.shape[-2], -2)
    to_distance = torch.einsum("bhtd,btshd->bhts", given.q_BHTD, key_BTSHD)
    from_distance = torch.einsum("btshd,bhsd->bhts", query_BTSHD, given.k_BHSK)
    return content(given) + (to_distance + from_distance) / math.sqrt(given.q_BHTD.shape[-1])
