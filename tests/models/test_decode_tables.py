"""Tables of positions to come, kept with a cache, are those that a scheme makes position by position."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from coca_train.models import cache
from coca_train.models.cache import DecodeTables, split_by_position
from coca_train.positions.token_positions import Positions
from tests.generation.test_decoding import build, trained

LENGTH = 21


def one(at):
    return Positions.counted(at, at + 1)


@pytest.fixture
def asked(monkeypatch):
    """Which tables a scheme was asked for, made five at a time: (scheme, positions)."""
    monkeypatch.setattr(cache, "AHEAD", 5)
    scheme, positions = build(trained("rope", "partial")).position, []
    scheme.register_forward_hook(lambda _, given, tables: positions.append(given[0].pos_BT[0].tolist()))
    return scheme, positions


@torch.no_grad()
def test_tables_of_a_position_are_those_of_the_scheme(asked):
    scheme, positions = asked
    held = DecodeTables()
    for at in (3, 4, 7, 8, 20, 0, 1):
        tables, expected = held.tables(scheme, one(at), LENGTH), scheme(one(at), one(at), LENGTH)
        for mine, its in zip(tree_leaves(tables), tree_leaves(expected), strict=True):
            assert torch.equal(torch.as_tensor(mine), torch.as_tensor(its))
        assert tables.query is tables.key
    asked_ahead = [each for each in positions if len(each) > 1 or each == [20]]
    # On from the position that is asked for, and not beyond the length.
    assert asked_ahead == [[3, 4, 5, 6, 7], [8, 9, 10, 11, 12], [20], [20], [0, 1, 2, 3, 4]]


@torch.no_grad()
def test_a_position_beyond_the_length_is_taken_alone(asked):
    scheme, positions = asked
    DecodeTables().tables(scheme, one(LENGTH + 3), LENGTH)
    assert positions == [[LENGTH + 3]]


@torch.no_grad()
def test_a_position_of_which_bounds_are_known_is_taken_alone(asked):
    scheme, positions = asked
    for at in (4, 2):  # in segments positions begin anew
        DecodeTables().tables(scheme, Positions(torch.tensor([[at]]), 0, 8, contiguous=True), LENGTH)
    assert positions == [[4], [2]]


def test_tables_are_cut_by_position():
    x_BTJ, other_BTJ = torch.arange(12.0).view(1, 3, 4), torch.arange(6.0).view(1, 3, 2)
    first, *_, last = split_by_position(((x_BTJ, 1.5), (x_BTJ, 1.5), other_BTJ), 3)
    assert torch.equal(first[0][0], x_BTJ[:, :1]) and torch.equal(last[2], other_BTJ[:, 2:])
    assert first[0][1] == 1.5
