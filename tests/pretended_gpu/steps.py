"""One step of a model on the pretended GPU, on fake tensors: they have a device, a dtype and a shape, and no value. Two
devices in one operation are an error there, and so is a question to the host."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from coca_train import positions
from coca_train.attention import kernels, patterns
from coca_train.config.schema import ModelConfig
from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.engine.base import materialise, parameters_on_meta, summed_loss
from coca_train.engine.optim import global_norm
from coca_train.models.compiled import CompiledBlocks
from coca_train.models.recompute import CHECKPOINTING
from coca_train.models.transformer import Transformer
from coca_train.positions.token_positions import Positions
from coca_train.testing.parts import MODEL, shipped

GPU = torch.device("cuda", 0)
FAKE = FakeTensorMode.dispatch
COPIES = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}  # which argument they copy
SCHEMES = dict(shipped())
ATTENTION_PATTERNS = {
    name: settings
    for name, settings in shipped("attention_pattern")
    if patterns.build(patterns.settings(settings)).trains
}


class Asked(Exception):
    """The host waits for what a device computes."""


@contextmanager
def nothing_asked() -> Iterator[None]:
    """Fake tensors inside, and no copy of them to the host: that is a question too, and one that they answer. Looked at
    where they do, as operations inside of graphs and of score_mods end there as well."""

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made: Any = FAKE(mode, func, types, args, kwargs)
        place = COPIES.get(func)
        if place is not None and made.device.type == "cpu" and args[place].device.type == "cuda":
            raise Asked(f"{func} of {args[place]}")
        return made

    def measured(pos_BT: Any, doc_BT: Any = None, of: Any = Positions.of) -> Positions:
        with unset_fake_temporarily():  # a batch is the host's and real; what is fake stays so, and has no bounds
            return of(pos_BT, doc_BT)

    with (
        mock.patch.object(FakeTensorMode, "dispatch", dispatch),
        mock.patch.object(Positions, "of", measured),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


@dataclass(frozen=True)
class Case:
    """What a step is tried with."""

    scheme: str
    attention_pattern: str = "causal"
    documents: bool = False
    way: str = "none"
    compiled: bool = False
    dtype: torch.dtype = torch.bfloat16
    seq_len: int = 40
    model: ModelConfig = field(default=MODEL, repr=False)

    def __str__(self) -> str:
        words = (
            self.scheme,
            self.attention_pattern,
            "documents" * self.documents,
            self.way,
            "compiled" * self.compiled,
        )
        return " ".join(word for word in words if word)


def step(case: Case) -> Mapping[str, int]:
    """Forward, backward, clipping. Gives the kernels of attention that were chosen outside of graphs, and how often."""
    chosen: Counter[str] = Counter()

    def choose(*given: Any, choose: Any = kernels.choose) -> str:
        name = choose(*given)
        if not torch.compiler.is_compiling():  # a graph has no counters
            chosen[name] += 1
        return name

    scheme = SCHEMES[case.scheme]
    if "max_len" in scheme:
        scheme = scheme | {"max_len": case.seq_len}
    with parameters_on_meta():
        model = Transformer(
            case.model,
            positions.settings(scheme),
            patterns.settings(ATTENTION_PATTERNS[case.attention_pattern]),
            vocab_size=case.model.vocab_size or 0,
            max_seq_len=case.seq_len,
            activation_checkpointing=case.way,
        )
    batch = _batch(case)
    with nothing_asked(), mock.patch.object(kernels, "choose", choose):
        materialise(model, None, GPU, case.dtype)
        model.train()
        if case.compiled:
            model.compiled = CompiledBlocks(CHECKPOINTING[case.way])
        loss = summed_loss(model, batch, GPU)
        assert (loss.device, loss.dtype) == (GPU, torch.float32), loss
        loss.backward()
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None, f"{name} has no gradient"
            assert (gradient.device, gradient.dtype) == (GPU, case.dtype), f"{name}: {gradient}"
        weights = list(model.parameters())
        torch.nn.utils.clip_grads_with_norm_(weights, 1.0, global_norm([x.grad for x in weights if x.grad is not None]))
    if model.compiled is not None:
        assert not model.compiled.eager, f"not compiled: {model.compiled.eager}"
    return chosen


def _batch(case: Case) -> Any:
    ids = torch.arange(2 * (case.seq_len + 1)).view(2, -1).remainder(case.model.vocab_size or 1).numpy()
    starts = [[case.seq_len // 8, case.seq_len // 2], [case.seq_len // 3]] if case.documents else [None, None]
    return collate([Row(row, case.seq_len, start) for row, start in zip(ids, starts, strict=True)])
