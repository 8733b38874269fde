"""Golden scores of the schemes with an exponent, a bias, or vectors of their own, in 40-digit arithmetic.

Written from the papers with mpmath and plain integers; imports nothing of coca_train. Run it to remake
tests/golden/terms.json: `python tests/golden/terms.py`.

XPos arXiv 2212.10554, T5 1910.10683, KERPLE 2205.09921, Sandwich 2212.10356, Shaw 1803.02155,
Transformer-XL 1901.02860, TUPE 2006.15595, DeBERTa 2006.03654, sinusoids 1706.03762.

Every given number is a whole number of eighths, so every dtype holds it exactly. Head h of H reads
key head h // (H / G), as grouped queries do.
"""

import json
import re
from pathlib import Path

from mpmath import cos, exp, fdot, log, mp, mpf, sin, sqrt

mp.dps = 40
PLACES = [(0, 0), (1, 0), (7, 3), (33, 32), (60, 1), (130, 2), (1000, 993)]
SHAPE = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "d_model": 6}


def eighths(seed, rows, columns):
    """A matrix of eighths between -15/8 and 15/8 without visible order; neighbours differ."""
    return [
        [((7 * i * i + 11 * j * j + 5 * i * j + 3 * i + 13 * seed + 2) % 31 - 15) / 8 for j in range(columns)]
        for i in range(rows)
    ]


def case(scheme, settings, parameters, score, shape=SHAPE, places=PLACES, **given):
    """One scheme: everything a test must put in, and the score of each head at each place (m, n)."""
    q = given.pop("q", eighths(1, shape["n_heads"], shape["head_dim"]))
    k = given.pop("k", eighths(2, shape["n_kv_heads"], shape["head_dim"]))
    group = shape["n_heads"] // shape["n_kv_heads"]
    scores = [[number(score(h, q[h], k[h // group], m, n)) for m, n in places] for h in range(shape["n_heads"])]
    fields = {"settings": {"scheme": scheme, **settings}, "shape": shape, "parameters": parameters, "q": q, "k": k}
    return {**fields, "places": places, "scores": scores, **given}


def scaled(q, k, width=4):
    return fdot(q, k) / sqrt(mpf(width))


def rows_of_head(matrix, h, width):
    """The rows of a (heads * width, C) matrix that make head h."""
    return matrix[h * width : (h + 1) * width]


def times(matrix, vector):
    """Matrix · vector, in exact terms of 40 digits."""
    return [fdot(row, vector) for row in matrix]


def sinusoid(position, width):
    """Vaswani et al., section 3.5: sines of all frequencies, then their cosines."""
    angle = [position / mpf(10000) ** (mpf(2 * i) / width) for i in range(width // 2)]
    return [sin(a) for a in angle] + [cos(a) for a in angle]


def t5_bucket(r, n_buckets, max_distance):
    """T5's causal bucket: half of them exact, the others even in log r. Floor of
    log(r/e)/log(d/e)·(n-e) without a logarithm: count the i with (r/e)^(n-e) >= (d/e)^i."""
    exact = n_buckets // 2
    if r < exact:
        return r
    power = n_buckets - exact
    above = sum(r**power * exact**i >= max_distance**i * exact**power for i in range(1, power))
    return exact + above


def xpos():
    """XPos: each pair's share of q·k turned by (m-n)θ and shrunk by ζ^((m-n)/512)."""
    q, k = eighths(3, 1, 8), eighths(4, 1, 8)
    gamma = mpf(4) / 10

    def score(h, q, k, m, n):
        total = mpf(0)
        for j in range(4):
            angle = (m - n) * mpf(10000) ** (-mpf(2 * j) / 8)
            zeta = (mpf(2 * j) / 8 + gamma) / (1 + gamma)
            # (R_m q)·(R_n k) of one pair (a, b) at relative angle, spelled out in real numbers
            along = q[j] * k[j] + q[j + 4] * k[j + 4]
            across = q[j] * k[j + 4] - q[j + 4] * k[j]
            total += (along * cos(angle) + across * sin(angle)) * exp(log(zeta) * (m - n) / 512)
        return total / sqrt(mpf(8))

    settings = {
        "gamma": 0.4,
        "scale_base": 512.0,
        "rotary_pct": 1.0,
        "rope_scaling": {"name": "plain", "theta": 10000.0},
    }
    shape = {"n_heads": 1, "n_kv_heads": 1, "head_dim": 8, "d_model": 6}
    return case("xpos", settings, {}, score, shape, [*PLACES, (513, 1), (1500, 0)], q=q, k=k)


def t5():
    table = eighths(5, 8, 4)
    fields = {"n_buckets": 8, "max_distance": 64}  # bounds at 8, 16, 32: a logarithm in floating point may miss them
    return case(
        "t5",
        fields,
        {"table": table},
        lambda h, q, k, m, n: scaled(q, k) + mpf(table[t5_bucket(m - n, **fields)][h]),
        places=[*PLACES, (8, 0), (17, 1), (40, 8), (31, 0), (64, 0)],
    )


def kerple_log():
    """KERPLE, the logarithmic kernel; r1 and r2 below 0.01 count as 0.01."""
    r1, r2 = [0.25, 1.5, -1.0, 2.0], [1.0, 0.125, 0.5, -0.25]

    def score(h, q, k, m, n):
        a, b = (max(mpf(x[h]), mpf(1) / 100) for x in (r1, r2))
        return scaled(q, k) - a * log(1 + b * (m - n))

    return case("kerple_log", {}, {"r1": r1, "r2": r2}, score)


def kerple_power():
    """KERPLE, the power kernel; r1 and r2 below 0.01 count as 0.01, r2 above 2 as 2."""
    r1, r2 = [0.25, 0.125, -1.0, 0.5], [1.0, 2.5, 0.5, -0.25]

    def score(h, q, k, m, n):
        a, b = (max(mpf(x[h]), mpf(1) / 100) for x in (r1, r2))
        return scaled(q, k) - (a * exp(min(b, 2) * log(m - n)) if m > n else 0)

    return case("kerple_power", {}, {"r1": r1, "r2": r2}, score)


def sandwich():
    """Sandwich: p_m · p_n of the sinusoids, divided by 8h/H. Known up to a constant of each head."""

    def score(h, q, k, m, n):
        near = fdot(sinusoid(m, 128), sinusoid(n, 128))
        assert abs(near - sum(sinusoid(m - n, 128)[64:])) < mpf(10) ** -35
        return scaled(q, k) + near / (8 * mpf(h + 1) / 4)

    return case("sandwich", {"d_bar": 128}, {}, score, up_to_a_constant=True)


def shaw():
    """Shaw et al. Eq. 3 and 4, causal half: p^K inside the √D; and the values of a whole small attention."""
    keys, values = eighths(6, 4, 4), eighths(7, 4, 4)

    def clip(m, n):
        return min(m - n, 3)

    def score(h, q, k, m, n):
        return scaled(q, [mpf(a) + mpf(b) for a, b in zip(k, keys[clip(m, n)], strict=True)])

    record = case("shaw", {"max_distance": 3}, {"keys": keys, "values": values}, score)
    queries, all_keys, all_values = (eighths(seed, 6, 4) for seed in (8, 9, 10))
    outputs = []
    for m in range(6):
        weights = [exp(score(0, queries[m], all_keys[n], m, n)) for n in range(m + 1)]
        rows = [[mpf(a) + mpf(b) for a, b in zip(all_values[n], values[clip(m, n)], strict=True)] for n in range(m + 1)]
        outputs.append([number(fdot(weights, column) / sum(weights)) for column in zip(*rows, strict=True)])
    return record | {"sequence": {"q": queries, "k": all_keys, "v": all_values, "outputs": outputs}}


def transformer_xl():
    """Transformer-XL section 3.3: terms a to d, each written out."""
    u, v, w_r = eighths(11, 4, 4), eighths(12, 4, 4), eighths(13, 16, 6)

    def score(h, q, k, m, n):
        r = times(rows_of_head(w_r, h, 4), sinusoid(m - n, 6))
        return (fdot(q, k) + fdot(q, r) + fdot(u[h], k) + fdot(v[h], r)) / 2

    return case("transformer_xl", {"memory_len": 0}, {"u": u, "v": v, "w_r": w_r}, score)


def tupe():
    """TUPE-R: contents and positions each by its own projections, both over √(2D), and a T5 bias."""
    p, u_q, u_k, table = eighths(14, 24, 6), eighths(15, 16, 6), eighths(16, 8, 6), eighths(17, 8, 4)
    fields = {"n_buckets": 8, "max_distance": 16}

    def score(h, q, k, m, n):
        query, key = times(rows_of_head(u_q, h, 4), p[m]), times(rows_of_head(u_k, h // 2, 4), p[n])
        return (fdot(q, k) + fdot(query, key)) / sqrt(mpf(8)) + table[t5_bucket(m - n, **fields)][h]

    parameters = {"p": p, "u_q": u_q, "u_k": u_k, "table": table}
    places = [(0, 0), (1, 0), (7, 3), (23, 22), (9, 5), (23, 1), (20, 4)]
    return case("tupe", {"max_len": 24, **fields}, parameters, score, places=places)


def disentangled():
    """DeBERTa Eq. 4 with the layer's own W_Q and W_K, one table for r >= 0, over √D."""
    p, w_q, w_k = eighths(18, 6, 6), eighths(19, 16, 6), eighths(20, 8, 6)

    def score(h, q, k, m, n):
        far = p[min(m - n, 5)]
        query, key = times(rows_of_head(w_q, h, 4), far), times(rows_of_head(w_k, h // 2, 4), far)
        return (fdot(q, k) + fdot(q, key) + fdot(query, k)) / 2

    return case("disentangled", {"max_distance": 5}, {"p": p}, score, w_q=w_q, w_k=w_k)


def embeddings():
    """What is added to the token embedding at a position."""
    table, places = eighths(21, 9, 6), [0, 1, 2, 33, 1000, 32767]
    rows = [[number(x) for x in sinusoid(place, 6)] for place in places]
    return {
        "learned": {"settings": {"scheme": "learned", "max_len": 9}, "table": table},
        "sinusoidal": {
            "settings": {"scheme": "sinusoidal", "theta": 10000.0, "scale": 1.0},
            "places": places,
            "values": rows,
        },
    }


def buckets():
    """T5's published sizes, sizes whose bounds are whole numbers (floating logarithms may miss those), an odd one."""
    distances = [*range(140), 200, 255, 256, 257, 511, 512, 513, 1023, 1024, 5000, 32767]
    sizes = [(32, 128), (8, 64), (16, 2048), (64, 1024), (7, 20), (4, 32)]
    rows = [[t5_bucket(r, n, far) for r in distances] for n, far in sizes]
    return {
        "distances": distances,
        "rows": [{"n_buckets": n, "max_distance": d, "buckets": row} for (n, d), row in zip(sizes, rows, strict=True)],
    }


def number(x):
    return float(mp.nstr(x, 20))


def golden():
    makers = (xpos, t5, kerple_log, kerple_power, sandwich, shaw, transformer_xl, tupe, disentangled)
    return {"cases": [make() for make in makers], "embeddings": embeddings(), "t5_buckets": buckets()}


def main():
    text = json.dumps(golden(), indent=1)
    one_line_a_row = re.sub(r"\[[^][{}]*\]", lambda row: " ".join(row.group().split()), text)
    Path(__file__).with_name("terms.json").write_text(one_line_a_row + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
