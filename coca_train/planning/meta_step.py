"""One training step on the meta device, where nothing is allocated: its operations, its FLOPs, what it sends.

The model itself runs, forward and backward, and chooses its kernels as on the device that is planned for. Kernels that
are one operation there are one here (fused attention, RMSNorm); meta_attention.py has the stand-ins for attention.

Shape legend: B batch, T queries, S keys, C d_model, G key/value heads, D value width.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from coca_train.attention.kernels import KERNELS, Kernel
from coca_train.attention.scores import Part
from coca_train.config.schema import EngineConfig
from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.engine.base import summed_loss
from coca_train.models.layers import AttentionContext
from coca_train.models.memory import Memory
from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import SequenceShare
from coca_train.planning.count import ATTENTION, LOSS, Count
from coca_train.planning.meta_attention import Calls, counted_kernel
from coca_train.planning.outline import Outline
from coca_train.runtime.device import device_type, pretend_device
from coca_train.tracking.throughput import flops_per_token

aten = torch.ops.aten


class DeviceKernels(TorchFunctionMode):
    """Run the operations that torch has on the pretended device, for tensors of the meta device.

    for_memory: what they keep has to be right, not which operations they are.
    """

    def __init__(self, for_memory: bool) -> None:
        super().__init__()
        self.for_memory = for_memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_cuda = bool(args) and isinstance(args[0], Tensor) and args[0].is_meta and device_type(args[0]) == "cuda"
        if func is F.scaled_dot_product_attention and args[0].is_meta and kwargs.get("attn_mask") is None:
            fused = aten._scaled_dot_product_flash_attention
            attend = fused if on_cuda else aten._scaled_dot_product_flash_attention_for_cpu
            return attend(*args, is_causal=kwargs["is_causal"], scale=kwargs["scale"])[0]
        if func is F.rms_norm and on_cuda:
            # One kernel there, many on the meta device. LayerNorm is one everywhere and moves the same, but for a mean.
            if self.for_memory:
                normed: Any = _FusedNorm.apply(args[0], kwargs["weight"])
                return normed
            return F.layer_norm(args[0], args[1], kwargs["weight"], None, kwargs["eps"])
        return func(*args, **kwargs)


class _FusedNorm(torch.autograd.Function):
    """RMSNorm as CUDA's one kernel: keep its input and a float32 scale for each token."""

    @staticmethod
    def forward(ctx: Any, x_BTC: Tensor, weight_C: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTC, weight_C, x_BTC.new_empty(x_BTC.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x_BTC)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_BTC, weight_C, _ = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad_x_BTC = torch.empty_like(x_BTC) if needs_x else None
        grad_weight_C = torch.empty_like(weight_C) if needs_weight else None
        return grad_x_BTC, grad_weight_C


@contextmanager
def run_as_on(device: str, model: Transformer, kernel: Kernel, count: Count | None = None) -> Iterator[None]:
    """Run the model inside as on `device` (cpu or cuda); tell `count` which block, attention or loss runs."""
    hooks, entered = [], []

    def add_hooks(module: nn.Module, **scope: Any) -> None:
        def enter(*_: object) -> None:
            # In here, not around the step: autograd leaves such modes, and blocks that are recomputed need it.
            entered.append(DeviceKernels(for_memory=count is None))
            entered[-1].__enter__()
            if count is not None:
                count.enter(**scope)

        def leave(*_: object) -> None:
            if count is not None:
                count.leave()
            entered.pop().__exit__(None, None, None)

        hooks.append(module.register_forward_pre_hook(enter))
        # Always: a block that is recomputed stops by an exception when it has what is needed.
        hooks.append(module.register_forward_hook(leave, always_call=True))

    add_hooks(model, part=None)
    for number, (kind, block) in enumerate(zip(model.layer_types, model.blocks, strict=True)):
        add_hooks(block, block=number, share=model.attention_patterns[kind].share(model.shape.max_seq_len))
    add_hooks(model.final_norm)
    add_hooks(model.head, part=LOSS)

    def attend(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        with nullcontext() if count is None else count.scope(part=ATTENTION):
            return kernel(parts, v_BSGD, scale)

    build = model.contexts
    try:
        with (
            pretend_device(device),
            override_contexts(
                model, lambda *args: {kind: each._replace(kernel=attend) for kind, each in build(*args).items()}
            ),
        ):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def override_contexts(model: Transformer, build: Callable[..., dict[str, AttentionContext]]) -> Iterator[None]:
    """Let this one model get what its layers share from `build`."""
    before = vars(model).get("contexts")  # an override around this one
    model.contexts = build  # type: ignore[method-assign]  # of this one instance
    try:
        yield
    finally:
        del model.contexts
        if before is not None:
            model.contexts = before


@contextmanager
def use_contexts(
    model: Transformer, contexts: Mapping[str, AttentionContext], checkpointing: str = "none", n_ranks: int = 1
) -> Iterator[None]:
    """Run the model inside with these contexts, a way of activation checkpointing, and ranks that share sequences."""
    before, model.activation_checkpointing = model.activation_checkpointing, checkpointing
    model.sequence = None if n_ranks == 1 else SequenceShare(0, n_ranks, Exchange())
    try:
        with override_contexts(model, lambda *_: dict(contexts)):
            yield
    finally:
        model.activation_checkpointing, model.sequence = before, None


def build_contexts(model: Transformer, n_rows: int, seq_len: int) -> dict[str, AttentionContext]:
    """Build contexts with positions of the host, whose values can be read, and the tables the schemes make of them."""
    n_before = model.position.memory_len
    pos_BS = torch.arange(n_before + seq_len).expand(n_rows, -1)  # every row has its own, as in a batch
    return model.contexts(pos_BS[:, n_before:] if n_before else pos_BS, pos_BS)


@contextmanager
def sums_ordered_as(engine: EngineConfig) -> Iterator[None]:
    """Ask torch for deterministic algorithms where this engine does: kernels are chosen by it (attention/flex.py)."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(engine.deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Exchange:
    """Stand in for the exchange between ranks that share sequences (models/ulysses.py): receive as much as is sent."""

    def __init__(self) -> None:
        self.nbytes: list[int] = []  # of each exchange, forward and backward, including what a rank keeps

    def __call__(self, x_PBtW: Tensor) -> Tensor:
        sent: Any = _Exchanged.apply(x_PBtW, self)
        return sent

    def send(self, x_PBtW: Tensor) -> Tensor:
        """Return what would be received, in a new tensor."""
        self.nbytes.append(x_PBtW.numel() * x_PBtW.element_size())
        return torch.empty_like(x_PBtW.contiguous())


class _Exchanged(torch.autograd.Function):
    """Its own transpose."""

    @staticmethod
    def forward(ctx: Any, x_PBtW: Tensor, by: Exchange) -> Tensor:
        ctx.by = by
        return by.send(x_PBtW)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.by.send(grads[0]), None


def new_memory(model: Transformer, n_rows: int, dtype: torch.dtype) -> Memory | None:
    """Return the memory of a scheme with recurrence; None for the others."""
    n_before, width = model.position.memory_len, model.config.d_model
    if not n_before:
        return None
    hidden = [torch.empty(n_rows, n_before, width, dtype=dtype, device="meta") for _ in model.layer_types]
    return Memory(hidden, torch.empty(n_rows, dtype=torch.int64, device="meta"))


class MemoryTracker(TorchDispatchMode):
    """Count the bytes of live tensors that were allocated inside: `live` now, `peak` at most.

    before: tensors that do not count, nor do views of them. A tensor of the host that meets one of the meta device (a
    table of angles, a mask) is moved to it, where a real run would have allocated it.
    """

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._before = [tensor.untyped_storage() for tensor in before]  # held, so that no other takes their id
        self._known: dict[int, Any] = {id(storage): storage for storage in self._before}

    def __torch_dispatch__(self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        places = {x.is_meta for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.ndim}
        if len(places) == 2:
            args, kwargs = tree_map_only(Tensor, _to_meta, (args, kwargs))
        out = func(*args, **kwargs)
        for leaf in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(leaf, Tensor) and leaf.is_meta:
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return

        def free(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, free)
        self.live += size
        self.peak = max(self.peak, self.live)


def _to_meta(tensor: Tensor) -> Tensor:
    """Return a tensor of the host by its shape alone; single numbers stay, since their values may be read."""
    return tensor if tensor.is_meta or tensor.ndim == 0 else torch.empty_like(tensor, device="meta")


def count_micro_batch(
    outline: Outline,
    device: str,
    *,
    with_documents: bool = False,
    places: Collection[str] = ("meta",),
    exchange: Exchange | None = None,
) -> Count:
    """Run one micro batch forward and backward, and count every operation as `device` (cpu or cuda) dispatches it.

    with_documents: tokens do not see those of other documents. places: with `cpu`, also what the host computes.
    exchange: notes what goes to other ranks, where they share the sequences.
    """
    model, train, n_ranks = outline.model, outline.config.train, outline.config.engine.sequence_parallel
    ids = np.zeros(train.seq_len + 1, np.int64)
    row = Row(ids, train.seq_len, (train.seq_len // 2,) if with_documents else None)
    count = Count(places, train.seq_len - 1)
    model.train()

    def run(tokens_BT: Tensor, targets_BT: Tensor, pos_BT: Tensor, doc_BT: Tensor | None) -> Tensor:
        with Count(longest=train.seq_len - 1):  # what is sent to the device once and kept is sent here
            model.contexts(pos_BT, pos_BT, doc_BT)
            model.add_positions(model.embed(tokens_BT), pos_BT)
        memory = new_memory(model, train.micro_batch_size, outline.dtype)
        with sums_ordered_as(outline.config.engine), count_operations(model, count, device), count:
            loss = model(tokens_BT, targets_BT, pos_BT, doc_BT, memory=memory)
            loss.backward()
        return loss

    model.sequence = None if n_ranks == 1 else SequenceShare(0, n_ranks, exchange or Exchange())
    try:
        summed_loss(run, collate([row] * train.micro_batch_size), torch.device("meta"))
    finally:
        model.sequence = None
    model.zero_grad(set_to_none=True)
    return count


def count_operations(model: Transformer, count: Count, device: str) -> AbstractContextManager[None]:
    """Return a context that tells `count` which part of the model runs, with kernels chosen as on `device`."""
    return run_as_on(device, model, counted_kernel(model.attention), count)


@dataclass(frozen=True)
class Flops:
    """FLOPs of one token, activations computed once (what MFU counts; checkpointing computes more)."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward


def count_flops(outline: Outline) -> Flops:
    """Count a step over one sequence, as autograd runs it.

    A frozen weight gets no gradient, and below the lowest trained parameter nothing runs backward. Attention is
    counted as in `throughput.flops_per_token` (causal: half of all pairs, in layers that see less only those seen) with
    what the scheme's hook adds, backward twice forward wherever it runs.
    """
    seq_len, model = outline.config.train.seq_len, outline.model
    width = model.shape.n_heads * model.shape.head_dim
    model.train()
    calls = {kind: Calls() for kind in model.layer_types}
    tokens_BT = torch.empty(1, seq_len, dtype=torch.int64, device="meta")
    pos_BT = torch.arange(seq_len)[None]
    # As on a CPU: the same FLOPs, and the counter knows all its products. The tracker moves tables of the host.
    with MemoryTracker(), run_as_on("cpu", model, KERNELS["eager"]):
        contexts = build_contexts(model, 1, seq_len)
        contexts = {kind: context._replace(kernel=calls[kind].kernel) for kind, context in contexts.items()}
        memories = [new_memory(model, 1, outline.dtype) for _ in range(2)]  # one for each forward
        with use_contexts(model, contexts):
            with FlopCounterMode(display=False) as forward, torch.no_grad():
                model(tokens_BT, None, pos_BT, memory=memories[0])  # logits: the loss makes its gradients as it goes
            n_forward, of_attention = {}, {}
            for kind, counted in calls.items():
                n_forward[kind], share = counted.forward, model.attention_patterns[kind].share(seq_len)
                of_pairs = flops_per_token(0, share, width, seq_len) / 3
                of_attention[kind] = of_pairs + counted.of_hooks / counted.forward * share * seq_len / 2
            with FlopCounterMode(display=False) as step:
                model(tokens_BT, tokens_BT, pos_BT, memory=memories[1]).backward()
    model.zero_grad(set_to_none=True)
    once, both = (counter.get_total_flops() / seq_len for counter in (forward, step))
    return Flops(
        once + sum(n * of_attention[kind] for kind, n in n_forward.items()),
        both - once + sum(2 * counted.backward * of_attention[kind] for kind, counted in calls.items()),
    )
