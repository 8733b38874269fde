"""Golden numbers for frequencies, rope, coca and alibi: papers' formulas in 40-digit arithmetic.

Written from the papers with mpmath alone; imports nothing of coca_train. Run it to remake
tests/golden/positions.json: `python tests/golden/make.py`. The other schemes: terms.py; masks: patterns.py.

RoFormer arXiv 2104.09864, PI 2306.15595, YaRN 2309.00071, p-RoPE 2410.06205, LongRoPE 2402.13753, CoCA 2309.08646,
ALiBi 2108.12409, Llama 3 2407.21783 (its scaling is defined by Meta's released code alone: three ranges of wavelength).
"""

import json
from pathlib import Path

from mpmath import arg, ceil, conj, cos, expj, floor, log, mp, mpf, pi, re, sin, sqrt

mp.dps = 40


def theta_j(base, dim, j):
    """RoFormer Eq. 15."""
    return mpf(base) ** (-2 * mpf(j) / dim)


def gamma(turns, slow, fast):
    """YaRN Eq. 18."""
    if turns < slow:
        return mpf(0)
    if turns > fast:
        return mpf(1)
    return (turns - slow) / (mpf(fast) - slow)


def code_ramp(p, dim, j):
    """The YaRN authors' modeling code: share of interpolation of pair j."""

    def correction_dim(turns):
        return dim * log(mpf(p["original_seq_len"]) / (turns * 2 * pi)) / (2 * log(mpf(p["theta"])))

    low = max(floor(correction_dim(p["beta_fast"])), 0)
    high = min(ceil(correction_dim(p["beta_slow"])), dim - 1)
    if low == high:
        high += mpf("0.001")
    return min(max((j - low) / (high - low), mpf(0)), mpf(1))


def llama3(p, theta):
    """Meta's apply_scaling: short waves kept, long ones stretched, in between a mean weighted by L/wavelength."""
    wavelength, trained, low, high = 2 * pi / theta, p["original_seq_len"], p["low_freq_factor"], p["high_freq_factor"]
    if wavelength < trained / mpf(high):
        return theta
    if wavelength > trained / mpf(low):
        return theta / p["factor"]
    smooth = (trained / wavelength - low) / (mpf(high) - low)
    return (1 - smooth) * theta / p["factor"] + smooth * theta


def spectrum(p, dim, length):
    """(inverse frequencies, temperature) of every scaling in docs/positions.md."""
    kind, base, pairs = p["name"], p["theta"], range(dim // 2)
    plain = [theta_j(base, dim, j) for j in pairs]
    if kind.startswith("dynamic"):
        s = max(mpf(1), mpf(length) / p["original_seq_len"])
        if kind == "dynamic_ntk" and length > p["original_seq_len"]:
            s = mpf(p["alpha"]) * length / p["original_seq_len"] - (mpf(p["alpha"]) - 1)
        kind = kind.removeprefix("dynamic_")
    else:
        s = mpf(p.get("factor", 1))
    if kind == "plain":
        return plain, mpf(1)
    if kind == "linear":
        return [t / s for t in plain], mpf(1)
    if kind == "partial":
        return [t if j < floor(mpf(p["share"]) * dim / 2) else mpf(0) for j, t in enumerate(plain)], mpf(1)
    if kind == "longrope":
        factors = p["long_factor" if length > p["original_seq_len"] else "short_factor"]
        return [t / mpf(f) for t, f in zip(plain, factors, strict=True)], sqrt(1 + log(s) / log(p["original_seq_len"]))
    if kind == "llama3":
        return [llama3(p, t) for t in plain], mpf(1)
    if kind == "ntk":
        grown = mpf(base) * s ** (mpf(dim) / (dim - 2))
        return [theta_j(grown, dim, j) for j in pairs], mpf(1)
    if p["convention"] == "paper":
        keep = [gamma(p["original_seq_len"] * t / (2 * pi), p["beta_slow"], p["beta_fast"]) for t in plain]
    else:
        keep = [1 - code_ramp(p, dim, j) for j in pairs]
    mixed = [(1 - g) * t / s + g * t for g, t in zip(keep, plain, strict=True)]
    return mixed, (mpf("0.1") * log(s) + 1 if kind == "yarn" else mpf(1))


def ramp(name, length, convention, **extra):
    fields = {"theta": 10000.0, "original_seq_len": length, "beta_fast": 32.0, "beta_slow": 1.0}
    return {"name": name, **fields, "convention": convention, **extra}


def llama3_fields(theta, factor, trained, low=1.0, high=4.0):
    fields = {"theta": theta, "factor": factor, "original_seq_len": trained}
    return {"name": "llama3", **fields, "low_freq_factor": low, "high_freq_factor": high}


SPECTRA = [
    ({"name": "plain", "theta": 10000.0}, 64, 512),
    ({"name": "plain", "theta": 1000000.0}, 128, 16384),
    ({"name": "plain", "theta": 1000000.0}, 64, 131072),
    ({"name": "plain", "theta": 10000.0}, 16, 2048),
    (llama3_fields(500000.0, 8.0, 8192), 128, 131072),  # Llama 3.1
    (llama3_fields(500000.0, 32.0, 8192), 64, 131072),  # Llama 3.2
    (llama3_fields(10000.0, 4.0, 512), 64, 100),
    (llama3_fields(10000.0, 16.0, 2048, 2.0, 32.0), 16, 4096),
    ({"name": "linear", "theta": 10000.0, "factor": 16.0}, 128, 32768),
    ({"name": "ntk", "theta": 10000.0, "factor": 4.0}, 64, 2048),
    ({"name": "partial", "theta": 10000.0, "share": 0.75}, 64, 512),
    ({"name": "partial", "theta": 500000.0, "share": 0.25}, 16, 512),
    *[
        (
            {
                "name": "longrope",
                "theta": 10000.0,
                "factor": 32.0,
                "original_seq_len": 4096,
                "short_factor": [1 + j / 16 for j in range(16)],
                "long_factor": [1 + j * j / 8 for j in range(16)],
                "temperature": None,
            },
            32,
            length,
        )
        for length in (4096, 4097)
    ],
    ({"name": "dynamic_linear", "theta": 10000.0, "original_seq_len": 512}, 64, 300),
    ({"name": "dynamic_linear", "theta": 10000.0, "original_seq_len": 512}, 64, 1500),
    *[
        ({"name": "dynamic_ntk", "theta": 10000.0, "alpha": alpha, "original_seq_len": 512}, 64, length)
        for alpha in (1.0, 2.0, 4.0, 8.0)
        for length in (512, 513, 8192)
    ],
    *[
        (ramp(name, length, convention, factor=8.0), 64, 100)
        for name in ("ntk_by_parts", "yarn")
        for length in (4096, 131072)
        for convention in ("paper", "code")
    ],
    *[
        (ramp(name, 2048, convention), dim, length)
        for name in ("dynamic_ntk_by_parts", "dynamic_yarn")
        for convention in ("paper", "code")
        for dim, length in ((128, 2048), (64, 10000))
    ],
]

# Features in storage order: dimension j and j + 4 form pair j. Eighths, so every dtype holds them exactly.
Q = [n / 8 for n in (5, -12, 9, 3, 7, 2, -10, 14)]
K = [n / 8 for n in (-3, 8, 6, -11, 4, 13, -1, 2)]
T = [n / 8 for n in (6, -4, 11, 3)]  # one is negative: the ReLU must remove it
PLACES = [(0, 0), (1, 0), (7, 3), (33, 32), (60, 1), (1000, 993)]


def pairs_of(x):
    half = len(x) // 2
    return [complex(a, b) for a, b in zip(x[:half], x[half:], strict=True)]


def rope_score(m, n, freq, s):
    """RoFormer Eq. 12: Re Σ q_j conj(k_j) e^{i(m-n)θ_j}, times the squared temperature."""
    terms = zip(pairs_of(Q), pairs_of(K), freq, strict=True)
    return s**2 * sum(re(mp.mpmathify(q) * conj(mp.mpmathify(k)) * expj((m - n) * f)) for q, k, f in terms)


def strict_score(m, n, freq, s):
    """CoCA Eq. 18: Σ t_j |q_j|² cos((m-n)θ_j)."""
    terms = zip(pairs_of(Q), T, freq, strict=True)
    return s**2 * sum(max(mpf(t), 0) * mpf(abs(q.real) ** 2 + q.imag**2) * cos((m - n) * f) for q, t, f in terms)


def slack_score(m, n, freq, s):
    """CoCA Eq. 11 by its definition, and by the closed form in (m-n) and (m+n); both must agree."""
    direct = closed = mpf(0)
    for q, t, f in zip(pairs_of(Q), T, freq, strict=True):
        t, q = max(mpf(t), 0), mp.mpmathify(q)
        rq, rt = q * expj(m * f), mp.mpc(t, t) * expj(n * f)
        direct += rq.real * q.real * rt.real + rq.imag * q.imag * rt.imag
        two_phi, delta, total = 2 * arg(q), (m - n) * f, (m + n) * f
        near = (1 + sin(two_phi)) * cos(delta) + cos(two_phi) * sin(delta)
        far = (1 - sin(two_phi)) * cos(total) - cos(two_phi) * sin(total)
        closed += t * abs(q) ** 2 * (near + far) / 2
    assert abs(direct - closed) < mpf(10) ** -35
    return s**2 * direct


def alibi_slopes(heads):
    """ALiBi: 2^(-8h/H); else those of the lower power of two and every second of the next one."""
    if heads & (heads - 1) == 0:
        return [mpf(2) ** (mpf(-8 * h) / heads) for h in range(1, heads + 1)]
    below = 2 ** (heads.bit_length() - 1)
    return alibi_slopes(below) + alibi_slopes(2 * below)[0::2][: heads - below]


def number(x):
    return float(mp.nstr(x, 20))


def golden():
    spectra = []
    for settings, dim, length in SPECTRA:
        freq, temperature = spectrum(settings, dim, length)
        row = {"settings": settings, "rotary_dim": dim, "length": length}
        spectra.append(row | {"inv_freq": [number(f) for f in freq], "temperature": number(temperature)})
    scores = []
    kinds = {"rope": rope_score, "strict": strict_score, "slack": slack_score}
    for settings in ({"name": "plain", "theta": 10000.0}, ramp("yarn", 4096, "paper", factor=8.0)):
        freq, temperature = spectrum(settings, 8, 0)
        for kind, formula in kinds.items():
            values = [number(formula(m, n, freq, temperature) / sqrt(8)) for m, n in PLACES]
            scores.append({"kind": kind, "rope_scaling": settings, "values": values})
    return {
        "spectra": spectra,
        "vectors": {"q": Q, "k": K, "t": T, "places": PLACES},
        "scores": scores,
        "alibi_slopes": {str(h): [number(s) for s in alibi_slopes(h)] for h in (1, 3, 6, 8, 12, 16, 20, 40)},
    }


def main():
    target = Path(__file__).with_name("positions.json")
    target.write_text(json.dumps(golden(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
