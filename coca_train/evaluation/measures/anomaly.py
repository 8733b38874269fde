"""The rotational anomaly: the angle at which a query and a key begin, and what it does to a rotary score (CoCA, arXiv
2309.08646, section 2).

Pair j of a head is a vector of the plane: q_j of the query at m, k_j of the key at n, before any rotation, as complex
numbers. Its initial angle Θ_j = arg(q_j conj(k_j)) in [0, 2π) is measured counter-clockwise from k_j to q_j. With the
rotation the pair adds |q_j||k_j| cos(Θ_j + (m - n) θ_j) to the score (Eq. 3). Where attention is causal m > n.

A key that comes later, m < n, is the mirror image of an earlier one: cos(Θ_j + (m - n) θ_j) = cos(2π - Θ_j +
(n - m) θ_j). So with 0 < Θ_j < π it is anomalous (the paper's scenario a, up to τ_j = Θ_j / θ_j), else not (c); below,
Θ_j is that of the mirror image and m - n the distance. Models that read in both directions have all four scenarios.

* Anomalous: Θ_j > π (the paper's scenario d). The score rises at first although the distance grows.
* Abnormal region: the first of Eq. 4's intervals, -(2π - Θ_j) <= θ < 0 with θ = Θ_j + (m - n) θ_j - 2π of an anomalous
  pair: that is m - n < τ_j = (2π - Θ_j) / θ_j. It is empty for Θ_j <= π.
* Borders that a pair has crossed at its distance, θ read as above for anomalous pairs and without the -2π for others:
  k_j once, when an anomalous pair leaves the abnormal region (θ >= 0); -q_j at θ = π, 3π, 5π ...; q_j at θ = 2π, 4π ...
  (Eq. 4, figure 4). The last two come with the period 2π whatever Θ_j is; the first depends on the pair.
* Different borders: -q_j and q_j are the same two for every pair of features, but k_j is one of its own for each pair
  of every head of every layer, d/2 * h * L of them in the paper's letters (section 2.3). Counted are those that some
  drawn pair of tokens begins before, that is with Θ_j > π: none where keys are collinear with their queries.

An angle less than ROUNDING below 2π counts as 0: collinear vectors differ from 0 by rounding only. A pair with a zero
vector has no angle and is left out of every share.

Of a model these angles are sampled, on real text, in every layer and head. A text of T tokens is read once, dynamic
frequencies at l = T. Of its T (T - 1) / 2 pairs of a query at m and an earlier key at n, `n_pairs` are drawn with
replacement, each as likely as any other: two different places, seeded by the document, so that every model and every
variant is asked about the same places; in both directions, of the T (T - 1) pairs. All shares are of drawn pairs.

The vectors are those the scheme rotates:

rope, xpos   q and k as projected. With grouped keys a key meets every query of its group.
coca         q_m, and k_n = q_m ∘ (t_n, t_n) with t_n >= 0 as the scheme has it after its ReLU (Eq. 6 to 8). Where t_n
             is 0 there is no key, hence no angle.

Shape legend: B texts, T positions, P sampled pairs of tokens, H query heads, G key heads, J pairs of features, N
layers, C d_model.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from coca_train.evaluation.measures.perplexity import evaluating
from coca_train.models.init import seed_of
from coca_train.models.layers import Attention
from coca_train.models.transformer import Transformer
from coca_train.positions import scaling_of
from coca_train.positions.rope_scaling import base_inv_freq
from coca_train.positions.rotary import QueryKeyTables, Rotary

BORDERS = ("k", "-q", "q")
ROUNDING = 1e-6  # [radians]
TURN = 2 * math.pi

Sums = dict[str, np.ndarray]


def initial_angle(q_PHJ: Tensor, k_PHJ: Tensor) -> Tensor:
    """Return Θ in [0, 2π), float64, from complex q and k; NaN where one of them is 0."""
    angle_PHJ = torch.angle(q_PHJ * k_PHJ.conj()) % TURN
    angle_PHJ = torch.where(angle_PHJ > TURN - ROUNDING, 0.0, angle_PHJ)
    return torch.where((q_PHJ.abs() > 0) & (k_PHJ.abs() > 0), angle_PHJ, torch.nan)


def borders_crossed(angle: Tensor, turned: Tensor) -> Tensor:
    """Return how often each of BORDERS was crossed, (3, ...): Θ, and (m - n) θ_j >= 0 [radians]."""
    anomalous = angle > math.pi
    theta = angle + turned - TURN * anomalous
    by_key = (anomalous & (theta >= 0)).double()
    by_minus_query = ((theta + math.pi) / TURN).floor().clamp(min=0)
    by_query = (theta / TURN).floor().clamp(min=0)
    return torch.stack((by_key, by_minus_query, by_query))


def tally(q_PHJ: Tensor, k_PHJ: Tensor, distance_P: Tensor, theta_J: Tensor) -> Sums:
    """Return the counts of one layer over sampled pairs of tokens: `known` and `anomalous` (H, J), `abnormal`, and
    `borders` (3,). distance_P: m - n [tokens]; negative of keys that come later. theta_J: radians per token,
    float64."""
    later_P11 = (distance_P < 0)[:, None, None]
    angle_PHJ = initial_angle(*(torch.where(later_P11, each.conj(), each) for each in (q_PHJ, k_PHJ)))
    anomalous_PHJ = angle_PHJ > math.pi
    turned_PHJ = (distance_P.abs()[:, None, None] * theta_J).expand_as(angle_PHJ)
    crossed_3PHJ = borders_crossed(angle_PHJ, turned_PHJ).nan_to_num(0.0)
    sums = {
        "known": (~angle_PHJ.isnan()).sum(0),
        "anomalous": anomalous_PHJ.sum(0),
        "abnormal": (anomalous_PHJ & (crossed_3PHJ[0] == 0)).sum(),
        "borders": crossed_3PHJ.sum((1, 2, 3)).long(),
    }
    return {name: values.cpu().numpy() for name, values in sums.items()}


def add(parts: Iterable[Sums]) -> Sums:
    """Return the sums of several parts as one; they hold the same names."""
    first, *others = parts
    return {name: sum((part[name] for part in others), values) for name, values in first.items()}


def key_borders(anomalous_NHJ: ArrayLike) -> tuple[int, int]:
    """Count the different borders of k, and how many there can be, from how many drawn pairs of tokens begin
    anomalous."""
    counts_NHJ = np.asarray(anomalous_NHJ)
    return int((counts_NHJ > 0).sum()), counts_NHJ.size


BY_LAYER = ("known", "anomalous")  # kept apart; the rest is summed over the layers


def drawn_pairs(n_tokens: int, n_pairs: int, seed: int, bidirectional: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Draw places of queries and of keys before them, or anywhere else where attention is bidirectional, (P,) each:
    uniform over all such pairs, with replacement."""
    generator = np.random.default_rng(seed)
    # The second place is a shift that is never 0: uniform over ordered pairs, hence over unordered ones.
    one_P = generator.integers(0, n_tokens, n_pairs)
    other_P = (one_P + generator.integers(1, n_tokens, n_pairs)) % n_tokens
    return (one_P, other_P) if bidirectional else (np.maximum(one_P, other_P), np.minimum(one_P, other_P))


def anomaly_sums(
    model: Transformer, texts: Sequence[np.ndarray], keys: Sequence[object], *, n_pairs: int, seed: int
) -> list[Sums]:
    """Return the sums of each of these texts of one length, read together. keys: names each text, for its seed.

    The arrays of `tally`; known and anomalous with the layers in front.
    """
    device, n_tokens = next(model.parameters()).device, len(texts[0])
    seeds = [seed_of(seed, "anomaly", key, n_tokens) for key in keys]
    places = [drawn_pairs(n_tokens, n_pairs, each, model.bidirectional) for each in seeds]
    m_BP, n_BP = (torch.from_numpy(np.stack(part)).to(device) for part in zip(*places, strict=True))
    tokens_BT = torch.from_numpy(np.stack(texts).astype(np.int64)).to(device)
    by_layer: list[list[Sums]] = []

    def look(attention: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(attention, Attention) and isinstance(model.position, Rotary)
        by_layer.append(_layer(model.position, attention, given[0], m_BP, n_BP))

    with evaluating(model), ExitStack() as hooks:
        for block in model.blocks:
            hooks.callback(block.get_submodule("attention").register_forward_pre_hook(look).remove)
        model.hidden(tokens_BT, length=n_tokens)
    # Counts of heads cannot be added over layers: head 3 of one layer is nothing to head 3 of the next.
    return [
        add(layers) | {name: np.stack([layer[name] for layer in layers]) for name in BY_LAYER}
        for layers in zip(*by_layer, strict=True)
    ]


def _layer(position: Rotary, attention: Attention, x_BTC: Tensor, m_BP: Tensor, n_BP: Tensor) -> list[Sums]:
    """Return one layer's sums of each text; text by text, since a text's pairs alone are P·H·J complex numbers."""
    theta_J = inv_freq(position, x_BTC.shape[1]).to(x_BTC.device)
    parts = []
    for x_TC, m_P, n_P in zip(x_BTC, m_BP, n_BP, strict=True):
        q_PHJ, k_PHJ = vectors(position, attention.project_q(x_TC[m_P]), attention.project_k(x_TC[n_P]))
        parts.append(tally(q_PHJ, k_PHJ, m_P - n_P, theta_J))
    return parts


def inv_freq(position: Rotary, length: int) -> Tensor:
    """Return θ_J [radians per token] at this length, float64, of a scheme that rotates."""
    return position.rope_scaling(length).inv_freq_J.detach().double()


def slowed(position: Rotary, length: int) -> list[float]:
    """Return by how much each pair's abnormal region is longer than with unscaled frequencies of the same base: τ_j /
    τ_j(base) = θ_j(base) / θ_j.

    Position interpolation by s: s for every pair. NTK-aware scaling by s: s^(2j/(D-2)), which the paper writes
    λ^(2j/d) (its section 2.3).
    """
    scaling = scaling_of(position.settings)
    assert scaling is not None, "every scheme that rotates has one"
    base_J = base_inv_freq(scaling.theta, position.rotary_dim)
    return (base_J / inv_freq(position, length).cpu()).tolist()


def vectors(position: Rotary, q_PHD: Tensor, k_PGK: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys before rotation as complex128 (P, H, J), each query head with its key."""
    q_PHJ = _pairs(q_PHD, position.rotary_dim)
    repeat = q_PHD.shape[1] // k_PGK.shape[1]
    if position.settings.scheme != "coca":
        return q_PHJ, _pairs(k_PGK, position.rotary_dim).repeat_interleave(repeat, 1)
    start_1P = torch.zeros(1, len(k_PGK), dtype=torch.long, device=k_PGK.device)
    tables = cast(QueryKeyTables, position(start_1P, start_1P, 1))
    _, key_1PGD = position.rotate(q_PHD[None], k_PGK[None], tables)
    t_PGJ = key_1PGD[0, ..., : position.rotary_dim // 2].double()  # a key at position 0 is t, as it is or twice
    return q_PHJ, q_PHJ * t_PGJ.repeat_interleave(repeat, 1)


def _pairs(x_PHD: Tensor, width: int) -> Tensor:
    """Return the first `width` features, half split, as complex numbers."""
    return torch.complex(*x_PHD[..., :width].double().chunk(2, -1))
