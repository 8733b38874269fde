"""The model that facts are stated for, and a scheme's tensors in it: built and called as the model does.

Shape legend: B batch (1), T tokens, H query heads, G key/value heads, D head_dim, K cached key width, C d_model.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coca_train import positions
from coca_train.config.load import resolve
from coca_train.config.schema import Config, ModelConfig
from coca_train.models.scores import Part, part_of
from coca_train.planning.catalog.entries import Entry
from coca_train.positions import frequencies, visibilities
from coca_train.positions.base import AttentionShape, Projections
from coca_train.positions.visibility import Visibility
from coca_train.settings import load

_TYPED = {
    "position": positions.settings,
    "position/frequencies": lambda values: frequencies.frequency_module(values["name"]).Settings(**values),
    "visibility": visibilities.settings,
}


@dataclass(frozen=True)
class ReferenceModel:
    """A model and its training window."""

    name: str  # choice of configs/model
    config: Config

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    @property
    def seq_len(self) -> int:
        """The training window [tokens]."""
        return self.config.train.seq_len

    @property
    def shape(self) -> AttentionShape:
        m = self.model
        head_dim = m.head_dim or m.d_model // m.n_heads
        return AttentionShape(m.n_heads, m.n_kv_heads or m.n_heads, head_dim, m.d_model, self.seq_len)

    def trained_at(self, seq_len: int) -> "ReferenceModel":
        """The same model with another training window [tokens]."""
        return replace(self, config=replace(self.config, train=replace(self.config.train, seq_len=seq_len)))

    def settings(self, entry: Entry) -> Any:
        """A choice's settings for this training window, typed."""
        resolved, problems = resolve(asdict(self.config) | {"choice": entry.values})
        assert not problems, problems
        return _TYPED[entry.group](resolved["choice"])


def reference(model: str, seq_len: int) -> ReferenceModel:
    """UserError when there is no such model, or it cannot be built."""
    return ReferenceModel(model, load([f"model={model}", f"train.seq_len={seq_len}"]).config)


class LayerTensors(NamedTuple):
    """What one layer of attention works with."""

    parts: list[Part]  # one: plain causal attention
    v_BTGD: Tensor
    tokens: int  # numbers per token that the scheme keeps beside keys and values


def layer(settings: Any, shape: AttentionShape, pos_BT: Tensor, length: int, dtype: torch.dtype) -> LayerTensors:
    """A scheme's queries, keys and terms for tokens at these positions; only their shapes mean anything.

    Raises what the scheme raises where it cannot serve these positions.
    """
    position = positions.build(settings, shape).to(dtype)
    own = position.layer().to(dtype)
    for parameter in (*position.parameters(), *own.parameters()):
        nn.init.zeros_(parameter)
    n_tokens = pos_BT.shape[1]
    q_BTHD, k_BTGK, v_BTGD = (
        torch.ones(1, n_tokens, heads, width, dtype=dtype)
        for heads, width in (
            (shape.n_heads, shape.head_dim),
            (shape.n_kv_heads, position.key_dim),
            (shape.n_kv_heads, shape.head_dim),
        )
    )

    def zeros(heads: int, width: int) -> Any:
        return lambda x_C: x_C.new_zeros(*x_C.shape[:-1], heads, width)

    project = Projections(zeros(shape.n_heads, shape.head_dim), zeros(shape.n_kv_heads, position.key_dim))
    with torch.no_grad():
        x_BTC = position.embed(torch.zeros(1, n_tokens, shape.d_model, dtype=dtype), pos_BT)
        tokens = own.tokens(x_BTC)
        mapped = own(position, q_BTHD, k_BTGK, position(pos_BT, pos_BT, length), project, tokens)
    (layout,) = Visibility(None).layouts(pos_BT, pos_BT)
    return LayerTensors([part_of(mapped, layout)], v_BTGD, sum(x[0, 0].numel() for x in tokens))


def on(device: str, settings: Any) -> Any:
    """Settings that make a scheme do on the CPU what it does on `device`.

    `fold: auto` (alibi) asks the tensors where they are: on CUDA it always folds. Everything else about a scheme is
    the same on every device; the kernel is chosen afterwards, and takes the device as an argument.
    """
    if device == "cuda" and getattr(settings, "fold", "") == "auto":
        return replace(settings, fold="always")
    return settings
