"""Positions that rows are trained at: how they are drawn, by whom, and what they go with."""

import random

import numpy as np
import pytest
import torch

from coca_train.config.messages import ConfigError
from coca_train.config.schema import PlacementConfig
from coca_train.data import placement
from coca_train.data.mixture import Mixture
from coca_train.models.transformer import build_model
from coca_train.settings import load
from tests.golden.methods import case


class Given(random.Random):
    """Answers that are given, in turn."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)

    def randint(self, low, high):
        answer = self.answers.pop(0)
        assert low <= answer <= high, (low, answer, high)
        return answer

    def random(self):
        return self.answers.pop(0)


def test_pose_by_numbers_from_outside():
    inputs, expected = case("pose")
    placed = placement.pose(inputs["length"], 64, Given(inputs["cut"], inputs["skip"]))
    assert placed.tolist() == expected["position_T"]


def test_cream_by_numbers_from_outside():
    """α = 9 of a middle of 8 tokens; what the normal distribution gives for each uniform number."""
    inputs, expected = case("cream")
    target = inputs["window"] * inputs["factor"]
    placed = placement.cream(inputs["window"], target, Given(0.9, 0.999, inputs["end"]))
    assert placed.tolist() == expected["position_T"]
    inputs, expected = case("cream_middle")
    ours = [placement.stretch_of_middle(inputs["factor"], uniform) for uniform in inputs["uniform"]]
    assert all(abs(a - b) <= 1 for a, b in zip(ours, expected["alpha"], strict=True))
    assert sum(a != b for a, b in zip(ours, expected["alpha"], strict=True)) <= 1  # theirs is a table of 1,000 points


def test_longrecipe_by_numbers_from_outside():
    inputs, expected = case("longrecipe")
    spans, gaps = inputs["span_lengths"], np.array(inputs["gap_before"])
    slots = (gaps.cumsum() + np.arange(len(spans))).tolist()

    class Sampled(random.Random):
        def sample(self, population, k, counts=None):
            assert len(population) == 32 - sum(spans) + len(spans) and k == len(spans)
            return slots[::-1]

    assert placement.long_recipe(spans, 32, Sampled()).tolist() == expected["position_T"]


def test_longrecipe_keeps_sentences_whole_and_leaves_out_as_much_anywhere():
    """A row of two documents; every border of sentences is a gap sometimes, nothing else ever is; the last token
    comes near the target, and the gaps are as large on average."""
    ends, pos = np.zeros(40, dtype=bool), np.array([*range(30), *range(10)])
    ends[[4, 9, 29, 35]] = True  # the last one of a document ends nothing
    gaps = []
    for seed in range(2000):
        placed = placement.place(PlacementConfig(name="longrecipe", target=90), pos, random.Random(seed), ends)
        assert placed[0] == placed[30] == 0 and placed.max() < 90
        steps = np.diff(placed)
        assert set(np.flatnonzero(steps != 1)) <= {4, 9, 29, 35}
        gaps.append(steps[[4, 9, 35]] - 1)
    means = np.mean(gaps, 0)  # 60 left out before, between and after three spans; 80 with two
    assert abs(means[0] - 30) < 1.5 and abs(means[1] - 15) < 1.5 and abs(means[2] - 80 * 2 / 3) < 2


def test_what_ends_a_sentence():
    texts = [" the", ".", "?", "!\n", "\n", "end. ", "e.g", "。", "", " "]
    assert placement.ends_of_sentences(texts).tolist() == [
        False,
        True,
        True,
        True,
        True,
        True,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("name", placement.WAYS)
@pytest.mark.parametrize(("n_tokens", "target"), [(16, 16), (16, 17), (16, 128), (1, 9), (2, 300), (128, 1000)])
def test_any_draw_rises_below_the_target(name, n_tokens, target):
    seen = set()
    for seed in range(200):
        placed = placement.WAYS[name](n_tokens, target, random.Random(seed))
        assert placed.shape == (n_tokens,) and placed.dtype == np.int64
        assert placed[0] >= 0 and placed[-1] < target and (np.diff(placed) > 0).all()
        seen |= set(placed.tolist())
    if n_tokens > 2 and target > n_tokens + 1:
        assert max(seen) > 0.95 * target and len(seen) > 0.6 * target


def test_pose_is_uniform():
    """Cut and gap of 4,000 draws, against their means."""
    draws = [placement.pose(32, 256, random.Random(seed)) for seed in range(4000)]
    gaps = np.array([np.diff(each).max() - 1 for each in draws])
    cuts = np.array([int(np.diff(each).argmax()) + 1 for each in draws])[gaps > 0]
    assert abs(gaps.mean() - 112) < 4 and gaps.min() == 0 and gaps.max() == 224
    assert abs(cuts.mean() - 8.5) < 0.3 and cuts.min() == 1 and cuts.max() == 16


def test_each_document_has_its_own():
    pos = np.array([0, 1, 2, 3, 4, 0, 1, 2, 0])
    placed = placement.place(PlacementConfig(name="random", target=40), pos, random.Random(3))
    for part in (placed[:5], placed[5:8], placed[8:]):
        assert (np.diff(part) > 0).all() and part.max() < 40
    assert placed.tolist() != pos.tolist()


POSE = ["position=rope", "data.placement.name=pose", "data.placement.target=1024"]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (["position=rope", "data.placement.name=pose"], ["data.placement.target", "E-CFG-90"]),
        ([*POSE[:2], "data.placement.target=100"], ["data.placement.target=100"]),
        ([*POSE, "attention_pattern=sliding_window"], ["attention_pattern.name=sliding_window"]),
        ([*POSE, "position=nope"], ["sees no positions"]),
        ([*POSE, "position=learned"], ["learned has 128 positions"]),
        ([*POSE, "data.order=stream"], ["data.order=stream"]),
        ([*POSE, "position=path"], ["path finds the beginning of a document by its position"]),
        ([*POSE, "position=grape_m"], ["grape_m finds the beginning", "looks at positions for nothing else"]),
        ([*POSE, "position=transformer_xl", "position.memory_len=0"], ["projects a row for each distance up to 1024"]),
        ([*POSE, "model.logit_scale.name=ssmax"], ["model.logit_scale.name=ssmax"]),
    ],
)
def test_what_it_does_not_go_with(words, keys):
    with pytest.raises(ConfigError) as error:
        load(words)
    assert all(key in str(error.value) for key in keys)


def test_a_scheme_sees_the_distance_and_causality_the_text():
    """Attention at placed positions: that of a long text whose other tokens are not there."""
    config = load([*POSE, "position.rope_scaling.theta=100", "model.n_layers=1"]).config
    model = build_model(config, 64).eval()
    tokens = torch.arange(12)[None]
    placed = torch.tensor([[0, 1, 2, 3, *range(500, 508)]])
    with torch.no_grad():
        here, there = model.hidden(tokens), model.hidden(tokens, placed)
        torch.testing.assert_close(here[:, :4], there[:, :4])
        assert (here[:, 4:] - there[:, 4:]).abs().amax(-1).min() > 1e-4
        moved = model.hidden(tokens, placed + 300)
        torch.testing.assert_close(moved, there, rtol=1e-3, atol=1e-4)  # relative, with float32 angles


@pytest.mark.parametrize("name", ["pose", "longrecipe"])
def test_the_same_rows_are_placed_alike_and_the_fingerprint_says_so(data_config, name, monkeypatch):
    largest = int(Mixture(data_config(), 16).samples(5, 6).tokens_BT.max())
    ends = np.append(np.arange(largest) % 5 == 0, False)  # as of a tokenizer that has fewer ids than the embedding
    monkeypatch.setattr(Mixture, "_ends_of_sentences", ends)
    configs = [PlacementConfig(), *[PlacementConfig(name=name, target=256)] * 2]
    plain, placed, again = (Mixture(data_config(placement=each), 16) for each in configs)
    batches = [each.samples(5, 6) for each in (plain, placed, again)]
    assert torch.equal(batches[1].pos_BT, batches[2].pos_BT) and torch.equal(batches[0].tokens_BT, batches[1].tokens_BT)
    assert torch.equal(batches[1].pos_BT[2], placed.samples(7, 1).pos_BT[0])  # whatever it is read together with
    assert not torch.equal(batches[1].pos_BT, batches[0].pos_BT)
    assert len({tuple(row) for row in batches[1].pos_BT.tolist()}) == 6  # every row has a draw of its own
    assert (batches[0].length, batches[1].length) == (None, 256)
    assert plain.fingerprint()["order"] != placed.fingerprint()["order"]
