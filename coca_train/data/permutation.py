"""In which order the windows of a source are seen: a keyed permutation, computed, never stored.

An unbalanced Feistel network over a * b >= n places with cycle walking (Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002, sections 4 and 5): a bijection of 0 .. n-1 for every n, O(1) memory.
"""

import hashlib
import math
import struct
from collections.abc import Sequence

import numpy as np

MASK = (1 << 64) - 1
ROUND_KEYS = struct.Struct("<8Q")  # eight rounds


def mix(x: int) -> int:
    """64-bit finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


_30, _27, _31 = np.array([30, 27, 31], np.uint64)
_FIRST, _SECOND = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)


def mix_all(x: np.ndarray) -> np.ndarray:
    """`mix` of each element: uint64 to uint64."""
    x = (x ^ (x >> _30)) * _FIRST  # wraps, as & MASK does
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


class Permutation:
    """A bijection of 0 .. n-1 chosen by `key` (any text); `permutation(i)` takes about 10 microseconds."""

    def __init__(self, n: int, key: str) -> None:
        assert 0 < n < 1 << 62, n  # so that every number below fits 64 bits in permute_all
        self.n = n
        # a * b is the near-square grid that holds n places with fewer than a to spare, so walks are rare.
        self.a = math.isqrt(n - 1) + 1
        self.b = -(-n // self.a)
        material = hashlib.blake2b(key.encode(), digest_size=ROUND_KEYS.size, person=b"coca_train order").digest()
        self.round_keys = ROUND_KEYS.unpack(material)

    def _encrypt(self, x: int) -> int:
        """One pass over the a * b places: left in 0 .. a-1 and right in 0 .. b-1 take turns."""
        right, left = divmod(x, self.a)
        for r, key in enumerate(self.round_keys):
            if r % 2:
                right = (right + mix(left ^ key)) % self.b
            else:
                left = (left + mix(right ^ key)) % self.a
        return right * self.a + left

    def __call__(self, i: int) -> int:
        assert 0 <= i < self.n, (i, self.n)
        i = self._encrypt(i)
        while i >= self.n:  # a * b < n + a, so this is rare
            i = self._encrypt(i)
        return i


def permute(i: int, n: int, key: str) -> int:
    """Where place i of 0 .. n-1 goes under `key`."""
    return Permutation(n, key)(i)


def permute_all(permutations: Sequence[Permutation], which: np.ndarray, places: np.ndarray) -> np.ndarray:
    """permutations[which[s]](places[s]) for each s, all at once. which, places and the result: int64 of one length."""
    # Column by column for all samples still outside: after the first pass these are a handful (a * b < n + a).
    numbers = np.array([(p.n, p.a, p.b, *p.round_keys) for p in permutations], np.uint64)[which].T
    out, todo = places.astype(np.uint64), np.arange(len(places))
    while todo.size:
        n, a, b, *keys = numbers[:, todo]
        right, left = np.divmod(out[todo], a)
        for r, key in enumerate(keys):
            if r % 2:
                right = _add(right, mix_all(left ^ key) % b, b)
            else:
                left = _add(left, mix_all(right ^ key) % a, a)
        out[todo] = right * a + left
        todo = todo[out[todo] >= n]
    return out.astype(np.int64)


def _add(x: np.ndarray, y: np.ndarray, modulus: np.ndarray) -> np.ndarray:
    """(x + y) % modulus of uint64 below the modulus, without the slow division: below it, x + y - modulus wraps."""
    return np.minimum(x + y, x + y - modulus)
