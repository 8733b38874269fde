"""The holder of a micro batch's past: what it keeps, what may be attended to, and that no gradient gets in."""

import pytest
import torch
from torch import Tensor

from coca_train.models.memory import Memory

B, M, C = 3, 4, 2


def segment(n_tokens: int, start: int = 100) -> Tensor:
    return (start + torch.arange(B * n_tokens * C)).float().view(B, n_tokens, C)


def memory(n_layers: int = 1, lengths: tuple[int, ...] = (4, 2, 0)) -> Memory:
    hidden = [torch.arange(B * M * C).float().view(B, M, C) + 50 * layer for layer in range(n_layers)]
    return Memory(hidden, torch.tensor(lengths))


@pytest.mark.parametrize("n_tokens", [1, 3, 4, 5, 9])
def test_it_keeps_the_last_positions_of_memory_and_segment(n_tokens: int) -> None:
    """Shorter segments than the memory push the oldest positions out; longer ones replace all of it."""
    past, x_BTC = memory(), segment(n_tokens)
    past.exchange(x_BTC)
    together = torch.cat([past.hidden[0], x_BTC], dim=1)
    assert torch.equal(past.new[0], together[:, -M:])
    assert past.memory_len == M


def test_layers_are_kept_in_their_order() -> None:
    past = memory(n_layers=2)
    past.exchange(segment(1, 100))
    past.exchange(segment(1, 200))
    assert past.new[0][0, :, 0].tolist() == [2, 4, 6, 100]
    assert past.new[1][0, :, 0].tolist() == [52, 54, 56, 200]
    with pytest.raises(AssertionError, match="more layers"):
        past.exchange(segment(1))


def test_only_real_positions_are_valid() -> None:
    assert memory().valid_BM.tolist() == [[True] * 4, [False, False, True, True], [False] * 4]


def test_what_is_kept_has_no_graph_and_no_storage_of_the_segment() -> None:
    past, x_BTC = memory(), segment(4).requires_grad_()
    past.exchange(x_BTC * 1.0)
    assert not past.new[0].requires_grad
    plain = segment(4)
    other = memory()
    other.exchange(plain)
    plain.zero_()
    assert other.new[0].abs().sum() > 0


def test_rows_and_layers_must_agree() -> None:
    with pytest.raises(AssertionError):
        Memory([torch.zeros(B, M, C), torch.zeros(B, M + 1, C)], torch.zeros(B))
    with pytest.raises(AssertionError):
        Memory([torch.zeros(B, M, C)], torch.zeros(B + 1))
