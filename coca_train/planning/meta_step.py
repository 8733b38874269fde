"""One training step on the meta device, where nothing is allocated: its operations, its FLOPs, what it sends.

The model itself runs, forward and backward, and chooses its kernels as on the device that is planned for. Kernels that
are one operation there are one here (fused attention, RMSNorm); meta_attention.py has the stand-ins for attention.

Shape legend: B batch, T queries, S keys, C d_model, G key/value heads, D value width.
"""

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from coca_train.attention.kernels import Kernel
from coca_train.attention.scores import Part
from coca_train.config.schema import EngineConfig
from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.engine.base import summed_loss
from coca_train.models.layers import AttentionContext
from coca_train.models.memory import Memory
from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import SequenceShare
from coca_train.planning.count import ATTENTION, LOSS, META, Arguments, Count, Options, Scope
from coca_train.planning.meta_attention import Calls, counted_kernel
from coca_train.planning.outline import Outline
from coca_train.runtime.device import device_type, pretend_device
from coca_train.tracking.throughput import flops_per_token

aten = torch.ops.aten
Contexts = dict[str, AttentionContext]


class DeviceKernels(TorchFunctionMode):
    """Run the operations that torch has on the pretended device, for tensors of the meta device.

    for_memory: what they keep has to be right, not which operations they are.
    """

    def __init__(self, for_memory: bool) -> None:
        super().__init__()
        self.for_memory = for_memory

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        kwargs, x = kwargs or {}, args[0] if args else None
        if not isinstance(x, Tensor) or not x.is_meta:
            return func(*args, **kwargs)
        on_cuda = device_type(x) == "cuda"
        if func is F.scaled_dot_product_attention and kwargs.get("attn_mask") is None:
            fused = aten._scaled_dot_product_flash_attention
            attend = fused if on_cuda else aten._scaled_dot_product_flash_attention_for_cpu
            return attend(*args, is_causal=kwargs["is_causal"], scale=kwargs["scale"])[0]
        if func is F.rms_norm and on_cuda:
            # One kernel there, many on the meta device. LayerNorm is one everywhere and moves the same, but for a mean.
            if self.for_memory:
                return _FusedNorm.apply(x, kwargs["weight"])
            return aten.layer_norm(x, args[1], kwargs["weight"], None, kwargs["eps"])
        return func(*args, **kwargs)


class _Context(Protocol):
    """What autograd keeps of a call."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    nbytes: list[int]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _FusedNorm(torch.autograd.Function):
    """RMSNorm as CUDA's one kernel: keep its input and a float32 scale for each token."""

    @staticmethod
    def forward(ctx: _Context, x_BTC: Tensor, weight_C: Tensor) -> Tensor:
        ctx.save_for_backward(x_BTC, weight_C, x_BTC.new_empty(x_BTC.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x_BTC)

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors[:2]
        return tuple(
            torch.empty_like(x) if need else None for x, need in zip(tensors, ctx.needs_input_grad, strict=True)
        )


class _Exchanged(torch.autograd.Function):
    """Stand in for the exchange between ranks that share sequences (models/ulysses.py): receive as much as is sent, and
    note how much. Its own transpose."""

    @staticmethod
    def forward(ctx: _Context, x_PBtW: Tensor, nbytes: list[int]) -> Tensor:
        ctx.nbytes = nbytes
        nbytes.append(x_PBtW.nbytes)
        return torch.empty_like(x_PBtW.contiguous())

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.nbytes.append(grads[0].nbytes)
        return torch.empty_like(grads[0].contiguous()), None


@contextmanager
def run_as_on(
    device: str,
    model: Transformer,
    kernel_of: Callable[[str], Kernel],
    count: Count | None = None,
    contexts: Contexts | None = None,
) -> Iterator[None]:
    """Run the model inside as on `device` (cpu or cuda), where layers of a type attend by the kernel of that type; tell
    `count` which block, attention or loss runs.

    contexts: filled by `build_contexts`, and what layers share from then on; None: each forward makes its own.
    """
    hooks, entered = [], list[DeviceKernels]()
    build: Callable[..., Contexts] = model.contexts

    def add_hooks(module: nn.Module, scope: Scope | None) -> None:
        def enter(*_: object) -> None:
            # In here, not around the step: autograd leaves such modes, and blocks that are recomputed need it.
            entered.append(DeviceKernels(for_memory=count is None))
            entered[-1].__enter__()
            if count is not None:
                count.enter(scope or count.scope)

        def leave(*_: object) -> None:
            if count is not None:
                count.leave()
            entered.pop().__exit__(None, None, None)

        hooks.append(module.register_forward_pre_hook(enter))
        # Always: a block that is recomputed stops by an exception when it has what is needed.
        hooks.append(module.register_forward_hook(leave, always_call=True))

    add_hooks(model, Scope())
    for number, (kind, block) in enumerate(zip(model.layer_types, model.blocks, strict=True)):
        add_hooks(block, Scope(None, number, model.attention_patterns[kind].share(model.shape.max_seq_len)))
    add_hooks(model.final_norm, None)
    add_hooks(model.head, Scope(LOSS))

    def counted(kernel: Kernel) -> Kernel:
        def attend(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
            if count is None:
                return kernel(parts, v_BSGD, scale)
            count.enter(count.scope._replace(part=ATTENTION))
            try:
                return kernel(parts, v_BSGD, scale)
            finally:
                count.leave()

        return attend

    def build_or_share(*args: object) -> Contexts:
        if contexts:
            return contexts
        return {kind: each._replace(kernel=counted(kernel_of(kind))) for kind, each in build(*args).items()}

    model.contexts = build_or_share  # type: ignore[method-assign]  # of this one instance
    try:
        with pretend_device(device):
            yield
    finally:
        del model.contexts
        for hook in hooks:
            hook.remove()


@contextmanager
def configured(engine: EngineConfig, model: Transformer, exchanged: list[int] | None = None) -> Iterator[None]:
    """Let the model recompute, and share sequences among as many ranks, as this engine does, and ask torch for
    deterministic algorithms where it does: kernels are chosen by that (attention/flex.py).

    exchanged: takes the bytes of each exchange, forward and backward, including what a rank keeps.
    """
    nbytes: list[int] = [] if exchanged is None else exchanged
    ordered, checkpointing = torch.are_deterministic_algorithms_enabled(), model.activation_checkpointing
    torch.use_deterministic_algorithms(engine.deterministic)
    model.activation_checkpointing = engine.activation_checkpointing
    if engine.sequence_parallel > 1:
        model.sequence = SequenceShare(0, engine.sequence_parallel, lambda x_PBtW: _Exchanged.apply(x_PBtW, nbytes))
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(ordered)
        model.activation_checkpointing, model.sequence = checkpointing, None


def build_contexts(model: Transformer, n_rows: int, seq_len: int) -> Contexts:
    """Build contexts with positions of the host, whose values can be read, and the tables the schemes make of them."""
    n_before = model.position.memory_len
    pos_BS = torch.arange(n_before + seq_len).expand(n_rows, -1)  # every row has its own, as in a batch
    return model.contexts(pos_BS[:, n_before:] if n_before else pos_BS, pos_BS)


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
        self._known: dict[int, object] = {id(storage): storage for storage in self._before}

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        options: Options = kwargs or {}
        places = {x.is_meta for x in tree_leaves((args, options)) if isinstance(x, Tensor) and x.ndim}
        if len(places) == 2:
            args, options = tree_map_only(Tensor, _to_meta, (args, options))
        out = func(*args, **options)
        for leaf in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(leaf, Tensor) and leaf.is_meta:
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return

        def free(_: object) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, free)
        self.live += size
        self.peak = max(self.peak, self.live)


def _to_meta(tensor: Tensor) -> Tensor:
    """Return a tensor of the host by its shape alone; single numbers stay, since their values may be read."""
    return tensor if tensor.is_meta or tensor.ndim == 0 else torch.empty_like(tensor, device="meta")


def count_operations(model: Transformer, count: Count, device: str) -> AbstractContextManager[None]:
    """Return a context that tells `count` which part of the model runs, with kernels chosen as on `device`."""
    return run_as_on(device, model, lambda _: counted_kernel(model.attention), count)


def count_micro_batch(
    outline: Outline, device: str, *, with_documents: bool = False, places: Collection[str] = ("meta",)
) -> Count:
    """Run one micro batch forward and backward, and count every operation as `device` (cpu or cuda) dispatches it.

    with_documents: tokens do not see those of other documents. places: with `cpu`, also what the host computes.
    """
    model, engine, train = outline.model, outline.config.engine, outline.config.train
    ids = np.zeros(train.seq_len + 1, np.int64)
    row = Row(ids, train.seq_len, (train.seq_len // 2,) if with_documents else None)
    count = Count(places, train.seq_len - 1)
    model.train()

    def run(tokens_BT: Tensor, targets_BT: Tensor, pos_BT: Tensor, doc_BT: Tensor | None) -> Tensor:
        with Count(longest=train.seq_len - 1):  # what is sent to the device once and kept is sent here
            model.contexts(pos_BT, pos_BT, doc_BT)
            model.add_positions(model.embed(tokens_BT), pos_BT)
        memory = new_memory(model, train.micro_batch_size, outline.dtype)
        with count_operations(model, count, device), count:
            loss = model(tokens_BT, targets_BT, pos_BT, doc_BT, memory=memory)
            loss.backward()
        return loss

    with configured(engine, model, count.exchanged):
        summed_loss(run, collate([row] * train.micro_batch_size), META)
    model.zero_grad(set_to_none=True)
    return count


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
    what the scheme's hook adds, linear attention by its state, backward twice forward wherever it runs.
    """
    seq_len, model = outline.config.train.seq_len, outline.model
    engine = replace(outline.config.engine, activation_checkpointing="none", sequence_parallel=1)
    width = model.shape.n_heads * model.shape.head_dim
    model.train()
    calls = {kind: Calls(model.shape.n_heads) for kind in model.layer_types}
    tokens_BT = torch.empty(1, seq_len, dtype=torch.int64, device="meta")
    pos_BT = torch.arange(seq_len)[None]
    memories = [new_memory(model, 1, outline.dtype) for _ in range(2)]  # one for each forward
    contexts: Contexts = {}
    # As on a CPU: the same FLOPs, and the counter knows all its products. The tracker moves tables of the host.
    on_cpu = run_as_on("cpu", model, lambda kind: calls[kind].kernel, contexts=contexts)
    with configured(engine, model), MemoryTracker(), on_cpu:
        contexts |= build_contexts(model, 1, seq_len)
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model(tokens_BT, None, pos_BT, memory=memories[0])  # logits: the loss makes its gradients as it goes
        n_forward, of_attention = {}, {}
        for kind, counted in calls.items():
            n_forward[kind], share = counted.forward, model.attention_patterns[kind].share(seq_len)
            of_pairs = flops_per_token(0, share, width, seq_len) / 3
            of_attention[kind] = of_pairs + counted.of_hooks / counted.forward * share * seq_len / 2
            if counted.of_states:
                of_attention[kind] = counted.of_states / counted.forward
        with FlopCounterMode(display=False) as step:
            model(tokens_BT, tokens_BT, pos_BT, memory=memories[1]).backward()
    model.zero_grad(set_to_none=True)
    once, both = (counter.get_total_flops() / seq_len for counter in (forward, step))
    return Flops(
        once + sum(n * of_attention[kind] for kind, n in n_forward.items()),
        both - once + sum(2 * counted.backward * of_attention[kind] for kind, counted in calls.items()),
    )
