"""PoPE: lengths of content, angles of position; its phases, and numbers from outside."""

import math

import torch

from coca_train.positions.schemes import pope as pope_scheme
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, same, tensor
from tests.positions import support


def pope(rope_scaling=support.PLAIN):
    return {"scheme": "pope", "rope_scaling": rope_scaling}


def softplus(x):
    return torch.log1p(x.exp())


class TestContract(SchemeContract):
    scheme = "pope"
    angles = True
    cases = [pope(), pope(support.scaling("dynamic_yarn")), pope(support.scaling("resonance"))]
    own = {"delta": (64,)}

    def score(self, problem):
        """Frequency by frequency; a phase outside its interval counts as its end."""
        q, k = softplus(problem.q_BHTD), softplus(problem.k_BHSK)
        theta, temperature = problem.spectrum(2 * q.shape[-1])
        delta_HD = problem.parameters["delta"].view(-1, q.shape[-1]).clamp(-2 * math.pi, 0)
        back = (problem.n_BTS - problem.m_BTS).double()[:, None]
        total = torch.zeros(())
        for c, frequency in enumerate(theta):
            angle = back * frequency + delta_HD[:, c, None, None]
            total = total + q[..., :, None, c] * k[..., None, :, c] * angle.cos()
        return total * temperature**2 / math.sqrt(q.shape[-1])


def test_numbers_from_outside():
    inputs, expected = case("pope")
    q, k, delta = (tensor(inputs[name]) for name in ("q_HTD", "k_HTD", "delta_HD"))
    heads, n_tokens, width = q.shape
    settings = pope({"name": "plain", "theta": float(inputs["base"])})
    scheme = parts.build(settings, heads, heads, width)
    layer = parts.layer_of(scheme)
    layer.delta.data = delta.flatten()
    pos = parts.start(n_tokens)
    scores = parts.dense_scores(scheme, q.transpose(0, 1)[None], k.transpose(0, 1)[None], pos, pos, n_tokens, layer)
    assert same(scores[0], expected["score_HTT"], 1e-6)  # angles are float32


def test_no_phase_begins_at_an_end_of_its_interval():
    """A step outwards from there would be its last: no gradient passes the clamp."""
    delta = torch.empty(64, 128)
    pope_scheme.Scheme.INITIAL["delta"](delta, torch.Generator().manual_seed(1))
    assert -2 * math.pi < delta.min() < -6.2 and -0.1 < delta.max() < 0
