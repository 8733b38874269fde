"""PaTH: maps between key and query, one after the other; numbers from outside, and where its convolution begins."""

import math

import pytest
import torch

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.pattern import AttentionPattern
from coca_train.attention.scores import Part
from coca_train.config.messages import ConfigError
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.positions.base import NO_TERMS, ScoreMod
from coca_train.positions.schemes import path as path_scheme
from coca_train.settings import load
from coca_train.testing import parts
from coca_train.testing.scheme import SchemeContract
from tests.golden.methods import case, tensor
from tests.positions import pairwise


def path(rank=5, taps=3, forget=False):
    return {"scheme": "path", "rank": rank, "taps": taps, "forget": forget}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """So that a tile has several, and the last one is not full."""
    monkeypatch.setattr(path_scheme, "CHUNK", 4)


class TestContract(SchemeContract):
    scheme = "path"
    cases = [path(), path(forget=True), path(taps=1)]
    own = {
        "down.weight": (5, 24), "strength.weight": (2, 24), "strength.bias": (2,), "directions.up.weight": (32, 5),
        "directions.mix": (3, 32),
    }  # fmt: skip

    def score(self, problem):
        """Map by map, key by key, from the query backwards; a key that is not seen has no map."""
        p, heads = problem.parameters, problem.q_BHTD.shape[1]
        batch, n_keys = problem.x_BSC.shape[:2]
        groups, width = problem.k_BSGK.shape[2:]
        place_BS = problem.n_BTS.amax(1).expand(batch, -1)  # 0 where a pair is not seen
        low = problem.x_BSC @ p["down.weight"].T @ p["directions.up.weight"].T
        w = torch.zeros(batch, n_keys, groups * width)
        for back, taps in enumerate(p["directions.mix"].flip(0)):
            for n in range(back, n_keys):
                w[:, n] = w[:, n] + low[:, n - back] * taps * (place_BS[:, n] >= back)[:, None]
        w = (w * torch.sigmoid(w)).unflatten(-1, (groups, width))
        w = (w / w.norm(dim=-1, keepdim=True)).repeat_interleave(heads // groups, 2)
        beta = 2 * torch.sigmoid(problem.x_BSC @ p["strength.weight"].T + p["strength.bias"])
        beta = beta.repeat_interleave(heads // groups, 2)
        rows = []
        for t in range(problem.q_BHTD.shape[2]):
            u, columns = problem.q_BHTD[:, :, t], []
            for n in reversed(range(n_keys)):
                columns.append((u * problem.k_BHSK[:, :, n]).sum(-1))
                seen = problem.seen_BTS[:, t, n].double()[:, None]
                u = u - (beta[:, n] * seen * (w[:, n] * u).sum(-1))[..., None] * w[:, n]
            rows.append(torch.stack(columns[::-1], -1))
        total = torch.stack(rows, 2) / math.sqrt(width)
        if problem.settings["forget"]:
            gate_BSH = torch.nn.functional.logsigmoid(problem.x_BSC @ p["gate.weight"].T + p["gate.bias"])
            s_S1, l_1L = pairwise.key_pairs(problem)
            counted = (problem.seen_BTS[:, :, None, :] & (l_1L > s_S1)).double()
            total = total + torch.einsum("btsl,blh->bhts", counted.expand(batch, -1, -1, -1), gate_BSH)
        return total


@pytest.mark.parametrize("forget", [False, True])
def test_numbers_from_outside(forget):
    """Scores of the hook alone, with w and β as they are given."""
    inputs, expected = case("path")
    q, k, w = (tensor(inputs[name])[None, :, None] for name in ("q_TD", "k_TD", "w_TD_before_norm"))
    keys = [k, w / w.norm(dim=-1, keepdim=True), tensor(inputs["beta_T"])[None, :, None]]
    if forget:
        inputs, expected = case("path_fox")
        keys.append(tensor(inputs["log_f_T"])[None, :, None])
    width, pos = q.shape[-1], parts.start(q.shape[1])
    by = path_scheme.hook(width, forget)
    score_mod = ScoreMod(by, (torch.tensor(width**-0.5).double(),), (q,), tuple(keys))
    (layout,) = AttentionPattern(None).layouts(pos, pos)
    unit_BSGD = torch.eye(q.shape[1]).double()[None, :, None]
    weights = parts.KERNELS["eager"]([Part(q, k, NO_TERMS, layout, score_mod)], unit_BSGD, width**-0.5)[0, :, 0]
    exact = tensor(expected["score_TT"])
    exact = exact.masked_fill(exact.isnan(), -math.inf).softmax(-1)
    torch.testing.assert_close(weights, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("word", ["model.score_cap=50", "model.score_scale=head"])
def test_what_would_change_its_scores_unseen_is_refused(word):
    with pytest.raises(ConfigError, match=f"{word}.*path computes its scores"):
        load(["position=path", word])


@torch.no_grad()
def test_a_cache_of_a_window_keeps_what_the_convolution_reads():
    """One token at a time, with keys dropped on the way, is the whole computation."""
    settings, window = positions.settings(path(taps=5)), patterns.settings({"name": "sliding_window", "window": 4})
    model = Transformer(parts.MODEL, settings, window, vocab_size=11, max_seq_len=16).double().eval()
    init_weights(model, parts.MODEL, 1)
    tokens, cache = torch.arange(15)[None] % 11, model.new_cache(15)
    steps = torch.cat([model.hidden(tokens[:, n : n + 1], cache=cache) for n in range(15)], 1)
    torch.testing.assert_close(steps, model.hidden(tokens), rtol=1e-6, atol=1e-7)


def test_a_reflection_and_nothing():
    """β = 2 reflects: the same map twice gives the query back; β = 0 leaves every score q·k."""
    q = k = torch.randn(1, 3, 1, 4, generator=torch.Generator().manual_seed(1)).double()
    w = torch.tensor([0.6, 0.0, 0.8, 0.0]).double().expand(1, 3, 1, 4)
    pos = parts.start(3)
    (layout,) = AttentionPattern(None).layouts(pos, pos)
    plain = (q[0, 2, 0] @ k[0, :, 0].T) / 2
    for beta, mirrored in ((0.0, [False, False, False]), (2.0, [False, True, False])):
        keys = (k, w, torch.full((1, 3, 1), beta).double())
        score_mod = ScoreMod(path_scheme.hook(4, False), (torch.tensor(0.5).double(),), (q,), keys)
        out = parts.KERNELS["eager"](
            [Part(q, k, NO_TERMS, layout, score_mod)], torch.eye(3).double()[None, :, None], 0.5
        )
        query = q[0, 2, 0] - 2 * (w[0, 0, 0] @ q[0, 2, 0]) * w[0, 0, 0]
        exact = torch.where(torch.tensor(mirrored), (query @ k[0, :, 0].T) / 2, plain)
        torch.testing.assert_close(out[0, 2, 0], exact.softmax(-1))
