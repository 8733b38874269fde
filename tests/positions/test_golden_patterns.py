"""Masks and relative distances against a reader that takes one token after another (tests/golden/patterns.py)."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from coca_train.attention import pattern as attention_pattern
from coca_train.attention import patterns
from tests.positions.test_patterns import ALL

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/patterns.json").read_text(encoding="utf-8"))


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
    layouts = patterns.build(patterns.settings(settings)).layouts(pos_BT, pos_BS, doc_BS)
    return [
        (attention_pattern.seen(layout, *everything)[0], (layout.pos_BT[:, :, None] - layout.pos_BS[:, None, :])[0])
        for layout in layouts
    ]


def assert_equal(parts, distance_TS):
    """Views together show each pair at most once, at its distance, and no other pair."""
    assert torch.equal(sum(seen.int() for seen, _ in parts), (distance_TS >= 0).int())
    for seen, distance in parts:
        assert torch.equal(distance[seen], distance_TS[seen])


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["label"])
def test_views_equal_the_reader(row):
    distance_TS, pos, doc = given(row)
    assert_equal(views(row["settings"], pos, pos, doc), distance_TS)


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["label"])
def test_the_definition_equals_the_reader(row):
    distance_TS, pos, doc = given(row)
    (definition,) = (each() for each in ALL if each.attention_pattern == row["settings"]["name"])
    seen, m_BTS, n_BTS = definition.defined(row["settings"], pos, pos, doc)
    assert_equal([(seen[0], (m_BTS - n_BTS)[0])], distance_TS)
