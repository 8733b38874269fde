"""DAPE: a bias that reads the scores of all heads, against the authors' recipe in torch's own layers and the dense
reference."""

import pytest
import torch
from torch import nn

from coca_train.attention import flex
from coca_train.attention.pattern import AttentionPattern
from coca_train.attention.scores import part_of
from coca_train.positions import initials
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.positions import pairwise, support

BIASES = ["kerple_log", "alibi", "fire"]


class TestContract(SchemeContract):
    scheme = "dape"
    # Six units: with five, one pair of numbers is so near the kink of LeakyReLU that scores rounded to bfloat16 stand
    # on its other side, and a gradient differs by 16 % of the largest; with six by 0.6 %, under every bias.
    cases = [{"bias": bias, "mlp_width": 6} for bias in BIASES]
    own = {"bias.r1": (4,), "bias.r2": (4,), "w_in": (6, 8), "b_in": (6,), "w_out": (4, 6)}
    positive = ("r1", "r2")
    rounding = 1e-3

    def score(self, problem):
        """a + b + f([a ; b]), one hidden unit of f after the other."""
        biases = {
            "alibi": pairwise.alibi_bias,
            "kerple_log": lambda p: pairwise.kerple_log_bias(p, "bias."),
            "fire": lambda p: pairwise.fire_bias(p, 512.0, "bias"),
        }
        a_BHTS, p = problem.content_BHTS, problem.parameters
        b_BHTS = biases[problem.settings["bias"]](problem).expand_as(a_BHTS)
        both, total = torch.cat((a_BHTS, b_BHTS), 1), a_BHTS + b_BHTS
        for unit in range(len(p["b_in"])):
            h_BTS = torch.einsum("bfts,f->bts", both, p["w_in"][unit]) + p["b_in"][unit]
            h_BTS = torch.where(h_BTS > 0, h_BTS, 0.01 * h_BTS)
            total = total + p["w_out"][:, unit, None, None] * h_BTS[:, None]
        return total


def dape(bias="kerple_log", mlp_width=5):
    return {"scheme": "dape", "bias": bias, "mlp_width": mlp_width}


def test_is_a_linear_leaky_relu_linear_over_both_halves():
    """The authors' nn.Sequential, but for its last bias, which a softmax over the keys does not see."""
    scheme = parts.build(dape("alibi", 32))
    layer = parts.layer_of(scheme)
    mlp = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(), nn.Linear(32, 4)).double()
    for mine, theirs in ((layer.w_in, mlp[0].weight), (layer.b_in, mlp[0].bias), (layer.w_out, mlp[2].weight)):
        theirs.data = mine.data
    q, k, _ = parts.random_qkv(scheme, 7)
    pos = parts.start(7)
    a = torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(2, 2)) / 4
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8], dtype=torch.float64)
    b = -slopes[:, None, None] * (torch.arange(7)[:, None] - torch.arange(7)).clamp(min=0)
    b = b.expand_as(a)
    theirs = a + b + mlp(torch.cat((a, b), 1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    ours = parts.dense_scores(scheme, q, k, pos, pos, 7, layer)
    torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1))
    torch.testing.assert_close(ours + mlp[2].bias[:, None, None], theirs)


def test_every_head_hears_every_other():
    """And says so: a change of one head's query changes the others' scores, and FlexAttention is not asked."""
    scheme = parts.build(dape())
    layer = parts.layer_of(scheme)
    q, k, _ = parts.random_qkv(scheme, 5)
    pos = parts.start(5)
    before = parts.dense_scores(scheme, q, k, pos, pos, 5, layer)
    changed = q.detach().clone()
    changed[:, :, 0] += 1
    after = parts.dense_scores(scheme, changed, k, pos, pos, 5, layer)
    assert all((before - after)[:, h].abs().max() > 1e-3 for h in range(4))
    mapped = parts.mapped(scheme, q, k, pos, pos, 5, layer)
    assert mapped.score_mod.by.mixes_heads
    (layout,) = AttentionPattern(None).layouts(pos, pos)
    assert not flex.is_supported([part_of(mapped, layout)])


@pytest.mark.parametrize("bias", BIASES)
def test_without_f_it_is_the_static_bias(bias):
    """w_out = 0: what kerple_log, alibi and fire add, where they are schemes of their own."""
    alone = {"alibi": support.alibi(), "fire": {"scheme": "fire", "mlp_width": 32, "threshold": 512.0}}
    scheme, other = parts.build(dape(bias)), parts.build(alone.get(bias, {"scheme": bias, "shared": False}))
    layer, its = parts.layer_of(scheme), parts.layer_of(other)
    layer.w_out.data.zero_()
    theirs = dict(its.named_parameters())
    for name, parameter in layer.named_parameters():
        if name.startswith("bias."):
            parameter.data = theirs[name.replace("bias.", "function." if bias == "fire" else "")].data
    q, k, _ = parts.random_qkv(scheme, 9)
    pos = parts.start(9, 700)
    ours, exact = (parts.dense_scores(s, q, k, pos, pos, 709, own) for s, own in ((scheme, layer), (other, its)))
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    torch.testing.assert_close(ours.masked_fill(~causal, 0), exact.masked_fill(~causal, 0), rtol=1e-6, atol=1e-6)


def test_starts_as_torch_starts_linear_layers():
    start = initials(parts.build(dape()).settings)
    for name, shape in (("w_in", (32, 24)), ("w_out", (12, 32))):
        weight = torch.empty(shape)
        start[name](weight, torch.Generator().manual_seed(0))
        assert 0.95 * shape[1] ** -0.5 < weight.abs().max() <= shape[1] ** -0.5
    assert not start["b_in"](torch.ones(3), torch.Generator()).any()
