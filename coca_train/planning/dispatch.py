"""A micro batch on the meta device, counted as the model itself runs it, with the choices of another device.

Shape legend: B sequences, T tokens, M memory, C d_model, H query heads, G key/value heads, S keys, D value width,
E dot-product width.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.engine.base import summed_loss
from coca_train.models.attention import AttentionContext
from coca_train.models.kernels import KERNELS, Kernel
from coca_train.models.memory import Memory
from coca_train.models.scores import Part
from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import SequenceShare
from coca_train.planning.attention import resolved, sums_ordered_as
from coca_train.planning.count import ATTENTION, LOSS, Count
from coca_train.planning.exchange import Sent
from coca_train.planning.outline import Outline

aten = torch.ops.aten


def micro_batch(
    outline: Outline,
    device: str,
    *,
    with_documents: bool = False,
    places: Collection[str] = ("meta",),
    sent: Sent | None = None,
) -> Count:
    """Forward and backward over one micro batch, every operation as `device` (cpu or cuda) dispatches it.

    with_documents: tokens do not see those of other documents. places: with `cpu`, also what the host computes. sent:
    is told what goes to other ranks, where they share the sequences.
    """
    model, train, n_ranks = outline.model, outline.config.train, outline.config.engine.sequence_parallel
    ids = np.zeros(train.seq_len + 1, np.int64)
    row = Row(ids, train.seq_len, (train.seq_len // 2,) if with_documents else None)
    count = Count(places, train.seq_len - 1)
    model.train()

    def run(tokens_BT: Tensor, targets_BT: Tensor, pos_BT: Tensor, doc_BT: Tensor | None) -> Tensor:
        """From where the batch is on the device."""
        with Count(longest=train.seq_len - 1):  # what is sent once and kept is sent here
            model.contexts(pos_BT, pos_BT, doc_BT)
            model.embedded(tokens_BT, pos_BT)
        memory = _memory(model, train.micro_batch_size, outline.dtype)
        with sums_ordered_as(outline.config.engine), counted(model, count, device), count:
            loss = model(tokens_BT, targets_BT, pos_BT, doc_BT, memory=memory)
            loss.backward()
        return loss

    model.sequence = None if n_ranks == 1 else SequenceShare(0, n_ranks, sent or Sent())
    try:
        summed_loss(run, collate([row] * train.micro_batch_size), torch.device("meta"))
    finally:
        model.sequence = None
    model.zero_grad(set_to_none=True)
    return count


@contextmanager
def counted(model: Transformer, count: Count, device: str) -> Iterator[None]:
    """Tells `count` where the model is: in which block, its attention, the loss. device: the one that chooses."""
    hooks, entered = [], []

    def around(module: nn.Module, **scope: Any) -> None:
        def enter(*_: object) -> None:
            # In here, not around the step: autograd leaves such modes, and blocks that are computed again need it.
            entered.append(DeviceChoices(device))
            entered[-1].__enter__()
            count.enter(**scope)

        def leave(*_: object) -> None:
            count.leave()
            entered.pop().__exit__(None, None, None)

        hooks.append(module.register_forward_pre_hook(enter))
        # Always: a block that is computed again stops by an exception when it has what is needed.
        hooks.append(module.register_forward_hook(leave, always_call=True))

    around(model, part=None)
    for number, (kind, block) in enumerate(zip(model.kinds, model.blocks, strict=True)):
        around(block, block=number, share=model.visibilities[kind].share(model.shape.max_seq_len))
    around(model.final_norm)
    around(model.head, part=LOSS)
    kernel = _kernel(model.attention, device)

    def run(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        with count.scope(part=ATTENTION):
            return kernel(parts, v_BSGD, scale)

    contexts = model.contexts

    def of_device(*given: Any) -> dict[str, AttentionContext]:
        return {kind: context._replace(device=device) for kind, context in contexts(*given).items()}

    def scored(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return given, {**named, "device": device}

    hooks.append(model.head.register_forward_pre_hook(scored, with_kwargs=True))
    # Of this one instance.
    model.kernel, model.contexts = lambda: run, of_device  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.kernel, model.contexts
        for hook in hooks:
            hook.remove()


def _kernel(configured: str, device: str) -> Kernel:
    """What engine.attention does on `device`: the project's own kernels themselves, in place of a compiled one fused
    attention over the same tensors."""

    def kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        name = resolved(configured, device, parts, v_BSGD)
        if name != "flex" or not v_BSGD.is_meta:
            return KERNELS[name](parts, v_BSGD, scale)
        v_BGSD = v_BSGD.transpose(1, 2)
        views = [
            aten._scaled_dot_product_flash_attention(
                part.q_BTHE.transpose(1, 2), part.k_BSGE.transpose(1, 2), v_BGSD, is_causal=True, scale=scale
            )[0]
            for part in parts
        ]
        out_BHTE = views[0] if len(views) == 1 else torch.stack(views).sum(0)
        return out_BHTE[..., : v_BSGD.shape[-1]].transpose(1, 2)

    return kernel


class DeviceChoices(TorchFunctionMode):
    """What torch runs on `device` for tensors of the meta device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._cuda = device == "cuda"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and args[0].is_meta and kwargs.get("attn_mask") is None:
            causal = {"is_causal": kwargs["is_causal"], "scale": kwargs["scale"]}
            flash = aten._scaled_dot_product_flash_attention if self._cuda else _CPU_FLASH
            return flash(*args, **causal)[0]
        if func is F.rms_norm and args[0].is_meta and self._cuda:
            # One kernel there, many on the meta device. LayerNorm is one everywhere and moves the same, a mean apart.
            return F.layer_norm(args[0], args[1], kwargs["weight"], None, kwargs["eps"])
        return func(*args, **kwargs)


_CPU_FLASH = aten._scaled_dot_product_flash_attention_for_cpu


def _memory(model: Transformer, n_rows: int, dtype: torch.dtype) -> Memory | None:
    """As a scheme with recurrence is given it; None for the others."""
    n_before, width = model.position.memory_len, model.config.d_model
    if not n_before:
        return None
    hidden = [torch.empty(n_rows, n_before, width, dtype=dtype, device="meta") for _ in model.kinds]
    return Memory(hidden, torch.empty(n_rows, dtype=torch.int64, device="meta"))
