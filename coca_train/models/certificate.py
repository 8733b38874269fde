"""The effect certificate: proof, before the first step, that the configured position scheme is alive.

A scheme that is silently ignored by a kernel trains a model without positions and nobody notices
(llm-foundry#1289, gpt-neox#848). So every training run checks, for each layer type, on random queries and
keys and in the run's own dtype, device and kernel (at a short length; long ones are the tests' business):

1. fused = definition: the kernel's output equals the float32 `eager` one;
2. effect: with the scheme switched off, that is with every token placed at 0, or with queries and keys as they are
   where it sees no positions, the output differs (schemes that promise no effect are named so);
3. relative: a scheme that claims it gives the same scores when every position moves by 1000;
4. the model: its logits change when the scheme is switched off in the layers of this type.

The first is about the run's attention pattern too. The others see every key: a window in the positions would
change with them, and pass for the effect of a scheme that has none.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.attention.kernels import KERNELS, by_heads
from coca_train.attention.pattern import BIDIRECTIONAL, CAUSAL, AttentionPattern, View, at, layouts_of_heads
from coca_train.attention.scores import part_of
from coca_train.config.schema import DEFAULT
from coca_train.models.layers import Attention
from coca_train.models.score_options import logit_scale
from coca_train.models.transformer import Transformer
from coca_train.positions.base import Position, Projections, without_positions
from coca_train.positions.token_positions import Positions
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


class _Everything(AttentionPattern):
    """An attention pattern in which every key is visible, also later ones where the model is bidirectional; nowhere:
    and all tokens have one position."""

    def __init__(self, bidirectional: bool, nowhere: bool = False) -> None:
        super().__init__(None)
        self.bidirectional, self.nowhere = bidirectional, nowhere

    def views(self) -> tuple[View, ...]:
        place = at(0) if self.nowhere else None
        return (View(BIDIRECTIONAL if self.bidirectional else CAUSAL, place, place),)


class _Inputs(NamedTuple):
    """Random queries, keys and values, and the layer's input for schemes that read it."""

    q_BTHD: Tensor
    k_BTGK: Tensor
    v_BTGD: Tensor
    x_BTC: Tensor


def _inputs(position: Position, n: int, device: torch.device, dtype: torch.dtype) -> _Inputs:
    shape, generator = position.shape, torch.Generator().manual_seed(0)
    widths = (
        (shape.n_heads, shape.head_dim),
        (shape.n_kv_heads, position.key_dim),
        (shape.n_kv_heads, shape.head_dim),
        (shape.d_model,),
    )
    return _Inputs(*(torch.randn(1, n, *width, generator=generator).to(device, dtype) for width in widths))


@contextmanager
def _switched_off(model: Transformer, layer_type: str, nowhere: AttentionPattern) -> Iterator[None]:
    """Switch off the position scheme in the layers of one type. nowhere: all tokens have one position."""
    position = model.position_of(layer_type)
    with ExitStack() as stack:
        if position.sees_positions:
            stack.enter_context(model.restored())
            model.attention_patterns[layer_type] = nowhere
        for name, block in zip(model.layer_types, model.blocks, strict=True):
            attention = block.get_submodule("attention")
            if name == layer_type and not position.sees_positions and isinstance(attention, Attention):
                drop = attention.position.register_forward_hook(without_positions)
                stack.callback(drop.remove)
        yield


def _attend(
    model: Transformer,
    layer_type: str,
    inputs: _Inputs,
    pos_BT: Tensor,
    kernel: str,
    attention_pattern: AttentionPattern,
    scale_BT: Tensor | None = None,
    in_training: bool = False,
) -> Tensor:
    """Compute attention of the first layer of a type over all keys that the attention pattern makes visible, or that
    groups of heads see in training. scale_BT: its logit scale, which depends on positions too, and so is left out where
    the scheme is probed."""
    position, attention = model.position_of(layer_type), model.attention_of(layer_type)
    dtype = attention.q.weight.dtype  # of the model; the definition is probed in float32
    project = Projections(
        lambda x: attention.project_q(x.to(dtype)).to(x.dtype), lambda x: attention.project_k(x.to(dtype)).to(x.dtype)
    )
    parts, tokens = [], attention.position.tokens(inputs.x_BTC.to(dtype))
    for layout in attention_pattern.layouts(pos_BT, pos_BT):
        tables = position(layout.pos_BT, layout.pos_BS, pos_BT.shape[1])
        mapped = attention.apply_positions(position, inputs.q_BTHD, inputs.k_BTGK, tables, project, tokens)
        parts.append(part_of(mapped, layout, scale_BT))
    if of_heads := layouts_of_heads([part.layout for part in parts], attention_pattern.in_training() * in_training):
        return by_heads(KERNELS[kernel], parts[0], of_heads, inputs.v_BTGD, attention.scale).float()
    return KERNELS[kernel](parts, inputs.v_BTGD, attention.scale).float()


def _difference(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


@torch.no_grad()
def certify(model: Transformer, device: torch.device, dtype: torch.dtype) -> dict[str, Certificate]:
    """Check the scheme of every layer type on the model's kernel. Raises UserError when one has no effect or computes
    something else.

    Collective under ZeRO-3 (the model's forward gathers its weights): call it on every rank.
    """
    was_training = model.training
    model.eval()  # dropout and drawn positions are not what is probed
    try:
        return {
            layer_type: _certify(model, layer_type, device, dtype) for layer_type in dict.fromkeys(model.layer_types)
        }
    finally:
        model.train(was_training)


def _certify(model: Transformer, layer_type: str, device: torch.device, dtype: torch.dtype) -> Certificate:
    """Check the layers of one type."""
    position = model.position_of(layer_type)
    name, at = position.settings.scheme, "" if layer_type == DEFAULT else f"layers.types.{layer_type}."
    n = min(PROBE_LEN, model.max_positions or PROBE_LEN)
    pos_BT = torch.arange(n, device=device)[None]
    inputs = _inputs(position, n, device, dtype)
    exact = _Inputs(*(x.float() for x in inputs))
    scale = model.logit_scales[layer_type]
    everything, nowhere = (_Everything(model.bidirectional, hides) for hides in (False, True))
    # Of queries from its length on: before it `log` is one, and a kernel that ignored it would not be detected.
    length, window = scale.length or model.shape.max_seq_len, model.shape.max_seq_len
    own = model.attention_patterns[layer_type], logit_scale(scale, pos_BT + length, window, 2 * length)
    fused_error = max(
        _difference(
            _attend(model, layer_type, inputs, pos_BT, model.attention, *own, in_training=in_training),
            _attend(model, layer_type, exact, pos_BT, "eager", *own, in_training=in_training),
        )
        for in_training in {False, bool(own[0].in_training())}
    )
    plain = _attend(model, layer_type, exact, pos_BT, "eager", everything)
    x_BTC = torch.zeros(1, n, model.config.d_model, device=device, dtype=dtype)
    embeds = not torch.equal(*(position.embed(x_BTC, Positions.of(pos)) for pos in (pos_BT, 0 * pos_BT)))
    shift_error = 0.0
    if position.relative:
        shift_error = _difference(_attend(model, layer_type, exact, pos_BT + 1000, "eager", everything), plain)
    tokens_BT = torch.arange(n, device=device)[None] % model.embed.num_embeddings
    with model.restored():
        model.attention_patterns = dict.fromkeys(model.attention_patterns, everything)
        logits = model(tokens_BT, pos_BT=pos_BT)
        with _switched_off(model, layer_type, nowhere):
            placed = nowhere if position.sees_positions else everything
            effect = 1.0 if embeds else _difference(_attend(model, layer_type, exact, pos_BT, "eager", placed), plain)
            logits_effect = _difference(model(tokens_BT, pos_BT=0 * pos_BT if embeds else pos_BT), logits)
    certificate = Certificate(fused_error, effect, shift_error, logits_effect)

    if not certificate.fused_error <= TOLERANCE[dtype]:  # so that NaN is refused too
        raise UserError(
            f"E-POS-01 {at}position.scheme={name}: on kernel engine.attention={model.attention} and {dtype} the scores "
            f"differ from their definition by {certificate.fused_error:.2g}; at most {TOLERANCE[dtype]:.2g} is "
            "rounding. Fix: engine.attention=eager, and report this"
        )
    if position.has_effect and not (effect >= 1e-3 and logits_effect > 0.0):
        raise UserError(
            f"E-POS-02 {at}position.scheme={name}: switching it off changes nothing (scores {effect:.2g}, logits "
            f"{logits_effect:.2g}); a model trained so would know no positions. Fix: report this"
        )
    if not shift_error <= 1e-3:
        raise UserError(
            f"E-POS-03 {at}position.scheme={name} claims to be relative, but moving all positions by 1000 changes the "
            f"output by {shift_error:.2g}; at most 1e-3 is rounding. Fix: report this"
        )
    return certificate
