"""A model small enough to check by hand: its NLL depends on the token, its position, the context seen and `length`."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from coca_train.attention import patterns
from coca_train.evaluation.variants import Variant
from coca_train.positions.token_positions import Positions

SEGMENT_BOOST = 0.25  # of the NLL where the attention pattern is `segments`


class FakeSettings(NamedTuple):
    scheme: str
    boost: float


def fake_variant(boost: float = 0.0, attention_pattern: str = "causal", problem: str = "", **options) -> Variant:
    """Settings for a FakeModel; options are those of the attention pattern."""
    settings = patterns.settings({"name": attention_pattern, **options})
    return Variant(FakeSettings("fake", boost), settings, problem)


class FakePosition(SimpleNamespace):
    """Its tables are the length and the boost, which the NLL follows."""

    def __call__(self, pos_BT: Tensor, pos_BS: Tensor, length: int) -> tuple[int, float]:
        return length, self.settings.boost


class FakeModel(nn.Module):
    """losses: nll of hidden. hidden: running mean of the tokens seen, the position, the length; nll: a function of
    those and the target.

    limit: max_positions, which a window may not exceed.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.limit = self.max_positions = limit
        self.layer_types, self.sequence, self.bidirectional = ("default",), None, False
        self.shapes: list[tuple[int, int]] = []
        self.set_position(fake_variant().position)
        self.set_attention_pattern(fake_variant().attention_pattern)
        self.set_logit_scale(None)

    def set_position(self, settings) -> None:
        self.position = FakePosition(settings=settings)

    def set_logit_scale(self, settings) -> None:
        self.config = SimpleNamespace(logit_scale=settings)

    def position_of(self, kind) -> FakePosition:
        return self.position

    def set_attention_pattern(self, settings) -> None:
        self.attention_pattern = patterns.build(settings)
        self.attention_patterns = {"default": self.attention_pattern}

    @contextmanager
    def restored(self) -> Iterator[None]:
        own = self.position, self.attention_pattern, self.attention_patterns
        try:
            yield
        finally:
            self.position, self.attention_pattern, self.attention_patterns = own

    def hidden(
        self,
        tokens_BT: Tensor,
        pos_BT: Tensor | None = None,
        doc_BT=None,
        length: int | None = None,
        wanted=None,
    ) -> Tensor:
        assert pos_BT is not None
        positions = Positions.of(pos_BT)
        assert self.limit is None or self.attention_pattern.place(positions, positions, None)[0].last < self.limit
        self.shapes.append(tuple(tokens_BT.shape))
        seen_BT = tokens_BT.cumsum(1) / torch.arange(1, tokens_BT.shape[1] + 1)
        length_BT = torch.full_like(seen_BT, float(self.attention_pattern.length(length or tokens_BT.shape[1])))
        whole_BTC = torch.stack([seen_BT, pos_BT.float().expand_as(seen_BT), length_BT], dim=-1)
        stretches = wanted or [(0, whole_BTC.shape[1])]
        return torch.cat([whole_BTC[:, begin:end] for begin, end in stretches], dim=1)

    def nll(self, hidden_BTC: Tensor, targets_BT: Tensor) -> Tensor:
        seen, pos, length = hidden_BTC.unbind(-1)
        nll = (seen - targets_BT).abs() / 100 + 1 / (1 + pos) + length / 1000 + self.position.settings.boost
        nll = nll + SEGMENT_BOOST * (self.attention_pattern.settings.name == "segments")
        return nll.float() * (targets_BT != -100)

    def losses(self, tokens_BT: Tensor, targets_BT: Tensor, pos_BT=None, doc_BT=None, length=None, wanted=None):
        stretches = wanted or [(0, targets_BT.shape[1])]
        targets_Bn = torch.cat([targets_BT[:, begin:end] for begin, end in stretches], dim=1)
        return self.nll(self.hidden(tokens_BT, pos_BT, doc_BT, length=length, wanted=wanted), targets_Bn)


@pytest.fixture
def fake_model() -> type[FakeModel]:
    return FakeModel


@pytest.fixture
def variant():
    return fake_variant
