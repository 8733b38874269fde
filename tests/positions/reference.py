"""A float64 dense reference of positions and attention, written from the papers' formulas and nothing else.

Pairs are complex numbers (j and j + D/2 of the storage order); scores are whole T x S matrices.
"""

import math

import torch

WIDE = torch.float64


def frequencies(p, dim, length):
    """The scalings of docs/positions.md: (θ'_j of every pair, temperature)."""
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
    if kind in ("ntk_by_parts", "yarn"):
        theta = [_by_parts(p, t, j, dim, stretch) for j, t in enumerate(theta)]
    return theta, 0.1 * math.log(stretch) + 1 if kind == "yarn" else 1.0


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


def scores(settings, q_BTHD, k_BSGK, pos_BT, pos_BS, length):
    """Scores before visibility, (B, H, T, S), already divided by √D. Any float64 inputs, GQA by repetition."""
    heads, dim = q_BTHD.shape[2:]
    q = q_BTHD.transpose(1, 2)
    k = k_BSGK.transpose(1, 2).repeat_interleave(heads // k_BSGK.shape[2], 1)
    kind = settings["scheme"]
    if kind == "coca":
        s = _coca(settings, q, k, pos_BT, pos_BS, length)
    elif kind == "rope":
        s = _rope(settings, q, k, pos_BT, pos_BS, length)
    else:
        s = q @ k.mT
    s = s / math.sqrt(dim)
    if kind == "alibi":
        distance = (pos_BT[:, :, None] - pos_BS[:, None, :]).to(WIDE)
        s = s - torch.tensor(alibi_slopes(heads), dtype=WIDE)[:, None, None] * distance[:, None]
    return s


def alibi_slopes(heads):
    """ALiBi: the interleaving of the ALiBi paper for other head counts."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-4 * h / power) for h in range(1, 2 * power, 2)][: heads - power]


def _phase(settings, pos, width, length):
    theta, temperature = frequencies(settings["frequencies"], width, length)
    angle = pos.to(WIDE)[:, None, :, None] * torch.tensor(theta, dtype=WIDE)
    return angle, temperature


def _pairs(x):
    half = x.shape[-1] // 2
    return torch.complex(x[..., :half], x[..., half:])


def _rope(settings, q, k, pos_q, pos_k, length):
    width = round(q.shape[-1] * settings["rotary_pct"])
    angle_q, temperature = _phase(settings, pos_q, width, length)
    angle_k, _ = _phase(settings, pos_k, width, length)
    q_turned = _pairs(q[..., :width]) * torch.polar(torch.ones_like(angle_q), angle_q)
    k_turned = _pairs(k[..., :width]) * torch.polar(torch.ones_like(angle_k), angle_k)
    rest = q[..., width:] @ k[..., width:].mT
    return ((q_turned @ k_turned.mH).real + rest) * temperature**2


def _coca(settings, q, k, pos_q, pos_k, length):
    if settings["t_width"] == "full_mean":
        k = (k[..., : k.shape[-1] // 2] + k[..., k.shape[-1] // 2 :]) / 2
    t = k.clamp(min=0)
    angle_q, temperature = _phase(settings, pos_q, q.shape[-1], length)
    angle_k, _ = _phase(settings, pos_k, q.shape[-1], length)
    pairs = _pairs(q)
    if settings["variant"] == "strict":
        turned = torch.cos(angle_q[..., :, None, :] - angle_k[..., None, :, :])
        return torch.einsum("bhtj,bhsj,bztsj->bhts", pairs.abs() ** 2, t, turned) * temperature**2
    q_turned = pairs * torch.polar(torch.ones_like(angle_q), angle_q)
    t_turned = torch.complex(t, t) * torch.polar(torch.ones_like(angle_k), angle_k)
    real = torch.einsum("bhtj,bhtj,bhsj->bhts", q_turned.real, pairs.real, t_turned.real)
    imag = torch.einsum("bhtj,bhtj,bhsj->bhts", q_turned.imag, pairs.imag, t_turned.imag)
    return (real + imag) * temperature**2


def attend(scores_BHTS, v_BSGD, seen_TS):
    """Softmax over the visible keys, (B, T, H, D)."""
    v = v_BSGD.transpose(1, 2).repeat_interleave(scores_BHTS.shape[1] // v_BSGD.shape[2], 1)
    return (scores_BHTS.masked_fill(~seen_TS, -math.inf).softmax(-1) @ v).transpose(1, 2)
