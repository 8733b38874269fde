"""The effect certificate: proof, before the first step, that the configured position scheme is alive.

A scheme that is silently ignored by a kernel trains a model without positions and nobody notices
(llm-foundry#1289, gpt-neox#848). So every training run checks, on random queries and keys and in the
run's own dtype, device and kernel (at a short length; long ones are the tests' business):

1. fused = definition: the kernel's output equals the float32 `eager` one;
2. effect: with all positions set to 0 the output differs (schemes that promise none are named so);
3. relative: a scheme that claims it gives the same scores when every position moves by 1000;
4. the model: its logits change when all positions are set to 0.

The first is about the run's visibility too. The others see every key: a window in the positions would
change with them, and pass for the effect of a scheme that has none.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.models.kernels import KERNELS
from coca_train.models.scores import part_of
from coca_train.models.transformer import Transformer
from coca_train.positions.base import Position, Projections
from coca_train.positions.visibility import Visibility
from coca_train.runtime.errors import UserError

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}  # of the output's largest value
PROBE_LEN = 48  # positions probed, fewer where there are fewer; odd lengths and long ones are the tests' business


class Certificate(NamedTuple):
    """Largest differences, relative to the largest output."""

    fused_error: float
    effect: float
    shift_error: float
    logits_effect: float

    def __str__(self) -> str:
        return (
            f"effect {self.effect:.2g}, logits change {self.logits_effect:.2g}, "
            f"fused against definition {self.fused_error:.1g}, shift by 1000 {self.shift_error:.1g}"
        )


def _probe(position: Position, n: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    shape, generator = position.shape, torch.Generator().manual_seed(0)
    widths = ((shape.n_heads, shape.head_dim), (shape.n_kv_heads, position.key_dim), (shape.n_kv_heads, shape.head_dim))
    q, k, v = (torch.randn(1, n, heads, width, generator=generator) for heads, width in widths)
    return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype)


def _attend(
    model: Transformer, qkv: tuple[Tensor, Tensor, Tensor], pos_BT: Tensor, kernel: str, visibility: Visibility
) -> Tensor:
    """Attention of the first layer's position scheme over all keys that the visibility shows."""
    position, attention = model.position, model.first_attention
    dtype = attention.q.weight.dtype  # of the model; the definition is probed in float32
    project = Projections(
        lambda x: attention.project_q(x.to(dtype)).to(x.dtype), lambda x: attention.project_k(x.to(dtype)).to(x.dtype)
    )
    parts = []
    for layout in visibility.layouts(pos_BT, pos_BT):
        tables = position(layout.pos_BT, layout.pos_BS, pos_BT.shape[1])
        parts.append(part_of(attention.position(position, qkv[0], qkv[1], tables, project), layout))
    return KERNELS[kernel](parts, qkv[2], position.shape.head_dim**-0.5).float()


def _difference(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


@torch.no_grad()
def certify(model: Transformer, device: torch.device, dtype: torch.dtype) -> Certificate:
    """Check the model's scheme on its kernel. Raises UserError when it has no effect or computes something else.

    Collective under ZeRO-3 (the model's forward gathers its weights): call it on every rank.
    """
    was_training = model.training
    model.eval()  # dropout and drawn positions are not what is probed
    position, name = model.position, model.position.settings.scheme
    n, everything = min(PROBE_LEN, position.max_positions or PROBE_LEN), Visibility(None)
    pos_BT = torch.arange(n, device=device)[None]
    qkv = _probe(position, n, device, dtype)
    fused = _attend(model, qkv, pos_BT, model.attention, model.visibility)
    exact = (qkv[0].float(), qkv[1].float(), qkv[2].float())
    definition = _attend(model, exact, pos_BT, "eager", model.visibility)
    plain = _attend(model, exact, pos_BT, "eager", everything)
    x_BTC = torch.zeros(1, n, model.config.d_model, device=device, dtype=dtype)
    embeds = not torch.equal(position.embed(x_BTC, pos_BT), position.embed(x_BTC, 0 * pos_BT))
    effect = 1.0 if embeds else _difference(_attend(model, exact, 0 * pos_BT, "eager", everything), plain)
    shift_error = 0.0
    if position.relative:
        shift_error = _difference(_attend(model, exact, pos_BT + 1000, "eager", everything), plain)
    visibility, model.visibility = model.visibility, everything
    tokens_BT = torch.arange(n, device=device)[None] % model.embed.num_embeddings
    logits_effect = _difference(model(tokens_BT, pos_BT=0 * pos_BT), model(tokens_BT, pos_BT=pos_BT))
    model.visibility = visibility
    model.train(was_training)
    certificate = Certificate(_difference(fused, definition), effect, shift_error, logits_effect)

    if not certificate.fused_error <= TOLERANCE[dtype]:  # so that NaN is refused too
        raise UserError(
            f"E-POS-01 position.scheme={name}: on kernel engine.attention={model.attention} and {dtype} the scores "
            f"differ from their definition by {certificate.fused_error:.2g}; at most {TOLERANCE[dtype]:.2g} is "
            "rounding. Fix: engine.attention=eager, and report this"
        )
    if position.has_effect and not (effect >= 1e-3 and logits_effect > 0.0):
        raise UserError(
            f"E-POS-02 position.scheme={name}: switching it off changes nothing (scores {effect:.2g}, logits "
            f"{logits_effect:.2g}); a model trained so would know no positions. Fix: report this"
        )
    if not shift_error <= 1e-3:
        raise UserError(
            f"E-POS-03 position.scheme={name} claims to be relative, but moving all positions by 1000 changes the "
            f"output by {shift_error:.2g}; at most 1e-3 is rounding. Fix: report this"
        )
    return certificate
