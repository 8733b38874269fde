"""A model small enough to check by hand: its NLL depends on the token, its position, the context seen and `length`."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn


class FakeModel(nn.Module):
    """hidden: running mean of the tokens seen, the position, the length; nll: a function of those and the target."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.position = SimpleNamespace(settings=SimpleNamespace(scheme="fake", boost=0.0))
        self.shapes: list[tuple[int, int]] = []

    def set_position(self, settings) -> None:
        self.position = SimpleNamespace(settings=settings)

    def hidden(self, tokens_BT: Tensor, pos_BT: Tensor | None = None, doc_BT=None, length: int | None = None) -> Tensor:
        assert pos_BT is not None
        self.shapes.append(tuple(tokens_BT.shape))
        seen_BT = tokens_BT.cumsum(1) / torch.arange(1, tokens_BT.shape[1] + 1)
        length_BT = torch.full_like(seen_BT, float(length or tokens_BT.shape[1]))
        return torch.stack([seen_BT, pos_BT.float().expand_as(seen_BT), length_BT], dim=-1)

    def nll(self, hidden_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        seen, pos, length = hidden_BTC.unbind(-1)
        nll = (seen - targets_BT).abs() / 100 + 1 / (1 + pos) + length / 1000 + self.position.settings.boost
        return nll.float() * (targets_BT != -100)


@pytest.fixture
def fake_model() -> type[FakeModel]:
    return FakeModel
