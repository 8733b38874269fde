"""One pass for several windows gives what measuring each window gives; and only where the length changes nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coca_train.evals.perplexity import score_share
from coca_train.evals.prefixes import _equal, cut, same_at
from coca_train.evaluation.suites import perplexity as suite
from tests.models.conftest import LLAMA, build

WINDOWS = (8, 16, 24)
DYNAMIC = {"name": "dynamic_ntk", "theta": 10000.0, "alpha": 1.0, "original_seq_len": 8}
YARN = {
    "name": "yarn",
    "theta": 10000.0,
    "factor": 4.0,
    "original_seq_len": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "convention": "paper",
}


def rope(frequencies):
    return {"scheme": "rope", "rotary_pct": 1.0, "frequencies": frequencies}


def documents(window):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 101, n)[: window + 1] for n in (40, 25, 24, 30)]  # of 24: one prediction fewer


def share(model, window, **options):
    return score_share(model, documents(window), window=window, stride=8, micro_batch_tokens=48, **options)


@pytest.mark.parametrize("scheme", [rope(YARN), "coca", "nope", "t5", "alibi_plain"])
def test_cuts_equal_windows_measured_by_themselves(scheme):
    model, curves = build(LLAMA, scheme).double().eval(), {}
    share(model, WINDOWS[-1], first=curves.__setitem__)
    for window in WINDOWS:
        assert same_at(model, WINDOWS[-1], window)
        expected, found = share(model, window), cut(curves, 4, window)
        np.testing.assert_allclose(found.documents, expected.documents, rtol=1e-6)
        np.testing.assert_allclose(found.positions, expected.positions, rtol=1e-6)


def test_frequencies_that_follow_the_length_are_told_apart():
    model = build(LLAMA, rope(DYNAMIC)).eval()
    assert not same_at(model, 24, 16)
    assert same_at(model, 8, 4)  # within the training window they do not move
    segments = build(LLAMA, rope(DYNAMIC), {"name": "segments", "length": 16}).eval()
    assert same_at(segments, 24, 16)  # no sequence is longer than a segment
    assert not same_at(segments, 24, 8)


@pytest.fixture
def measured():
    """Windows of the suite in turn, longest first: (results by window, forward passes by window)."""

    def made(frequencies, document_tokens, passes=None):
        model = build(LLAMA, rope(frequencies)).double().eval()
        settings = SimpleNamespace(document_tokens=document_tokens)
        texts = SimpleNamespace(documents={"a": documents(24), "b": documents(24)[:1]})
        material = suite.Material(settings, texts, 24, 8, 0)  # type: ignore[arg-type]
        around = SimpleNamespace(micro_batch_tokens=48, progress=lambda part: None)
        counts, results, n = {}, {}, []
        model.final_norm.register_forward_hook(lambda *_: n.append(1))
        for window in reversed(WINDOWS):
            n.clear()
            if passes is False:
                material.passes.clear()
            results[window] = suite.measure(settings, SimpleNamespace(model=model), window, material, around)  # type: ignore[arg-type]
            counts[window] = len(n)
        return results, counts

    return made


def test_the_suite_reads_once_what_it_cuts_for_all_windows(measured):
    results, counts = measured(YARN, "window")
    alone, _ = measured(YARN, "window", passes=False)
    assert counts[24] > 0
    assert counts[8] == counts[16] == 0
    for window in WINDOWS:
        for source in ("a", "b"):
            for mine, theirs in zip(results[window][source], alone[window][source], strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_the_suite_measures_each_window_where_the_length_matters(measured):
    for frequencies, document_tokens in ((DYNAMIC, "window"), (YARN, "longest")):
        _, counts = measured(frequencies, document_tokens)
        assert min(counts.values()) > 0


@pytest.fixture
def one_by_one():
    """A suite's measure on one material and model: (window) -> predictions scored, and the forward passes it took."""
    model, n = build(LLAMA, rope(YARN)).double().eval(), []
    model.final_norm.register_forward_hook(lambda *_: n.append(1))
    settings = SimpleNamespace(document_tokens="window")
    around = SimpleNamespace(micro_batch_tokens=48, progress=lambda part: None)
    material = suite.Material(settings, SimpleNamespace(documents={"a": documents(24)}), 24, 8, 0)  # type: ignore[arg-type]

    def made(window):
        n.clear()
        found = suite.measure(settings, SimpleNamespace(model=model), window, material, around)  # type: ignore[arg-type]
        return np.sum(found["a"][0], axis=0)[1], len(n)

    return made


def test_a_longer_window_is_not_cut_from_a_shorter_one(one_by_one):
    for window in WINDOWS:
        count, forwards = one_by_one(window)
        assert count == sum(len(d) - 1 for d in documents(window))
        assert forwards > 0


def test_no_rank_cuts_when_another_has_nothing_to_cut(one_by_one, monkeypatch):
    one_by_one(24)
    monkeypatch.setattr(suite.dist, "all_gather_object", lambda mine: [mine, 0])
    assert one_by_one(16)[1] > 0


def test_equal_tables_are_equal_tensors_values_and_tuples():
    one = (torch.ones(2), 1.0, None, (torch.zeros(1),))
    assert _equal(one, (torch.ones(2), 1.0, None, (torch.zeros(1),)))
    assert not _equal(one, (torch.ones(2), 1.0, None, (torch.ones(1),)))
    assert not _equal(one, (torch.ones(2), 2.0, None, (torch.zeros(1),)))
    assert not _equal(one, one[:3])
    assert not _equal(torch.ones(1), None)
