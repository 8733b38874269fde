"""A step on a device waits for nothing: no question is asked of a tensor, and no constant of the host is moved.

On the meta device, where a tensor has no value: who asks for one is refused. A copy from the host is seen by dispatch.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coca_train import positions
from coca_train.attention import kernels, patterns, scores
from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.models.transformer import Transformer
from coca_train.positions.token_positions import Positions
from coca_train.testing.parts import MODEL, VOCAB, shipped
from tests.cases import sampled

T = 40
META = torch.device("meta")
SCHEMES = dict(shipped())
ATTENTION_PATTERNS = {
    name: settings
    for name, settings in shipped("attention_pattern")
    if patterns.build(patterns.settings(settings)).trains
}


class Copies(TorchDispatchMode):
    """Tensors with more than one number that go from the host to the device, and constants made of Python's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if any(x.is_meta for x in (*made, *given)) and any(not x.is_meta and x.ndim for x in given):
            self.seen.append(str(func))
        if "lift_fresh" in str(func):
            self.seen.append(str(func))
        return out


def batch_of(with_documents: bool):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCAB, (2, T + 1), generator=generator).numpy()
    starts = [[5, 17], [30]] if with_documents else [None, None]
    return collate([Row(row, T, start) for row, start in zip(ids, starts, strict=True)])


def built(scheme: Any, attention_pattern: Any = None) -> Transformer:
    position = positions.settings(scheme)
    seen = patterns.settings(attention_pattern or {"name": "causal"})
    return Transformer(MODEL, position, seen, vocab_size=VOCAB, max_seq_len=T, attention="auto")


def step(model: Transformer, batch: Any) -> list[str]:
    positions = Positions.of(batch.pos_BT, batch.doc_BT)._replace(pos_BT=batch.pos_BT.to(META))
    doc_BT = None if batch.doc_BT is None else batch.doc_BT.to(META)
    tokens_BT, targets_BT = batch.tokens_BT.to(META), batch.targets_BT.to(META)
    with Copies() as copies:
        model(tokens_BT, targets_BT, positions, doc_BT).backward()
    return copies.seen


@pytest.fixture(autouse=True)
def _tiles(monkeypatch):
    """Several blocks, and, for half of the tests, tiles with an online softmax."""
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 16)
    monkeypatch.setattr(scores, "_compiled", lambda function: function)


@pytest.mark.parametrize(("scheme", "with_documents", "tiled"), sampled(SCHEMES, [False, True], [False, True]))
def test_a_step_asks_nothing(scheme, with_documents, tiled, monkeypatch):
    if tiled:
        monkeypatch.setattr(kernels, "RECOMPUTE_ABOVE", 8)
    model = built(SCHEMES[scheme]).to(META).train()
    step(model, batch_of(with_documents))  # constants are copied once
    assert step(model, batch_of(with_documents)) == []


@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
@pytest.mark.parametrize("scheme", ["rope", "t5"])
def test_whatever_is_seen(scheme, attention_pattern):
    model = built(SCHEMES[scheme], ATTENTION_PATTERNS[attention_pattern]).to(META).train()
    for with_documents in (False, True):
        step(model, batch_of(with_documents))
        assert step(model, batch_of(with_documents)) == []


@pytest.mark.parametrize(
    ("scheme", "frequency"), sampled(["rope", "xpos", "coca"], dict(shipped("position/rope_scaling")))
)
def test_whatever_the_frequencies(scheme, frequency):
    settings = SCHEMES[scheme] | {"rope_scaling": dict(shipped("position/rope_scaling"))[frequency]}
    model = built(settings).to(META).train()
    step(model, batch_of(True))
    assert step(model, batch_of(True)) == []
