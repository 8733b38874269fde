"""Sums along documents: exact, from zero in each, with the gradients of a plain sum."""

import pytest
import torch

from coca_train.positions._phases import Documents, convolve, rotation, sums_before

POS = torch.tensor([[0, 1, 2, 0, 1, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7]])


def in_loops(x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
    total, rows = torch.zeros_like(x[0]), []
    for t in range(len(x)):
        if t and pos[t] <= pos[t - 1]:
            total = torch.zeros_like(x[0])
        rows.append(total)
        total = total + x[t]
    return torch.stack(rows)


def test_documents_are_where_positions_do_not_rise() -> None:
    documents = Documents.of(POS)
    assert documents.begin_BS.tolist() == [[0, 0, 0, 3, 3, 5, 6, 6], [0] * 8]
    assert documents.end_BS.tolist() == [[3, 3, 3, 5, 5, 6, 8, 8], [8] * 8]
    assert documents.place_BS[0].tolist() == [0, 1, 2, 0, 1, 0, 0, 1]
    drawn = torch.tensor([[0, 7, 9, 800, 3, 4]])  # positions drawn apart, then another document
    assert Documents.of(drawn).begin_BS.tolist() == [[0, 0, 0, 0, 4, 4]]


def test_sums_and_gradients_in_plain_loops() -> None:
    x, weight = torch.randn(2, 8, 3).double().requires_grad_(), torch.randn(2, 8, 3).double()
    ours = sums_before(x, Documents.of(POS))
    expected = torch.stack([in_loops(row, pos) for row, pos in zip(x, POS, strict=True)])
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-8)  # fixed point
    (mine,), (theirs,) = (torch.autograd.grad((each * weight).sum(), x) for each in (ours, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_stands_before_changes_no_bit(dtype: torch.dtype) -> None:
    x, before = torch.rand(1, 50, 2).to(dtype), 1e4 * torch.rand(1, 300, 2).to(dtype)
    alone = sums_before(x, Documents.of(torch.arange(50)[None]))
    pos = torch.cat((torch.arange(300), torch.arange(50)))[None]
    assert torch.equal(sums_before(torch.cat((before, x), 1), Documents.of(pos))[:, 300:], alone)


def test_a_cut_text_has_the_same_differences() -> None:
    """As a cache of a window has it, which has dropped what came first."""
    x = torch.rand(1, 40, 1).double()
    whole, cut = (sums_before(x[:, n:], Documents.of(torch.arange(n, 40)[None])) for n in (0, 25))
    assert torch.equal(whole[:, 25:] - whole[:, 25:26], cut)


def test_taps_stop_at_a_document() -> None:
    x, mix = torch.arange(1.0, 9)[None, :, None], torch.tensor([[100.0], [10.0], [1.0]])
    seen = convolve(x, mix, Documents.of(POS[:1]).place_BS)[0, :, 0]
    assert seen.tolist() == [1, 12, 123, 4, 45, 6, 7, 78]


def test_angles_keep_their_digits_far_out() -> None:
    far = torch.tensor([1e6 + 0.25], dtype=torch.float64).view(1, 1, 1, 1)
    turn = rotation(far, torch.float32)
    assert float(turn.cos_BT1R[..., 0]) == pytest.approx(float(far.cos()), abs=1e-6)
    assert float(turn.sin_BT1R[..., 1]) == pytest.approx(float(far.sin()), abs=1e-6)
