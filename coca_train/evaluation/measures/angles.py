"""The angle at which a query and a key begin, and what it does to a rotary score (CoCA, arXiv 2309.08646, section 2).

Pair j of a head is a vector of the plane: q_j of the query at m, k_j of the key at n, before any rotation, as complex
numbers. Its initial angle Θ_j = arg(q_j conj(k_j)) in [0, 2π) is measured counter-clockwise from k_j to q_j. With the
rotation the pair adds |q_j||k_j| cos(Θ_j + (m - n) θ_j) to the score (Eq. 3). Only m > n occurs here (causal).

* Anomalous: Θ_j > π (the paper's scenario d). The score rises at first although the distance grows.
* Abnormal region: the first of Eq. 4's intervals, -(2π - Θ_j) <= θ < 0 with θ = Θ_j + (m - n) θ_j - 2π of an anomalous
  pair: that is m - n < τ_j = (2π - Θ_j) / θ_j. It is empty for Θ_j <= π.
* Borders that a pair has crossed at its distance, θ read as above for anomalous pairs and without the -2π for others:
  k_j once, when an anomalous pair leaves the abnormal region (θ >= 0); -q_j at θ = π, 3π, 5π ...; q_j at θ = 2π, 4π ...
  (Eq. 4, figure 4). The last two come with the period 2π whatever Θ_j is; the first depends on the pair.

An angle less than ROUNDING below 2π counts as 0: collinear vectors differ from 0 by rounding only. A pair with a zero
vector has no angle and is left out of every share.

Shape legend: P sampled pairs of tokens, H query heads, J pairs of features, N layers.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

BINS = 36  # of ten degrees
BORDERS = ("k", "-q", "q")
ROUNDING = 1e-6  # [radians]
TURN = 2 * math.pi

Sums = dict[str, np.ndarray]


def initial_angle(q_PHJ: Tensor, k_PHJ: Tensor) -> Tensor:
    """Θ in [0, 2π), float64, from complex q and k; NaN where one of them is 0."""
    angle_PHJ = torch.angle(q_PHJ * k_PHJ.conj()) % TURN
    angle_PHJ = torch.where(angle_PHJ > TURN - ROUNDING, 0.0, angle_PHJ)
    return torch.where((q_PHJ.abs() > 0) & (k_PHJ.abs() > 0), angle_PHJ, torch.nan)


def borders_crossed(angle: Tensor, turned: Tensor) -> Tensor:
    """How often each of BORDERS was crossed, (3, ...): Θ, and (m - n) θ_j >= 0 [radians]."""
    anomalous = angle > math.pi
    theta = angle + turned - TURN * anomalous
    by_key = (anomalous & (theta >= 0)).double()
    by_minus_query = ((theta + math.pi) / TURN).floor().clamp(min=0)
    by_query = (theta / TURN).floor().clamp(min=0)
    return torch.stack((by_key, by_minus_query, by_query))


def tally(q_PHJ: Tensor, k_PHJ: Tensor, distance_P: Tensor, theta_J: Tensor, placed_PHJ: Tensor | None = None) -> Sums:
    """Sums of one layer over sampled pairs of tokens. distance_P: m - n [tokens]. theta_J: radians per token, float64.

    placed_PHJ: angles where they are not those of the vectors before rotation (see anomaly.py).
    Counts are int64; weight (H, 2) and reach (J,) are float64.
    """
    angle_PHJ = initial_angle(q_PHJ, k_PHJ)
    known_PHJ = ~angle_PHJ.isnan()
    anomalous_PHJ = angle_PHJ > math.pi
    turned_PHJ = (distance_P[:, None, None] * theta_J).expand_as(angle_PHJ)
    crossed_3PHJ = borders_crossed(angle_PHJ, turned_PHJ).nan_to_num(0.0)
    reach_PHJ = torch.where(anomalous_PHJ, (TURN - angle_PHJ) / theta_J, 0.0)
    weight_PHJ = (q_PHJ.abs() * k_PHJ.abs()).double()
    bin_PHJ = (angle_PHJ / TURN * BINS).nan_to_num(0.0).long().clamp(max=BINS - 1)
    one_hot_HJb = torch.zeros(*angle_PHJ.shape[1:], BINS, dtype=torch.long, device=angle_PHJ.device)
    one_hot_HJb.scatter_add_(2, bin_PHJ.permute(1, 2, 0), known_PHJ.long().permute(1, 2, 0))
    placed = anomalous_PHJ if placed_PHJ is None else (placed_PHJ > math.pi)
    sums = {
        "by_head": one_hot_HJb.sum(1),
        "by_pair": one_hot_HJb.sum(0),
        "known": known_PHJ.sum(0),
        "anomalous": anomalous_PHJ.sum(0),
        "placed": placed.sum(),
        "drawn": torch.tensor(angle_PHJ.numel()),
        "weight": torch.stack(((weight_PHJ * anomalous_PHJ).sum((0, 2)), weight_PHJ.sum((0, 2))), -1),
        "abnormal": (anomalous_PHJ & (crossed_3PHJ[0] == 0)).sum((0, 1)),
        "borders": crossed_3PHJ.sum((1, 2)).long(),
        "reach": reach_PHJ.sum((0, 1)),
    }
    return {name: values.cpu().numpy() for name, values in sums.items()}


def add(parts: Iterable[Sums]) -> Sums:
    """The sums of several parts as one; they hold the same names."""
    first, *others = parts
    return {name: sum((part[name] for part in others), values) for name, values in first.items()}


def slowed(theta_J: Tensor, base_J: Tensor) -> Tensor:
    """By how much each pair's abnormal region is longer under other frequencies: τ_j / τ_j(base) = θ_j(base) / θ_j.

    Position interpolation by s: s for every pair. NTK-aware scaling by s: s^(2j/(D-2)), which the paper writes
    λ^(2j/d) (its section 2.3).
    """
    return base_J / theta_J
