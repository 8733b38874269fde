"""Golden masks and relative distances of every attention pattern: a reader that takes one token after another.

Each kind is a small machine that is fed tokens and keeps what its paper says is kept; plain integers, no
formula over pairs, nothing of coca_train. Run it to remake tests/golden/patterns.json:
`python tests/golden/patterns.py`.

Longformer arXiv 2004.05150, StreamingLLM 2309.17453, LM-Infinite 2308.16137, ReRoPE kexue.fm/archives/9708.
"""

import json
import re
from collections import deque
from pathlib import Path


class Causal:
    """Keeps everything."""

    def __init__(self):
        self.kept = []

    def read(self, token):
        """Takes a token; returns {token seen: distance at which it is seen}."""
        self.kept.append(token)
        return self.distances()

    def distances(self):
        return {token: age for age, token in enumerate(reversed(self.kept))}


class SlidingWindow(Causal):
    """The token itself and those before it, `window` in all."""

    def __init__(self, window):
        self.kept = deque(maxlen=window)


class Sinks(Causal):
    """A cache of the first `n_sink` tokens and a rolling `window`; a token's position is its slot in the cache."""

    def __init__(self, n_sink, window):
        super().__init__()
        self.n_sink, self.size = n_sink, n_sink + window

    def read(self, token):
        self.kept.append(token)
        if len(self.kept) > self.size:
            del self.kept[self.n_sink]  # evict the oldest that is no sink
        return self.distances()


class LambdaMask:
    """The first `n_global` tokens, seen in their places, and the last `window`; distances stop at `max_distance`."""

    def __init__(self, n_global, window, max_distance):
        self.n_global, self.limit = n_global, max_distance
        self.beginning, self.recent = {}, deque(maxlen=window)

    def read(self, token):
        """Every age grows by one step with each token until it reaches the limit."""
        for kept in (self.beginning, *self.recent):
            for old in kept:
                kept[old] = min(kept[old] + 1, self.limit)
        self.recent.append({token: 0})
        if len(self.beginning) < self.n_global:
            self.beginning[token] = 0
        seen = dict(self.beginning)
        for kept in self.recent:
            seen.update(kept)
        return seen


class ReRoPE(Causal):
    """Keeps everything; walking back from the newest token, the distance stops growing at `window`."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def distances(self):
        steps_of, steps = {}, 0
        for token in reversed(self.kept):
            steps_of[token] = steps
            if steps < self.window:
                steps += 1
        return steps_of


class Segments(Causal):
    """Forgets everything whenever `length` tokens have been read."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def read(self, token):
        if len(self.kept) == self.length:
            self.kept.clear()
        return super().read(token)


KINDS = {
    "causal": (Causal, {}),
    "sliding_window": (SlidingWindow, {"window": 4}),
    "sinks": (Sinks, {"n_sink": 2, "window": 4}),
    "lambda_mask": (LambdaMask, {"n_global": 3, "window": 5, "max_distance": 5}),
    "lambda_mask_far_limit": (LambdaMask, {"n_global": 3, "window": 4, "max_distance": 7}),
    "lambda_mask_near_limit": (LambdaMask, {"n_global": 2, "window": 6, "max_distance": 3}),
    "rerope": (ReRoPE, {"window": 5}),
    "segments": (Segments, {"length": 5}),
}
DOCUMENTS = {"one": [0] * 17, "three": [0] * 3 + [1] * 9 + [2] * 5}


def table(kind, fields, documents):
    """distance[m][n] at which token m sees token n, -1 where it does not. A new document is a new reader."""
    rows, reader, before = [], None, None
    for token, document in enumerate(documents):
        if document != before:
            reader, before = kind(**fields), document
        seen = reader.read(token)
        rows.append([seen.get(other, -1) for other in range(len(documents))])
    return rows


def golden():
    rows = []
    for name, (kind, fields) in KINDS.items():
        settings = {"name": name.split("_far")[0].split("_near")[0], **fields}
        for label, documents in DOCUMENTS.items():
            record = {"label": f"{name}-{label}", "settings": settings, "documents": documents}
            rows.append({**record, "distance": table(kind, fields, documents)})
    return rows


def main():
    text = json.dumps(golden(), indent=1)
    one_line_a_row = re.sub(r"\[[^][{}]*\]", lambda row: " ".join(row.group().split()), text)
    Path(__file__).with_name("attention_patterns.json").write_text(one_line_a_row + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
