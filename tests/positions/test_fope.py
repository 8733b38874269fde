"""FoPE: mixtures of frequencies, drawn once; numbers from outside, and how they are drawn."""

import math

import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.positions.schemes import fope as fope_scheme
from coca_train.settings import load
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, same, tensor


def fope(**changes):
    return {"scheme": "fope", "theta": 100.0, "original_seq_len": 64, "gain": 0.3, "seed": 0, **changes}


class TestContract(SchemeContract):
    scheme = "fope"
    angles = True
    cases = [fope(), fope(padding="code", gain=0.6), fope(theta=10000.0, original_seq_len=30)]

    def score(self, problem):
        """Pair by pair: a complex number, its real part times cos and its other times sin of a mixture."""
        typed = fope_scheme.Settings(**problem.settings)
        heads, width = problem.q_BHTD.shape[1], problem.q_BHTD.shape[-1]
        theta = [typed.theta ** (-2 * j / width) for j in range(width // 2)]
        theta = torch.tensor([each for each in theta if each >= 2 * math.pi / typed.original_seq_len])
        groups = problem.k_BSGK.shape[2]
        a, b = (x.double().repeat_interleave(heads // groups, 0) for x in
                fope_scheme.coefficients(typed, groups, width))  # fmt: skip
        total = torch.zeros(())
        for j in range(width // 2):
            (q, k) = (x[..., j] + 1j * x[..., j + width // 2] for x in (problem.q_BHTD, problem.k_BHSK))
            turned = []
            for places in (problem.m_BTS, problem.n_BTS):
                angle = places[:, None, :, :, None].double() * theta
                if j < a.shape[-1]:
                    cos, sin = (
                        (f(angle) * x[:, None, None, :, j]).sum(-1) for f, x in ((torch.cos, a), (torch.sin, b))
                    )
                else:
                    cos, sin = torch.ones(()), torch.tensor(float(typed.padding == "code"))
                turned.append(torch.complex(*torch.broadcast_tensors(cos.double(), sin.double())))
            total = total + (q[..., :, None] * turned[0] * (k[..., None, :] * turned[1]).conj()).real
        return total / math.sqrt(width)


@pytest.mark.parametrize(("name", "padding"), [("fope", "paper"), ("fope_released_padding", "code")])
def test_numbers_from_outside(name, padding):
    inputs, _ = case("fope")
    _, expected = case(name)
    q, k = (tensor(inputs[each]).transpose(0, 1)[None] for each in ("q_HTD", "k_HTD"))
    settings = fope(theta=float(inputs["base"]), original_seq_len=inputs["window"], padding=padding)
    scheme = parts.build(settings, q.shape[2], q.shape[2], q.shape[3])
    assert same(scheme.theta_F, expected["kept_frequencies_F"], 1e-6)
    assert scheme.a_GFO.shape[-1] == expected["pairs_mixed_O"]
    scheme.a_GFO, scheme.b_GFO = (tensor(inputs[each]) for each in ("cos_HFO", "sin_HFO"))
    pos = parts.start(q.shape[1])
    assert same(parts.dense_scores(scheme, q, k, pos, pos, q.shape[1])[0], expected["score_HTT"], 2e-6)


def test_how_the_mixtures_are_drawn():
    """A unit for every ⌈F/O⌉-th frequency, and normal numbers of Xavier's size; the same for the same seed."""
    typed = fope_scheme.Settings(**fope(theta=10000.0, original_seq_len=4096, gain=0.5))
    a, b = fope_scheme.coefficients(typed, 64, 128)
    n_kept = len(fope_scheme.kept(typed, 128))
    assert a.shape == (64, n_kept, 32) and n_kept == 46
    units = torch.zeros(n_kept, 32)
    for o in range(23):
        units[2 * o, o] = 1
    for each in (a, b):
        noise = each - units
        assert noise.std().item() == pytest.approx(0.5 * math.sqrt(2 / (n_kept * 32 + 64 * 32)), rel=0.02)
        assert abs(noise.mean().item()) < 1e-4
    assert not torch.equal(a, b) and torch.equal(a, fope_scheme.coefficients(typed, 64, 128)[0])


def test_a_window_in_which_nothing_turns_is_refused():
    with pytest.raises(ConfigError, match="nothing would be mixed"):
        load(["position=fope", "position.original_seq_len=6"])
