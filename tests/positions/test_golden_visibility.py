"""Masks and relative distances against a reader that takes one token after another (tests/golden/visibilities.py)."""

import json
from collections import Counter

import pytest
import torch

from coca_train.positions import visibilities, visibility
from tests.positions import reference_visibility, support

GOLDEN = json.loads((support.CONFIGS.parents[1] / "tests/golden/visibilities.json").read_text(encoding="utf-8"))
CACHED = [r for r in GOLDEN if r["label"].endswith("-one") and r["settings"]["name"] not in ("causal", "rerope")]
PLACED = [r for r in GOLDEN if r["settings"]["name"] not in ("sinks", "lambda_mask", "rerope")]  # others: a distance


def given(row):
    """(golden distance_TS, positions, documents) as the model gives them: positions restart at a document."""
    documents = row["documents"]
    seen_before, pos = Counter(), []
    for document in documents:
        pos.append(seen_before[document])
        seen_before[document] += 1
    doc = None if len(set(documents)) == 1 else torch.tensor([documents])
    return torch.tensor(row["distance"]), torch.tensor([pos]), doc


def views(settings, pos_BT, pos_BS, doc_BS):
    """[(seen, distance)] of each view, (T, S), by way of the layouts that kernels read."""
    everything = slice(0, pos_BT.shape[1]), slice(0, pos_BS.shape[1])
    layouts = visibilities.build(visibilities.settings(settings)).layouts(pos_BT, pos_BS, doc_BS)
    return [
        (visibility.seen(layout, *everything)[0], (layout.pos_BT[:, :, None] - layout.pos_BS[:, None, :])[0])
        for layout in layouts
    ]


def assert_equal(found, distance_TS):
    """Views together show each pair at most once, at its distance, and no other pair."""
    assert torch.equal(sum(seen.int() for seen, _ in found), (distance_TS >= 0).int())
    for seen, distance in found:
        assert torch.equal(distance[seen], distance_TS[seen])


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["label"])
def test_views_equal_the_reader(row):
    distance_TS, pos, doc = given(row)
    assert_equal(views(row["settings"], pos, pos, doc), distance_TS)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["label"])
def test_last_queries_of_a_cache_see_the_same(row):
    distance_TS, pos, doc = given(row)
    for n_queries in (1, 3):
        assert_equal(views(row["settings"], pos[:, -n_queries:], pos, doc), distance_TS[-n_queries:])


@pytest.mark.parametrize("row", CACHED, ids=lambda row: row["label"])
def test_what_a_cache_keeps_is_all_that_later_queries_see(row):
    """Keys at positions below `first`, and the last `last` ones: with the others gone, nothing changes."""
    distance_TS, pos, _ = given(row)
    keep = visibilities.build(visibilities.settings(row["settings"])).keep()
    for query in range(pos.shape[1]):
        gone = [key for key in range(query + 1) if key >= keep.first and query - key >= keep.last]
        assert not (distance_TS[query, gone] >= 0).any()


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["label"])
def test_reference_equals_the_reader(row):
    distance_TS, pos, doc = given(row)
    seen, m_BTS, n_BTS = reference_visibility.places(row["settings"], pos, doc)
    assert_equal([(seen[0], (m_BTS - n_BTS)[0])], distance_TS)


@pytest.mark.parametrize("row", PLACED, ids=lambda row: row["label"])
def test_positions_are_those_of_the_reference(row):
    """Where a visibility numbers tokens anew, schemes that are not relative see the new numbers."""
    _, pos, doc = given(row)
    seen, m_BTS, n_BTS = reference_visibility.places(row["settings"], pos, doc)
    (layout,) = visibilities.build(visibilities.settings(row["settings"])).layouts(pos, pos, doc)
    assert torch.equal(m_BTS[seen], layout.pos_BT[:, :, None].expand_as(seen)[seen])
    assert torch.equal(n_BTS[seen], layout.pos_BS[:, None, :].expand_as(seen)[seen])


def test_every_visibility_has_golden_numbers():
    assert {row["settings"]["name"] for row in GOLDEN} == set(visibilities.visibility_names())
