"""Initial angles and rotary borders, against angles made by hand, plain loops and the schemes' own rotations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coca_train.evaluation.measures import anomaly
from tests.golden.methods import case
from tests.models.conftest import LLAMA, NEOX, PLAIN, build

DEGREES = math.pi / 180
ROPE = {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": PLAIN}
COCA = {"scheme": "coca", "rotary_pct": 1.0, "variant": "strict", "t_width": "half", "rope_scaling": PLAIN}
SLACK, FULL = COCA | {"variant": "slack"}, COCA | {"t_width": "full_mean"}


def pairs(*degrees, length=1.0):
    """One query head; pair of tokens p, pair of features 0 at this many degrees."""
    return torch.polar(torch.full((len(degrees),), length).double(), torch.tensor(degrees).double() * DEGREES)[
        :, None, None
    ]


def tally(q, k, distances, *theta):
    return anomaly.tally(q, k, torch.tensor(distances), torch.tensor(theta, dtype=torch.float64))


def test_the_angle_goes_counter_clockwise_from_key_to_query():
    q, k = pairs(100, 10, 350, 45, 0.0), pairs(10, 100, 20, 45, 180.0)
    angle = anomaly.initial_angle(q, 3 * k)[:, 0, 0] / DEGREES
    torch.testing.assert_close(angle, torch.tensor([90, 270, 330, 0, 180]).double())


def test_rounding_below_a_full_turn_is_collinear_and_zero_has_no_angle():
    angle = anomaly.initial_angle(
        pairs(-1e-5, -1e-3, 10, 10), pairs(0, 0, 0, 10) * torch.tensor([1, 1, 0, 1])[:, None, None]
    )
    assert angle[0] == 0
    assert angle[1] == pytest.approx(anomaly.TURN - 1e-3 * DEGREES)
    assert angle[2].isnan() and angle[3] == 0


def test_a_tally_by_hand():
    # Angles 270, 270, 90, 180.5 and none; τ of 270 degrees at 0.1 radians a token is 15.7 tokens.
    q, k = pairs(280, 270, 90, 180.5, 7), pairs(10, 0, 0, 0, 0)
    k[4] = 0
    sums = tally(2 * q, k, [15, 16, 500, 1, 3], 0.1)
    assert sums["known"].tolist() == [[4]]
    assert sums["anomalous"].tolist() == [[3]]
    assert sums["abnormal"] == 2  # 15 of 270 degrees, 1 of 180.5
    # 500 tokens are 50 radians from 90 degrees: π/2 + 50 = 16.4 π, past 8 odd and 8 even multiples of π
    assert sums["borders"].tolist() == [1, 8, 8]


def test_later_keys_are_mirror_images():
    """Scenarios (a) to (d): what scores do by distance, in numbers from outside; the two that rise are anomalous."""
    inputs, expected = case("rope_scenarios")
    for start, by_distance in zip(inputs["start_angle"], expected["cos_by_r"], strict=True):
        middle = len(by_distance) // 2
        for sign, side in ((1, by_distance[middle:]), (-1, by_distance[middle::-1])):
            q, k = torch.polar(torch.ones(1, 1, 1).double(), torch.tensor([[[start]]]).double()), torch.ones(1, 1, 1)
            top = int(np.argmax(side))
            rises = top > 0
            for distance in range(1, middle + 1):
                sums = anomaly.tally(
                    q, k.to(q.dtype), torch.tensor([sign * distance]), torch.tensor([inputs["theta_j"]]).double()
                )
                assert sums["anomalous"].item() == rises
                if distance != top:  # at the top itself rounding decides
                    assert sums["abnormal"].item() == (rises and distance < top)


def test_drawn_pairs_of_both_directions_are_uniform_over_all_others():
    m, n = anomaly.drawn_pairs(4, 60_000, seed=3, bidirectional=True)
    counts = np.unique(m * 4 + n, return_counts=True)[1]
    assert (m != n).all() and len(counts) == 12 and counts == pytest.approx(5_000, abs=400)


def test_an_encoder_has_anomalous_keys_on_both_sides_unless_they_are_collinear():
    text = np.random.default_rng(0).integers(0, 101, 40)
    for scheme, low, high in ((ROPE, 0.3, 0.7), (COCA, 0, 0), (SLACK, 0, 0)):
        model = build(LLAMA, scheme, {"name": "bidirectional"})
        (sums,) = anomaly.anomaly_sums(model, [text], [0], n_pairs=100, seed=1)
        assert low <= sums["anomalous"].sum() / sums["known"].sum() <= high


def test_a_border_of_k_is_one_pair_of_features_in_one_head_of_one_layer():
    assert anomaly.key_borders([[[3, 0, 1], [0, 0, 0]], [[0, 1, 1], [9, 9, 9]]]) == (7, 12)


def test_borders_are_where_the_score_turns_round():
    rng = np.random.default_rng(0)
    for angle, turned in zip(rng.uniform(0, 2 * math.pi, 50), rng.uniform(0, 40, 50), strict=True):
        slope = np.sign(np.diff(np.cos(angle + np.linspace(0, turned, 20001))))
        crossed = anomaly.borders_crossed(torch.tensor(angle), torch.tensor(turned))
        assert crossed.sum() == (np.diff(slope) != 0).sum()
        ends_rising_at_first = angle > math.pi and slope[0] > 0 and (np.diff(slope) != 0).any()
        assert bool(crossed[0]) == ends_rising_at_first


def test_drawn_pairs_are_uniform_over_all_earlier_keys():
    m, n = anomaly.drawn_pairs(4, 60_000, seed=3)
    assert (n < m).all() and n.min() == 0 and m.max() == 3
    counts = np.unique(m * 4 + n, return_counts=True)[1]
    assert len(counts) == 6
    assert counts == pytest.approx(10_000, abs=500)
    assert (anomaly.drawn_pairs(50, 9, seed=3)[0] != anomaly.drawn_pairs(50, 9, seed=4)[0]).any()


def test_layers_stay_apart_and_texts_add_up_however_they_are_batched():
    model = build(NEOX, ROPE)
    texts = list(np.random.default_rng(0).integers(0, 101, (3, 20)))
    each = anomaly.anomaly_sums(model, texts, [0, 1, 2], n_pairs=50, seed=1)
    alone = [anomaly.anomaly_sums(model, [t], [i], n_pairs=50, seed=1)[0] for i, t in enumerate(texts)]
    for one, other in zip(each, alone, strict=True):
        np.testing.assert_allclose(one["anomalous"], other["anomalous"])
    together, apart = anomaly.add(each), anomaly.add(alone)
    assert together["anomalous"].shape == (2, 4, 6)
    assert (together["anomalous"][0] != together["anomalous"][1]).any()
    for name in together:
        np.testing.assert_allclose(together[name], apart[name], rtol=1e-4)
    assert 0.3 < together["anomalous"].sum() / together["known"].sum() < 0.7


@pytest.mark.parametrize("scheme", [COCA, SLACK, FULL], ids=["strict", "slack", "full_mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coca_begins_collinear(scheme, dtype):
    model = build(LLAMA, scheme).to(dtype)
    text = np.random.default_rng(0).integers(0, 101, 40)
    (sums,) = anomaly.anomaly_sums(model, [text], [0], n_pairs=100, seed=1)
    assert sums["anomalous"].sum() == 0 and sums["abnormal"] == 0
    assert 0.2 < sums["known"].mean() / 100 < 0.8  # about half of t is below 0


@pytest.mark.parametrize("scheme", [ROPE, COCA], ids=["rope", "strict"])
def test_the_angles_give_the_scores_of_the_scheme(scheme):
    model = build(replace(LLAMA, n_kv_heads=None), scheme)
    position, generator = model.position, torch.Generator().manual_seed(2)
    m_P, n_P = torch.tensor([5, 17, 40, 3]), torch.tensor([0, 16, 11, 3])
    q = torch.randn(4, 4, 12, generator=generator)
    k = torch.randn(4, 4, position.key_dim, generator=generator).abs()
    turned_q, turned_k = (x[0] for x in position.rotate(q[None], k[None], position(m_P[None], n_P[None], 64)))
    terms = (turned_q * turned_k).unflatten(-1, (2, 6)).sum(-2)
    theta_J = anomaly.inv_freq(position, 64)
    q_PHJ, k_PHJ = anomaly.vectors(position, q, k)
    angle = anomaly.initial_angle(q_PHJ, k_PHJ)
    distance = ((m_P - n_P)[:, None] * theta_J)[:, None]
    expected = q_PHJ.abs() * k_PHJ.abs() * torch.cos(angle + distance)
    torch.testing.assert_close(terms.double(), expected, atol=1e-4, rtol=1e-4)


def test_other_frequencies_lengthen_the_region_as_the_paper_says():
    linear = build(LLAMA, ROPE | {"rope_scaling": {"name": "linear", "theta": 10000.0, "factor": 8.0}})
    assert anomaly.slowed(linear.position, 64) == pytest.approx([8.0] * 6)
    ntk = build(LLAMA, ROPE | {"rope_scaling": {"name": "ntk", "theta": 10000.0, "factor": 8.0}})
    assert anomaly.slowed(ntk.position, 64) == pytest.approx([8 ** (2 * j / 10) for j in range(6)])
