"""In which order the windows of a source are seen: a keyed permutation, computed, never stored.

An unbalanced Feistel network over a * b >= n places with cycle walking (Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002, sections 4 and 5): a bijection of 0 .. n-1 for every n, O(1) memory.
"""

import hashlib
import math

MASK = (1 << 64) - 1
N_ROUNDS = 8


def mix(x: int) -> int:
    """64-bit finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


class Permutation:
    """A bijection of 0 .. n-1 chosen by `key` (any text); `permutation(i)` takes about 10 microseconds."""

    def __init__(self, n: int, key: str) -> None:
        assert n > 0, n
        self.n = n
        self._a = math.isqrt(n - 1) + 1
        self._b = -(-n // self._a)
        material = hashlib.blake2b(key.encode(), digest_size=64, person=b"coca_train order").digest()
        self._round_keys = [int.from_bytes(material[8 * r : 8 * r + 8], "little") for r in range(N_ROUNDS)]

    def _encrypt(self, x: int) -> int:
        """One pass over the a * b places: left in 0 .. a-1 and right in 0 .. b-1 take turns."""
        right, left = divmod(x, self._a)
        for r, key in enumerate(self._round_keys):
            if r % 2:
                right = (right + mix(left ^ key)) % self._b
            else:
                left = (left + mix(right ^ key)) % self._a
        return right * self._a + left

    def __call__(self, i: int) -> int:
        assert 0 <= i < self.n, (i, self.n)
        i = self._encrypt(i)
        while i >= self.n:  # a * b < n + a, so this is rare
            i = self._encrypt(i)
        return i


def permute(i: int, n: int, key: str) -> int:
    """Where place i of 0 .. n-1 goes under `key`."""
    return Permutation(n, key)(i)
