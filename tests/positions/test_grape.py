"""GRAPE's additive forms: gated by the key, and along the path."""

import math

import torch

from coca_train.positions._phases import Documents, sums_before
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, same, tensor
from tests.positions import pairwise


def softplus(x):
    return torch.log1p(x.exp())


def slopes_H11(problem):
    return torch.tensor(pairwise.alibi_slopes(problem.q_BHTD.shape[1]))[:, None, None]


class TestKeyGated(SchemeContract):
    scheme = "grape_a"
    cases = [{"scheme": "grape_a"}]
    own = {"u": (4, 16), "omega": (4,)}

    def score(self, problem):
        """ALiBi times what each key says."""
        u_HD, omega_H = problem.parameters["u"], problem.parameters["omega"]
        gate_BHS = softplus((problem.k_BHSK * (u_HD / u_HD.norm(dim=-1, keepdim=True))[:, None]).sum(-1) / 4)
        slope = slopes_H11(problem) * softplus(omega_H)[:, None, None] * gate_BHS[:, :, None]
        return problem.content_BHTS - problem.distance_BTS[:, None] * slope


class TestAlongThePath(SchemeContract):
    scheme = "grape_ap"
    cases = [{"scheme": "grape_ap", "width": width} for width in (8, 2)]
    own = {"path.weight": (32, 24)}
    angles = True

    def score(self, problem):
        """For every pair, the edges of the keys that come after its key."""
        width = problem.settings["width"]
        p_BHSP = (problem.x_BSC @ problem.parameters["path.weight"].T).unflatten(-1, (-1, width)).transpose(1, 2)
        unit = p_BHSP / (p_BHSP.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        s_S1, l_1L = pairwise.key_pairs(problem)
        n_queries = problem.m_BTS.shape[1]
        place_BS = problem.n_BTS.amax(1).double()[:, None, :, None]  # 0 where a pair is not seen
        a, b = unit.chunk(2, -1)
        turned = torch.cat((a * place_BS.cos() + b * place_BS.sin(), b * place_BS.cos() - a * place_BS.sin()), -1)
        edge_BHTL = torch.log(torch.sigmoid(p_BHSP[:, :, -n_queries:] @ turned.mT / width)) * slopes_H11(problem)
        edge_BHTL = edge_BHTL * problem.seen_BTS[:, None]
        return problem.content_BHTS + torch.einsum("bhtl,sl->bhts", edge_BHTL, (l_1L > s_S1).double())


class TestMultiplicative(SchemeContract):
    scheme = "grape_m"
    cases = [{"scheme": "grape_m", "theta": 100.0, "divisor": divisor} for divisor in (16.0, 1.0)]
    own = {"rises.offset": (1,), "rises.weight": (24,)}
    angles = True

    def score(self, problem):
        """For every pair, the rises from its key to the token before its query."""
        weight, offset = problem.parameters["rises.weight"], problem.parameters["rises.offset"]
        rise_BS = torch.sigmoid((problem.x_BSC @ weight + offset) / problem.settings["divisor"])
        s_S1, l_1L = pairwise.key_pairs(problem)
        n_queries, width = problem.q_BHTD.shape[2:]
        before_TL = l_1L < torch.arange(rise_BS.shape[1])[-n_queries:, None]
        counted = (before_TL[:, None] & (l_1L >= s_S1)).double()
        apart_BHTS = torch.einsum("bl,tsl->bts", rise_BS, counted)[:, None]
        q, k, total = pairwise.pairs(problem.q_BHTD), pairwise.pairs(problem.k_BHSK), 0
        for j in range(width // 2):
            turn = torch.polar(torch.ones_like(apart_BHTS), apart_BHTS * problem.settings["theta"] ** (-2 * j / width))
            total = total + (q[..., :, None, j] * k[..., None, :, j].conj() * turn).real
        return total / math.sqrt(width)


def test_key_gated_by_numbers_from_outside():
    inputs, expected = case("grape_a_key_gated")
    k, u, omega = (tensor(inputs[name]) for name in ("k_HTD", "u_HD", "omega_H"))
    heads, n_tokens, width = k.shape
    scheme = parts.build({"scheme": "grape_a"}, heads, heads, width)
    layer = parts.layer_of(scheme)
    layer.u.data, layer.omega.data = u, omega
    keys, pos = k.transpose(0, 1)[None], parts.start(n_tokens)
    assert same(parts.dense_scores(scheme, 0 * keys, keys, pos, pos, n_tokens, layer)[0], expected["bias_HTT"], 1e-7)


def test_along_the_path_by_numbers_from_outside():
    inputs, expected = case("grape_ap")
    p_HTP = tensor(inputs["p_HTP"])
    heads, n_tokens, width = p_HTP.shape
    scheme = parts.build({"scheme": "grape_ap", "width": width}, heads, heads, 16)
    keys, pos = torch.zeros(1, n_tokens, heads, 16).double(), parts.start(n_tokens)
    mapped = parts.layer_of(scheme)(
        scheme, keys, keys, scheme(pos, pos, n_tokens), parts.projections(scheme), (p_HTP.transpose(0, 1)[None],)
    )
    assert same(parts.scores_of(mapped, scheme, pos, pos)[0], expected["bias_HTT"], 1e-5)  # the mean square has an ε


def test_the_gate_of_a_key_begins_where_alibi_is():
    """sp(ω) = 1: with u·k = ln(e - 1), where the other softplus is one too, the bias is ALiBi's."""
    scheme = parts.build({"scheme": "grape_a"}, 2, 2, 4)
    layer = parts.layer_of(scheme)
    type(scheme).INITIAL["omega"](layer.omega.data, torch.Generator())
    layer.u.data = torch.eye(4)[:2].double()
    keys = torch.full((1, 3, 2, 4), 2 * math.log(math.e - 1)).double()
    scores = parts.dense_scores(scheme, 0 * keys, keys, parts.start(3), parts.start(3), 3, layer)
    torch.testing.assert_close(
        scores[0, :, 2], torch.tensor(pairwise.alibi_slopes(2)).double()[:, None] * -torch.tensor([2.0, 1, 0]).double()
    )


def test_multiplicative_by_numbers_from_outside():
    inputs, expected = case("grape_m_ctx")
    x, q, k = (tensor(inputs[name]) for name in ("x_TC", "q_TD", "k_TD"))
    scheme = parts.build({"scheme": "grape_m", "theta": float(inputs["base"]), "divisor": inputs["scale"]}, 1, 1, 8, 4)
    layer, pos = parts.layer_of(scheme), parts.start(len(x))
    layer.rises.weight.data, layer.rises.offset.data = (
        tensor(inputs["w_C"]),
        torch.tensor([inputs["b"]], dtype=torch.float64),
    )
    rises = layer.tokens(x[None])
    phase_BS1 = sums_before(rises[0], Documents.of(pos))
    assert same(phase_BS1[0, :, 0], expected["phase_T"], 1e-8)  # of fixed point
    mapped = layer(
        scheme, q[None, :, None], k[None, :, None], scheme(pos, pos, len(x)), parts.projections(scheme), rises
    )
    assert same(parts.scores_of(mapped, scheme, pos, pos)[0, 0], expected["score_TT"], 1e-6)
