"""Bytes are counted while they are held, by hand."""

import torch

from coca_train.planning.meta_step import MemoryTracker


def test_live_and_peak() -> None:
    with MemoryTracker() as tracker:
        a = torch.empty(1000, device="meta")
        assert tracker.live == 4000
        b = a * 2
        view = b[10:]
        del b
        assert tracker.live == 8000  # the view holds its whole memory
        del view
        assert (tracker.live, tracker.peak) == (4000, 8000)
        a += 1
        c = a[:10] * 2
        assert (tracker.live, tracker.peak) == (4040, 8000)
        del c
    del a
    assert tracker.live == 0


def test_what_was_there_before_does_not_count_nor_do_its_views() -> None:
    weight = torch.empty(10, 10, device="meta")
    with MemoryTracker([weight]) as tracker:
        view = weight.t()
        assert tracker.live == 0
        product = view @ weight
        assert tracker.live == product.nbytes == 400


def test_a_table_of_the_host_is_taken_along_without_its_bytes() -> None:
    with MemoryTracker() as tracker:
        x = torch.empty(5, 3, device="meta")
        y = x * torch.ones(3) + torch.tensor(2.0)
        assert y.is_meta and tracker.live == 120


def test_what_autograd_keeps_and_gives_back() -> None:
    linear = torch.nn.Linear(100, 100, bias=False, device="meta")
    with MemoryTracker(linear.parameters()) as tracker:
        x = torch.empty(10, 100, device="meta")
        loss = torch.nn.functional.silu(linear(x)).sum()
        assert tracker.live == 4000 + 4000 + 4  # x, what goes into silu, the loss; the output of silu is gone
        loss.backward()
        assert tracker.live == 4000 + 4 + 40_000  # x and the loss, which we hold; the gradient of the weight
