"""Selective RoPE: phases that tokens add up; numbers from outside."""

import math

import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.settings import load
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, same, tensor
from tests.positions import pairwise


def selective(theta=50.0, rank=5, taps=3):
    return {"scheme": "selective_rope", "theta": theta, "rank": rank, "taps": taps}


class TestContract(SchemeContract):
    scheme = "selective_rope"
    cases = [selective(), selective(taps=1)]
    own = {"up": (16, 5), "mix": (3, 16), "low.down": (5, 24)}
    angles = True

    def score(self, problem):
        """Turn by turn: what each token between key and query adds to each pair."""
        p, heads = problem.parameters, problem.q_BHTD.shape[1]
        batch, n_keys = problem.x_BSC.shape[:2]
        groups, width = problem.k_BSGK.shape[2:]
        half, n_queries = width // 2, problem.q_BHTD.shape[2]
        place_BS = problem.n_BTS.amax(1).expand(batch, -1)  # 0 where a pair is not seen
        slices = problem.x_BSC.unflatten(-1, (heads, -1))
        unit = (slices / slices.norm(dim=-1, keepdim=True)).flatten(-2)
        wide = unit @ p["low.down"].T @ p["up"].T
        step = torch.zeros_like(wide)
        for back, taps in enumerate(p["mix"].flip(0)):
            for n in range(back, n_keys):
                step[:, n] = step[:, n] + wide[:, n - back] * taps * (place_BS[:, n] >= back)[:, None]
        step_BSHJ = step.unflatten(-1, (groups, half)).repeat_interleave(heads // groups, 2)
        s_S1, l_1L = pairwise.key_pairs(problem)
        up_to_TL = l_1L <= torch.arange(n_keys)[-n_queries:, None]
        counted = (up_to_TL[:, None] & (l_1L > s_S1)).double()
        apart = torch.einsum("blhj,tsl->bhtsj", step_BSHJ, counted)
        q, k, total = pairwise.pairs(problem.q_BHTD), pairwise.pairs(problem.k_BHSK), 0
        for j in range(half):
            turn = torch.polar(torch.ones_like(apart[..., j]), apart[..., j] * problem.settings["theta"] ** (-j / half))
            total = total + (q[..., :, None, j] * k[..., None, :, j].conj() * turn).real
        return total / math.sqrt(width)


def test_numbers_from_outside():
    inputs, expected = case("selective_rope")
    x, down, up, conv = (tensor(inputs[name]) for name in ("x_TC", "down_RC", "up_(HJ)R", "conv_(HJ)4"))
    q, k = (tensor(inputs[name]).transpose(0, 1)[None] for name in ("q_HTD", "k_HTD"))
    heads, width = q.shape[2:]
    settings = selective(float(inputs["base"]), len(down), conv.shape[1])
    scheme = parts.build(settings, heads, heads, width, x.shape[1])
    layer, pos = parts.layer_of(scheme), parts.start(len(x))
    layer.low.down.data, layer.up.data, layer.mix.data = down, up, conv.T.contiguous()
    low, tables = layer.tokens(x[None]), scheme(pos, pos, len(x))
    assert same(layer.phases(*low, tables.documents)[0], expected["phase_T(HJ)"], 1e-8)
    mapped = layer(scheme, q, k, tables, parts.projections(scheme), low)
    assert same(parts.scores_of(mapped, scheme, pos, pos)[0], expected["score_HTT"], 1e-6)


def test_slices_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"model.d_model=1000: 3 heads do not divide.*write model.d_model=999"):
        load(["position=selective_rope", "model.d_model=1000", "model.n_heads=3", "model.head_dim=8"])
