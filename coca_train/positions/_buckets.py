"""Distance buckets of T5 (Raffel et al., arXiv 1910.10683, section 2.1).

The first E = n_buckets // 2 distances have a bucket each. The other n_buckets - E buckets divide E … max_distance
into equal steps of log r; all distances from max_distance on share the last one:

    bucket(r) = r                                                       for r < E
    bucket(r) = E + floor(log(r / E) / log(max_distance / E) · (n_buckets - E))   up to n_buckets - 1

Where keys come later too, half of n_buckets serve each side in this way: those of r < 0 are n_buckets / 2 + bucket(-r).
"""

import torch
from torch import Tensor

from coca_train.positions.base import Problem


def buckets(n_buckets: int, max_distance: int, bidirectional: bool = False) -> Tensor:
    """Return the bucket of every distance 0 … max_distance, or from -max_distance on, int64; larger distances share the
    last one.

    Computed in integers, so that no rounding of a logarithm moves a distance to the next bucket. Needs 2 <= n_buckets,
    of each side, and n_buckets // 2 < max_distance: see `bucket_problems`.
    """
    if bidirectional:
        of_side = buckets(n_buckets // 2, max_distance)
        return torch.cat((n_buckets // 2 + of_side[1:].flip(0), of_side))
    exact, bucket, rows = n_buckets // 2, 0, []
    assert 1 <= exact < max_distance, "Settings.problems refuses this"
    for distance in range(max_distance + 1):
        while bucket + 1 < n_buckets and _reaches(distance, bucket + 1, n_buckets, max_distance):
            bucket += 1
        rows.append(bucket)
    return torch.tensor(rows, device="cpu")  # also while a model is built on `meta`


def _reaches(distance: int, bucket: int, n_buckets: int, max_distance: int) -> bool:
    """Whether a distance lies in this bucket or beyond: (r / E)^steps >= (max_distance / E)^step, times E^steps."""
    exact = n_buckets // 2
    if bucket <= exact:
        return distance >= bucket
    step, steps = bucket - exact, n_buckets - exact
    return distance**steps >= max_distance**step * exact ** (steps - step)


def sides_problems(n_buckets: int, max_distance: int) -> list[Problem]:
    """Check that there are buckets for both sides."""
    if n_buckets % 2 or n_buckets < 4:
        text = f"{n_buckets} buckets cannot be halved: earlier and later keys have at least two each"
        return [("position.n_buckets", text, f"write position.n_buckets={max(4, n_buckets + 1)}")]
    return bucket_problems(n_buckets // 2, max_distance)


def bucket_problems(n_buckets: int, max_distance: int) -> list[Problem]:
    """Check for `Settings.problems` that max_distance leaves distances to the logarithmic buckets."""
    exact = n_buckets // 2
    if max_distance > exact:
        return []
    wrong = f"{max_distance} leaves no distance to buckets {exact} to {n_buckets - 1}"
    rule = f"each distance below n_buckets // 2 = {exact} has its own bucket, so max_distance must be greater than that"
    return [("position.max_distance", f"{wrong}; {rule}", f"position.max_distance={4 * n_buckets}")]
