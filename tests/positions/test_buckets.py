"""T5's buckets of the distance, and the end of a learned table."""

import math

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from coca_train.positions._buckets import bucket_problems, buckets
from coca_train.positions.schemes.learned import check_max_len
from coca_train.positions.token_positions import Positions
from coca_train.runtime.errors import UserError
from tests.fixes import first, fix_of


def test_worked_by_hand():
    """Eight buckets up to 16: 0 … 3 alone, then steps of log r: 4·4^(i/4) = 4, 5.7, 8, 11.3."""
    assert buckets(8, 16).tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7]


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (16, 1000), (5, 100), (33, 77), (2, 3)])
def test_equal_to_transformers(n_buckets, max_distance):
    """T5's own code, for every distance up to the last row and for one far beyond it."""
    rows = buckets(n_buckets, max_distance)
    distance = torch.tensor([*range(max_distance + 1), 10 * max_distance])
    theirs = T5Attention._relative_position_bucket(-distance, False, n_buckets, max_distance)
    assert rows.dtype == torch.int64
    assert torch.equal(rows[distance.clamp(max=max_distance)], theirs)


def test_no_rounding_at_a_boundary():
    """10 buckets up to 160: each doubling of the distance from 5 on begins one. The formula in float64 misses some."""
    floored = [5 + math.floor(math.log(r / 5) / math.log(160 / 5) * 5) for r in (10, 20, 40, 80)]
    assert floored == [5, 6, 8, 8]
    assert buckets(10, 160)[[9, 10, 19, 20, 39, 40, 79, 80]].tolist() == [5, 6, 6, 7, 7, 8, 8, 9]


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 16), (2, 1), (9, 3)])
def test_buckets_without_distances_are_a_problem(n_buckets, max_distance):
    ((key, message, fix),) = bucket_problems(n_buckets, max_distance)
    assert key == "position.max_distance"
    assert f"n_buckets // 2 = {n_buckets // 2}" in message
    assert bucket_problems(n_buckets, int(fix.removeprefix("position.max_distance="))) == []


def test_made_on_the_cpu_while_a_model_starts_on_meta():
    with torch.device("meta"):
        assert buckets(8, 16)[3] == 3


def test_positions_without_a_row_are_refused():
    check_max_len(Positions.of(torch.tensor([[0, 15]])), 16, "learned")
    with pytest.raises(UserError) as caught:
        check_max_len(Positions.of(torch.tensor([[0, 1], [3, 16]])), 16, "learned")
    message = str(caught.value)
    (word,) = first(fix_of(message).removeprefix("train with "))
    check_max_len(Positions.of(torch.tensor([[0, 1], [3, 16]])), int(word.removeprefix("position.max_len=")), "learned")
    for part in (
        "E-POS-04 position.max_len=16: ",
        "learned",
        "position 16",
        "position.max_len=17",
        "at most 16 tokens",
    ):
        assert part in message
    assert "\n" not in message
