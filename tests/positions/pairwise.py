"""What several schemes' definitions have in common: formulas for every pair (m, n) by itself, from the papers.

Nothing is carried, cut, tabulated or summed in advance. Pairs of features are complex numbers (j and j + D/2 of the
storage order).

Shape legend: B batch, T queries, S = L keys, H heads, D head width.
"""

import math

import torch


def by_head(values):
    return torch.as_tensor(values, dtype=torch.float64)[:, None, None]


def key_pairs(problem):
    """Indices of two keys, to be compared."""
    n_keys = problem.seen_BTS.shape[2]
    return torch.arange(n_keys)[:, None], torch.arange(n_keys)


def pairs(x):
    half = x.shape[-1] // 2
    return torch.complex(x[..., :half], x[..., half:])


def turned(problem, shrink=None):
    """R_m q · R_n k, pair j times ζ_j^((m-n)/c) where there is something to shrink; the part beyond rotary_pct as it
    is."""
    q_BHTD, k_BHSD = problem.q_BHTD, problem.k_BHSK
    width = round(q_BHTD.shape[-1] * problem.settings["rotary_pct"])
    theta, temperature = problem.spectrum(width)
    q, k = pairs(q_BHTD[..., :width]), pairs(k_BHSD[..., :width])
    apart = (problem.m_BTS - problem.n_BTS).double()
    total = q_BHTD[..., width:] @ k_BHSD[..., width:].mT
    if problem.settings.get("temperature_on") == "rotated":
        total = total / temperature**2
    for j, frequency in enumerate(theta):
        size = torch.ones_like(apart)
        if shrink is not None:
            zeta = (2 * j / width + shrink["gamma"]) / (1 + shrink["gamma"])
            size = zeta ** (apart / shrink["scale_base"])
        factor = torch.polar(size, apart * frequency)[:, None]
        total = total + (q[..., :, None, j] * k[..., None, :, j].conj() * factor).real
    return total * temperature**2 / math.sqrt(q_BHTD.shape[-1])


def alibi_slopes(heads):
    """The interleaving of the ALiBi paper for other head counts."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-4 * h / power) for h in range(1, 2 * power, 2)][: heads - power]


def alibi_bias(problem):
    return -by_head(alibi_slopes(problem.q_BHTD.shape[1])) * problem.distance_BTS[:, None]


def kerple_log_bias(problem, module=""):
    r1, r2 = (by_head_of(problem.parameters[module + name]) for name in ("r1", "r2"))
    return -r1 * torch.log(1 + r2 * problem.distance_BTS[:, None])


def by_head_of(parameter):
    """KERPLE's numbers are held above 0.01; inside their bounds they are what they are."""
    return parameter.clamp(min=0.01)[:, None, None]


def fire_bias(problem, threshold, module):
    c, a, w1, b1, w2 = (problem.parameters[f"{module}.{name}"] for name in ("c", "a", "w1", "b1", "w2"))
    far = torch.maximum(problem.m_BTS.double(), (a * threshold).abs())
    share = torch.log((c * problem.distance_BTS).abs() + 1) / (torch.log((c * far).abs() + 1) + 1e-6)
    total = 0
    for unit in range(len(w1)):
        total = total + w2[:, unit, None, None] * (w1[unit] * share + b1[unit]).clamp(min=0)[:, None]
    return total


def bucket_bias(problem):
    """T5's table[bucket(r), h], (B, H, T, S)."""
    n_buckets, far = problem.settings["n_buckets"], problem.settings["max_distance"]
    if problem.bidirectional:
        half = n_buckets // 2
        signed_BTS = problem.m_BTS - problem.n_BTS
        bucket = signed_BTS.apply_(lambda r: half * (r < 0) + t5_bucket(abs(r), half, far))
    else:
        bucket = problem.distance_BTS.clone().apply_(lambda r: t5_bucket(r, n_buckets, far))
    return problem.parameters["table"][bucket].permute(0, 3, 1, 2)


def t5_bucket(r, n_buckets, max_distance):
    """Half of the buckets hold one distance each, the others are even in log r, the last one is open."""
    exact = n_buckets // 2
    if r < exact:
        return r
    share = math.log(r / exact) / math.log(max_distance / exact)
    return min(exact + math.floor(share * (n_buckets - exact) + 1e-9), n_buckets - 1)


def sinusoid(position, width, base=10000):
    """Sines of all frequencies, then their cosines, (..., width)."""
    angles = [position.double() / base ** (2 * i / width) for i in range(width // 2)]
    return torch.stack([*map(torch.sin, angles), *map(torch.cos, angles)], -1)
