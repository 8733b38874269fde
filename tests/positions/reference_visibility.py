"""The definition of every visibility, pair by pair: which are seen, and at which positions (m, n) they stand.

Loops over integers; written from the spec's section 6 and nothing else.
"""

import torch


def places(settings, pos_BS, doc_BS=None):
    """(seen, m, n), each (B, S, S), for all tokens of a sequence. settings None: causal.

    Positions are those of the text, rising by one within a document. Where a visibility says at which distance
    a pair is seen but not where it stands, the key stands at 0.
    """
    settings = settings or {"name": "causal"}
    rows, size = pos_BS.shape
    seen = torch.zeros(rows, size, size, dtype=torch.bool)
    m_BTS, n_BTS = (torch.zeros(rows, size, size, dtype=torch.int64) for _ in range(2))
    for b in range(rows):
        for query in range(size):
            for key in range(query + 1):
                m, n = int(pos_BS[b, query]), int(pos_BS[b, key])
                found = None
                if doc_BS is None or doc_BS[b, query] == doc_BS[b, key]:
                    found = pair(settings, m, n)
                if found is not None:
                    seen[b, query, key] = True
                    m_BTS[b, query, key], n_BTS[b, query, key] = found
    return seen, m_BTS, n_BTS


def pair(p, m, n):
    """(m', n') of a pair with n <= m in one document, or None where it is not seen."""
    kind, r = p["name"], m - n
    if kind == "causal":
        return m, n
    if kind == "sliding_window":
        return (m, n) if r < p["window"] else None
    if kind == "sinks":
        if n >= p["n_sink"] and r >= p["window"]:
            return None
        lost = max(0, m + 1 - (p["n_sink"] + p["window"]))  # tokens evicted so far; those after the sinks move up
        return m - lost, n if n < p["n_sink"] else n - lost
    if kind == "lambda_mask":
        if n >= p["n_global"] and r >= p["window"]:
            return None
        return (m, n) if r < p["max_distance"] else (p["max_distance"], 0)
    if kind == "rerope":
        return (m, n) if r < p["window"] else (p["window"], 0)
    if kind == "segments":
        return (m % p["length"], n % p["length"]) if m // p["length"] == n // p["length"] else None
    raise ValueError(f"the reference has no visibility {kind!r}")
