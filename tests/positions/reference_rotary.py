"""The rotary family of the float64 reference: frequencies and the scores of every pair (m, n) by itself.

Pairs of features are complex numbers (j and j + D/2 of the storage order). Positions m_BTS, n_BTS belong to
the pair of tokens, so that a visibility may place each pair where it likes.
"""

import math

import torch

WIDE = torch.float64
SCALED = {"linear", "ntk", "ntk_by_parts", "yarn"}
KNOWN = {"plain", "llama3", "partial", "longrope"} | SCALED | {f"dynamic_{name}" for name in SCALED}


def frequencies(p, dim, length):
    """The scalings of docs/positions.md: (θ'_j of every pair, temperature)."""
    assert p["name"] in KNOWN, f"the reference has no frequencies {p['name']!r}"
    kind, base, stretch = p["name"], p["theta"], p.get("factor", 1.0)
    if kind[:8] == "dynamic_":
        trained = p["original_seq_len"]
        stretch = 1.0 if length <= trained else length / trained
        if kind == "dynamic_ntk" and length > trained:
            stretch = p["alpha"] * length / trained - (p["alpha"] - 1)
        kind = kind[8:]
    if kind == "ntk":
        base = base * stretch ** (dim / (dim - 2))
    theta = [base ** (-2 * j / dim) for j in range(dim // 2)]
    if kind == "linear":
        theta = [t / stretch for t in theta]
    elif kind == "partial":
        theta = [t if j < math.floor(p["share"] * dim / 2) else 0.0 for j, t in enumerate(theta)]
    elif kind == "longrope":
        which, plain = ("long_factor", stretch) if length > p["original_seq_len"] else ("short_factor", 1.0)
        theta = [t / f for t, f in zip(theta, p[which] or [plain] * len(theta), strict=True)]
        return theta, math.sqrt(1 + math.log(stretch) / math.log(p["original_seq_len"]))
    elif kind == "llama3":
        theta = [_by_wavelength(p, t) for t in theta]
    elif kind in ("ntk_by_parts", "yarn"):
        theta = [_by_parts(p, t, j, dim, stretch) for j, t in enumerate(theta)]
    return theta, 0.1 * math.log(stretch) + 1 if kind == "yarn" else 1.0


def _by_wavelength(p, theta):
    """Llama 3: waves longer than L/low are stretched, shorter than L/high kept, a ramp in L/wavelength between."""
    wavelength, trained = 2 * math.pi / theta, p["original_seq_len"]
    if wavelength > trained / p["low_freq_factor"]:
        return theta / p["factor"]
    if wavelength < trained / p["high_freq_factor"]:
        return theta
    smooth = (trained / wavelength - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
    return (1 - smooth) * theta / p["factor"] + smooth * theta


def _by_parts(p, theta, j, dim, stretch):
    if p["convention"] == "paper":
        r = p["original_seq_len"] * theta / (2 * math.pi)
        if r < p["beta_slow"]:
            own = 0.0
        elif r > p["beta_fast"]:
            own = 1.0
        else:
            own = (r - p["beta_slow"]) / (p["beta_fast"] - p["beta_slow"])
    else:
        first, last = (
            dim * math.log(p["original_seq_len"] / (turns * 2 * math.pi)) / (2 * math.log(p["theta"]))
            for turns in (p["beta_fast"], p["beta_slow"])
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), dim - 1)
        own = 1 - min(max((j - first) / (last - first if last != first else 0.001), 0.0), 1.0)
    return (1 - own) * theta / stretch + own * theta


def rope(given):
    """R_m q · R_n k, the part beyond rotary_pct as it is."""
    return _turned(given, shrink=None)


def xpos(given):
    """As rope, pair j times ζ_j^((m-n)/c); the part that is not rotated is not shrunk."""
    return _turned(given, shrink=given.settings)


def _turned(given, shrink):
    width = round(given.q_BHTD.shape[-1] * given.settings["rotary_pct"])
    theta, temperature = frequencies(given.settings["frequencies"], width, given.length)
    q, k = _pairs(given.q_BHTD[..., :width]), _pairs(given.k_BHSK[..., :width])
    apart = (given.m_BTS - given.n_BTS).to(WIDE)
    total = given.q_BHTD[..., width:] @ given.k_BHSK[..., width:].mT
    for j, frequency in enumerate(theta):
        size = torch.ones_like(apart)
        if shrink is not None:
            zeta = (2 * j / width + shrink["gamma"]) / (1 + shrink["gamma"])
            size = zeta ** (apart / shrink["scale_base"])
        factor = torch.polar(size, apart * frequency)[:, None]
        total = total + (q[..., :, None, j] * k[..., None, :, j].conj() * factor).real
    return total * temperature**2 / math.sqrt(given.q_BHTD.shape[-1])


def coca(given):
    """Eq. 11 (slack) or Eq. 18 (strict) with t = ReLU of what is cached, at half width."""
    settings, t = given.settings, given.k_BHSK
    if settings["t_width"] == "full_mean":
        t = (t[..., : t.shape[-1] // 2] + t[..., t.shape[-1] // 2 :]) / 2
    t, pairs, dim = t.clamp(min=0), _pairs(given.q_BHTD), given.q_BHTD.shape[-1]
    theta, temperature = frequencies(settings["frequencies"], dim, given.length)
    total = torch.zeros((), dtype=WIDE)
    for j, frequency in enumerate(theta):
        q, t_j = pairs[..., :, None, j], t[..., None, :, j]
        m, n = (x[:, None].to(WIDE) * frequency for x in (given.m_BTS, given.n_BTS))
        if settings["variant"] == "strict":
            total = total + t_j * q.abs() ** 2 * torch.cos(m - n)
            continue
        q_turned, t_turned = q * _turn(m), torch.complex(t_j, t_j) * _turn(n)
        total = total + q_turned.real * q.real * t_turned.real + q_turned.imag * q.imag * t_turned.imag
    return total * temperature**2 / math.sqrt(dim)


def _turn(angle):
    return torch.polar(torch.ones_like(angle), angle)


def _pairs(x):
    half = x.shape[-1] // 2
    return torch.complex(x[..., :half], x[..., half:])
