"""The rotational anomaly of a model on real text: its initial angles, sampled, in every layer and head (see angles.py).

A text of T tokens is read once, dynamic frequencies at l = T. Of its T (T - 1) / 2 pairs of a query at m and an earlier
key at n, `n_pairs` are drawn with replacement, each as likely as any other: two different places, seeded by the
document, so that every model and every variant is asked about the same places. All shares are of drawn pairs.

The vectors are those the scheme rotates:

rope, xpos   q and k as projected. With grouped keys a key meets every query of its group.
coca         q_m, and k_n = q_m ∘ (t_n, t_n) with t_n >= 0 as the scheme has it after its ReLU (Eq. 6 to 8). Where t_n
             is 0 there is no key, hence no angle.

`placed` tallies the angle a pair really has: that between the two vectors whose inner product is the score's term, less
(m - n) θ_j. It is the initial angle for rope, xpos and strict CoCA. Slack CoCA rotates t_n instead of the key
(Eq. 11 without Eq. 12), so its term is that of R_m q_m and q_m ∘ R_n (t_n, t_n): this angle departs from 0 as n grows.

Shape legend: B texts, T positions, P sampled pairs, H query heads, G key heads, J pairs of features, C d_model.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coca_train.evaluation.measures.angles import Sums, add, initial_angle, slowed, tally
from coca_train.evaluation.measures.perplexity import evaluating
from coca_train.models.init import seed_of
from coca_train.positions.frequencies import _shared

BY_LAYER = ("by_head", "known", "anomalous", "weight")  # kept apart; the rest is summed over the layers


def problem(position: Any) -> str:
    """Why a scheme has no initial angles, in words; "" when it has."""
    if hasattr(position, "frequencies"):
        return ""
    return f"{position.settings.scheme} rotates nothing: there is no angle between query and key"


def drawn_pairs(n_tokens: int, n_pairs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of queries and of keys before them, (P,) each: uniform over all n < m < n_tokens, with replacement."""
    generator = np.random.default_rng(seed)
    # The second place is a shift that is never 0: uniform over ordered pairs, hence over unordered ones.
    one_P = generator.integers(0, n_tokens, n_pairs)
    other_P = (one_P + generator.integers(1, n_tokens, n_pairs)) % n_tokens
    return np.maximum(one_P, other_P), np.minimum(one_P, other_P)


def anomaly_sums(model: Any, texts: Sequence[np.ndarray], keys: Sequence[object], *, n_pairs: int, seed: int) -> Sums:
    """Sums over texts of one length, read together. keys: names each text, for its seed.

    The arrays of angles.tally; known, anomalous, by_head and weight with the layers in front.
    """
    device, n_tokens = next(model.parameters()).device, len(texts[0])
    places = [drawn_pairs(n_tokens, n_pairs, seed_of(seed, "anomaly", key, n_tokens)) for key in keys]
    m_BP, n_BP = (torch.from_numpy(np.stack(part)).to(device) for part in zip(*places, strict=True))
    tokens_BT = torch.from_numpy(np.stack(texts).astype(np.int64)).to(device)
    by_layer: list[Sums] = []

    def look(attention: Any, x_BTC: Tensor) -> None:
        by_layer.append(_layer(model.position, attention, x_BTC, m_BP, n_BP))

    with evaluating(model), _watched(model, look):
        model.hidden(tokens_BT, length=n_tokens)
    sums = add(by_layer)
    return sums | {name: np.stack([layer[name] for layer in by_layer]) for name in BY_LAYER}


@contextmanager
def _watched(model: Any, look: Callable[[Any, Tensor], None]) -> Iterator[None]:
    """Show `look` what goes into each layer's attention, layer by layer."""
    handles = [
        block.get_submodule("attention").register_forward_pre_hook(lambda module, given: look(module, given[0]))
        for block in model.blocks
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer(position: Any, attention: Any, x_BTC: Tensor, m_BP: Tensor, n_BP: Tensor) -> Sums:
    """One layer's sums; text by text, since a text's pairs alone are P·H·J complex numbers."""
    theta_J = frequencies(position, x_BTC.shape[1]).to(x_BTC.device)
    parts = []
    for x_TC, m_P, n_P in zip(x_BTC, m_BP, n_BP, strict=True):
        q_PHJ, k_PHJ = vectors(position, attention.project_q(x_TC[m_P]), attention.project_k(x_TC[n_P]))
        parts.append(tally(q_PHJ, k_PHJ, m_P - n_P, theta_J, placed_angle(position, q_PHJ, k_PHJ, n_P, theta_J)))
    return add(parts)


def frequencies(position: Any, length: int) -> Tensor:
    """θ_J [radians per token] at this length, float64, of a scheme that rotates."""
    return position.frequencies(length).inv_freq_J.detach().double()


def slowed_pairs(position: Any, length: int) -> list[float]:
    """angles.slowed against unscaled frequencies of the same base, by pair."""
    base_J = _shared.base_frequencies(position.settings.frequencies.theta, position.rotary_dim)
    return slowed(frequencies(position, length).cpu(), base_J).tolist()


def vectors(position: Any, q_PHD: Tensor, k_PGK: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys before rotation as complex128 (P, H, J), each query head with its key."""
    q_PHJ = _pairs(q_PHD, position.rotary_dim)
    repeat = q_PHD.shape[1] // k_PGK.shape[1]
    if position.settings.scheme != "coca":
        return q_PHJ, _pairs(k_PGK, position.rotary_dim).repeat_interleave(repeat, 1)
    start_1P = torch.zeros(1, len(k_PGK), dtype=torch.long, device=k_PGK.device)
    _, key_1PGD = position.rotate(q_PHD[None], k_PGK[None], position(start_1P, start_1P, 1))
    t_PGJ = key_1PGD[0, ..., : position.rotary_dim // 2].double()  # a key at position 0 is t, as it is or twice
    return q_PHJ, q_PHJ * t_PGJ.repeat_interleave(repeat, 1)


def placed_angle(position: Any, q_PHJ: Tensor, k_PHJ: Tensor, n_P: Tensor, theta_J: Tensor) -> Tensor | None:
    """The angle slack CoCA really has, see the module's text; None where that is the initial one."""
    if getattr(position.settings, "variant", "") != "slack":
        return None
    turn_P1J = (n_P[:, None] * theta_J)[:, None]
    cos, sin = turn_P1J.cos(), turn_P1J.sin()
    seen_PHJ = torch.complex(k_PHJ.real * (cos - sin), k_PHJ.imag * (cos + sin))
    return initial_angle(q_PHJ * torch.polar(torch.ones_like(turn_P1J), turn_P1J), seen_PHJ)


def _pairs(x_PHD: Tensor, width: int) -> Tensor:
    """The first `width` features, half split, as complex numbers."""
    return torch.complex(*x_PHD[..., :width].double().chunk(2, -1))
