"""xPos: numbers worked by hand, parity with x-transformers, its reach, and that far out it is still relative."""

import cmath
import math

import pytest
import torch
from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

from coca_train import positions
from coca_train.runtime.errors import UserError
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise, support
from tests.positions.test_settings import MODEL


def xpos(rotary_pct=1.0, gamma=0.4, scale_base=512.0, rope_scaling=support.PLAIN):
    given = {"rotary_pct": rotary_pct, "gamma": gamma, "scale_base": scale_base, "rope_scaling": rope_scaling}
    return {"scheme": "xpos"} | given


class TestContract(SchemeContract):
    scheme = "xpos"
    angles = True
    cases = [xpos(scale_base=8.0), xpos(0.5, scale_base=8.0, rope_scaling=support.scaling("dynamic_yarn"))]

    def score(self, problem):
        """As rope, pair j times ζ_j^((m-n)/c); the part that is not rotated is not shrunk."""
        return pairwise.turned(problem, shrink=problem.settings)


def scores(scheme, q, k, pos_q, pos_k):
    return parts.dense_scores(scheme, q, k, pos_q, pos_k, 1)


@pytest.mark.parametrize(("gamma", "scale_base"), [(0.4, 512.0), (0.25, 16.0)])
def test_score_worked_by_hand(gamma, scale_base):
    """Two pairs (1, 3) and (2, 4) against (-1, 0.5) and (2, 1), 9 apart: ζ^(9/b) · Re(q conj(k) e^(9iθ))."""
    scheme = parts.build(
        xpos(gamma=gamma, scale_base=scale_base, rope_scaling={"name": "plain", "theta": 100.0}), 1, 1, 4
    )
    q, k = torch.tensor([1.0, 2, 3, 4]).double(), torch.tensor([-1.0, 2, 0.5, 1]).double()
    pairs = [(1 + 3j, -1 + 0.5j, 1.0, gamma / (1 + gamma)), (2 + 4j, 2 + 1j, 0.1, (0.5 + gamma) / (1 + gamma))]
    exact = sum(
        zeta ** (9 / scale_base) * (a * b.conjugate() * cmath.exp(9j * theta)).real for a, b, theta, zeta in pairs
    )
    score = scores(scheme, q[None, None, None], k[None, None, None], torch.tensor([[20]]), torch.tensor([[11]]))
    assert score.item() == pytest.approx(exact / 2, rel=2e-6)


@pytest.mark.parametrize("n_tokens", [33, 300])
def test_equals_x_transformers(n_tokens):
    """Its pairs are neighbours, ours half a width apart. For an odd number of tokens its centre is ours."""
    scheme = parts.build(xpos(0.5), 2, 2, 32)
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, n_tokens, dtype=torch.float32))
    pos = parts.start(n_tokens)
    angles, scale = RotaryEmbedding(16, use_xpos=True, scale_base=512)(pos[0])

    def neighbours(x_BTHD):
        first, second = x_BTHD[..., :16].chunk(2, -1)
        return torch.cat((torch.stack((first, second), -1).flatten(-2), x_BTHD[..., 16:]), -1).transpose(1, 2)

    theirs = apply_rotary_pos_emb(neighbours(q), angles, scale), apply_rotary_pos_emb(neighbours(k), angles, 1 / scale)
    mine = [neighbours(x) for x in scheme.rotate(q, k, scheme(pos, pos, n_tokens))]
    if n_tokens % 2:
        for a, b in zip(mine, theirs, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-5)
    assert torch.allclose(mine[0] @ mine[1].mT, theirs[0] @ theirs[1].mT, rtol=0, atol=2e-4)


def test_the_rest_of_the_head_is_neither_turned_nor_scaled():
    scheme = parts.build(xpos(0.5))
    q, k, _ = parts.random_qkv(scheme, 900)
    pos = parts.start(900)
    for before, after in zip((q, k), scheme.rotate(q, k, scheme(pos, pos, 900)), strict=True):
        assert torch.equal(after[..., 8:], before[..., 8:])
        assert not torch.allclose(after[:, 1:, :, :8], before[:, 1:, :, :8], rtol=0.1)


def test_both_members_of_a_pair_decay_alike():
    """The norm of a pair is that of the unrotated one times ζ_j^±(distance to the centre / b)."""
    scheme = parts.build(xpos())
    q, k, _ = parts.random_qkv(scheme, 401)
    pos = parts.start(401)
    mapped = scheme.rotate(q, k, scheme(pos, pos, 401))
    for x, y, sign in zip((q, k), mapped, (1, -1), strict=True):
        ratio = y.unflatten(-1, (2, 8)).norm(dim=-2) / x.unflatten(-1, (2, 8)).norm(dim=-2)
        zeta = [(2 * j / 16 + 0.4) / 1.4 for j in range(8)]
        exact = torch.tensor([[z ** (sign * (m - 200) / 512) for z in zeta] for m in range(401)]).double()
        assert torch.allclose(ratio, exact[:, None, :].expand_as(ratio), rtol=1e-5)


def test_scores_at_the_end_of_a_long_window_are_exact():
    """θ = 1 and 1/128 are exact in float32, so what is seen is the error of the powers: 2^±57 in q' and k'."""
    scheme = parts.build(xpos(scale_base=500.0, rope_scaling={"name": "plain", "theta": 128.0**2}), 1, 1, 4)
    pos, zeta = torch.tensor([[0, 32750, 32767]]), [0.4 / 1.4, 0.9 / 1.4]
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, 3, batch=1, dtype=torch.float32))
    score = scores(scheme, q, k, pos, pos)[0, 0, 2, 1].item()
    a, b = q[0, 2, 0].double(), k[0, 1, 0].double()
    exact = sum(
        zeta[j] ** (17 / 500) * (complex(a[j], a[j + 2]) * complex(b[j], -b[j + 2]) * cmath.exp(17j / 128**j)).real
        for j in range(2)
    )
    assert score == pytest.approx(exact / 2, rel=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cached_decoding_equals_full_recompute_though_the_centre_moves(dtype):
    scheme = parts.build(xpos(scale_base=16.0))
    pos = parts.start(40)
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, 40, dtype=dtype))
    full = scores(scheme, q, k, pos, pos).tril()
    for i in (0, 1, 17, 39):
        step = scores(scheme, q[:, i : i + 1], k[:, : i + 1], pos[:, i : i + 1], pos[:, : i + 1])
        assert torch.allclose(
            step, full[:, :, i : i + 1, : i + 1], rtol=0, atol=1e-5 if dtype == torch.float32 else 0.1
        )


REACH = [(torch.float32, 33994), (torch.bfloat16, 33994), (torch.float16, 2832)]  # 120 and 10 bits · 512 / log2(3.5)


@pytest.mark.parametrize(("dtype", "reach"), REACH)
def test_at_the_end_of_its_reach_hidden_scores_are_still_finite(dtype, reach):
    """The earliest query against the latest key; a kernel that adds -inf there must not meet +inf."""
    scheme = parts.build(xpos(), 1, 1, 16)
    pos = torch.tensor([[0, reach - 1]])
    q = k = torch.full((1, 2, 1, 16), 2.5, dtype=dtype)
    query, key = (x[0, :, 0] for x in scheme.rotate(q, k, scheme(pos, pos, reach)))
    plain = query @ key.T / 4
    assert torch.isfinite(plain).all()
    weights = (plain + torch.tensor([[0.0, -math.inf], [0.0, 0.0]], dtype=dtype)).softmax(-1)
    assert torch.isfinite(weights).all()


@pytest.mark.parametrize(("dtype", "reach"), REACH)
def test_beyond_its_reach_it_is_refused_in_words(dtype, reach):
    scheme = parts.build(xpos())
    q, k, _ = parts.random_qkv(scheme, 2, dtype=dtype)
    pos = torch.tensor([[7, 7 + reach]])
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(UserError) as error:
        scheme.rotate(q, k, scheme(pos, pos, 2))
    message = str(error.value)
    assert message.startswith("E-POS-05 position.scale_base=512: ")
    assert all(value in message for value in (f" {reach} ", name, f" {reach + 1}:"))
    needed = float(message.split("position.scale_base=")[2].split(",")[0])
    wider = parts.build(xpos(scale_base=needed))
    assert torch.isfinite(wider.rotate(q, k, wider(pos, pos, 2))[0]).all()


def test_the_reach_counts_positions_in_hand_not_where_they_stand():
    """The norm of each pair is the same a million tokens later."""
    scheme = parts.build(xpos())
    q, k, _ = parts.random_qkv(scheme, 2, dtype=torch.float16)
    pos = torch.tensor([[0, 2000]])
    near, far = (scheme.rotate(q, k, scheme(p, p, 2))[1].unflatten(-1, (2, 8)) for p in (pos, pos + 1_000_000))
    assert torch.allclose(near.norm(dim=-2), far.norm(dim=-2), rtol=5e-3, atol=1e-3)


def test_powers_are_float32_and_outputs_keep_their_type():
    scheme = parts.build(xpos())
    pos = parts.start(5)
    tables = scheme(pos, pos, 5)
    assert {x.dtype for x in (*tables.query[:2], *tables.key[:2])} == {torch.float32}
    q, k, _ = parts.random_qkv(scheme, 5, dtype=torch.bfloat16)
    wide = scheme.rotate(q.float(), k.float(), tables)
    for mine, exact in zip(scheme.rotate(q, k, tables), wide, strict=True):
        assert torch.equal(mine, exact.bfloat16())  # formed in float32, cast once


def test_powers_are_taken_wider_than_they_are_kept():
    """Over 32 768 tokens each is right to the last bits of float32; taken in float32, they are off by 4e-6."""
    scheme = parts.build(xpos(scale_base=500.0))
    pos = torch.arange(0, 32768, 7)[None]
    turn = scheme(pos, pos, 1).key
    powers = torch.hypot(turn.cos_BT1R.double(), turn.sin_BT1R.double())[0, :, 0, :8]
    zeta = (torch.arange(0, 16, 2).double() / 16 + 0.4) / 1.4
    exact = zeta ** ((int(pos[0, -1]) // 2 - pos[0, :, None]).double() / 500)
    assert (powers / exact - 1).abs().max() < 3e-7


def test_widths_without_pairs_are_problems():
    ((key, _, _),) = positions.settings(xpos(0.3)).problems(MODEL)
    assert key == "model.head_dim"
    assert positions.settings(xpos(0.5)).problems(MODEL) == []
