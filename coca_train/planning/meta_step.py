"""One training step on the meta device, where nothing is allocated: what it keeps, what it computes, what it sends.

The model itself runs, forward and backward, and chooses its kernels as on the device that is planned for. Kernels that
are one operation there are one here (fused attention, RMSNorm). Attention that works tile by tile is run in full where
operations are counted; where memory is watched, one tile stands for all.

Shape legend: B batch, T queries, S keys, t queries and s keys of a tile, M memory, C d_model, H query heads,
G key/value heads, D value width, E dot-product width.
"""

import math
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
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from coca_train.attention import flex, tiled_attention
from coca_train.attention.kernels import KERNELS, RECOMPUTE_ABOVE, Kernel, choose, is_plain
from coca_train.attention.scores import Part, leaves, tensors_of
from coca_train.config.schema import EngineConfig
from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.engine.base import summed_loss
from coca_train.models.layers import AttentionContext
from coca_train.models.memory import Memory
from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import SequenceShare
from coca_train.planning.count import ATTENTION, LOSS, Count
from coca_train.planning.outline import Outline
from coca_train.positions.base import Pairs
from coca_train.runtime.device import device_type, pretend_device
from coca_train.tracking.throughput import flops_per_token

aten = torch.ops.aten

# ---- the model as on another device


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
        given = zip((x_BTC, weight_C), ctx.needs_input_grad, strict=True)
        grad_x_BTC, grad_weight_C = (torch.empty_like(tensor) if need else None for tensor, need in given)
        return grad_x_BTC, grad_weight_C


@contextmanager
def run_as_on(device: str, model: Transformer, kernel: Kernel, count: Count | None = None) -> Iterator[None]:
    """Run the model inside as on `device` (cpu or cuda), and tell `count` which block, attention or loss runs."""
    hooks, entered = [], []

    def around(module: nn.Module, **scope: Any) -> None:
        def enter(*_: object) -> None:
            # In here, not around the step: autograd leaves such modes, and blocks that are computed again need it.
            entered.append(DeviceKernels(for_memory=count is None))
            entered[-1].__enter__()
            if count is not None:
                count.enter(**scope)

        def leave(*_: object) -> None:
            if count is not None:
                count.leave()
            entered.pop().__exit__(None, None, None)

        hooks.append(module.register_forward_pre_hook(enter))
        # Always: a block that is computed again stops by an exception when it has what is needed.
        hooks.append(module.register_forward_hook(leave, always_call=True))

    around(model, part=None)
    for number, (kind, block) in enumerate(zip(model.layer_types, model.blocks, strict=True)):
        around(block, block=number, share=model.attention_patterns[kind].share(model.shape.max_seq_len))
    around(model.final_norm)
    around(model.head, part=LOSS)

    def attend(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        with nullcontext() if count is None else count.scope(part=ATTENTION):
            return kernel(parts, v_BSGD, scale)

    contexts = model.contexts

    def with_kernel(*args: Any) -> dict[str, AttentionContext]:
        return {kind: context._replace(kernel=attend) for kind, context in contexts(*args).items()}

    model.contexts = with_kernel  # type: ignore[method-assign]  # of this one instance
    try:
        with pretend_device(device):
            yield
    finally:
        del model.contexts
        for hook in hooks:
            hook.remove()


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
    """What the ranks of a sequence exchange (models/ulysses.py), where there is one rank: as much comes as goes."""

    def __init__(self) -> None:
        self.nbytes: list[int] = []  # of each time, forward and backward, with what a rank would keep

    def __call__(self, x_PBtW: Tensor) -> Tensor:
        sent: Any = _Exchanged.apply(x_PBtW, self)
        return sent

    def send(self, x_PBtW: Tensor) -> Tensor:
        """Return what would come in its place, in a tensor of its own."""
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


def _new_memory(model: Transformer, n_rows: int, dtype: torch.dtype) -> Memory | None:
    """Return the memory of a scheme with recurrence; None for the others."""
    n_before, width = model.position.memory_len, model.config.d_model
    if not n_before:
        return None
    hidden = [torch.empty(n_rows, n_before, width, dtype=dtype, device="meta") for _ in model.layer_types]
    return Memory(hidden, torch.empty(n_rows, dtype=torch.int64, device="meta"))


# ---- attention


def resolve_kernel(configured: str, parts: Sequence[Part], v_BSGD: Tensor) -> str:
    """Return the name of the kernel that runs in the end where engine.attention names one."""
    n_queries, n_keys = parts[0].q_BTHE.shape[1], v_BSGD.shape[1]
    name = choose(parts, n_keys) if configured == "auto" else configured
    if name == "sdpa" and not (is_plain(parts) and n_queries in (1, n_keys)):
        name = "blocked"
    return "blocked" if name == "flex" and not flex.serves(parts) else name


def counted_kernel(configured: str) -> Kernel:
    """Return the project's own kernels; in place of a compiled one fused attention over the same tensors."""

    def kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        name = resolve_kernel(configured, parts, v_BSGD)
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


def watched_kernel(configured: str) -> Kernel:
    """Return kernels that keep and need the memory of the real ones, without the work of tiles.

    A compiled kernel and attention tile by tile both keep what they are given, their output and the log-sum-exp of each
    query (FlashAttention, arXiv 2205.14135, section 3.1).
    """

    def kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        name = resolve_kernel(configured, parts, v_BSGD)
        tiled = name == "blocked" and v_BSGD.shape[1] > RECOMPUTE_ABOVE and parts[0].q_BTHE.shape[1] > 1
        if not tiled and name != "flex":
            return KERNELS[name](parts, v_BSGD, scale)
        return _attend_linearly(parts, v_BSGD, tile_work=_tile_work(parts[0]) if tiled else None)

    return kernel


class Calls:
    """Count how many layers' attention ran forward and backward, and the FLOPs of its hook for one pair of tokens."""

    def __init__(self) -> None:
        self.forward = self.backward = 0
        self.of_hooks = 0.0

    def kernel(self, parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
        """Attend without any product."""
        self.of_hooks += parts[0].q_BTHE.shape[2] * 2 * hook_products(parts[0])
        return _attend_linearly(parts, v_BSGD, calls=self)


def _attend_linearly(
    parts: Sequence[Part], v_BSGD: Tensor, calls: Calls | None = None, tile_work: Callable[[], None] | None = None
) -> Tensor:
    given = [tensor for part in parts for _, tensor in leaves(tensors_of(part)) if tensor is not None]
    out: Any = _Linear.apply(calls, tile_work, parts[0].q_BTHE.shape[:3], v_BSGD.transpose(1, 2), *given)
    return out


class _Linear(torch.autograd.Function):
    """Keep what attention is given, its output and a log-sum-exp; give gradients to all that want one.

    tile_work: what it takes where attention works tile by tile, while gradients are summed in float32; None: a fused
    kernel, which needs neither.
    """

    @staticmethod
    def forward(
        ctx: Any,
        calls: Calls | None,
        tile_work: Callable[[], None] | None,
        shape_BTH: torch.Size,
        v_BGSD: Tensor,
        *given: Tensor,
    ) -> Tensor:
        ctx.calls, ctx.tile_work = calls, tile_work
        if calls is not None:
            calls.forward += 1
        batch, n_queries, heads = shape_BTH
        if calls is None and tile_work is None:
            # By a name that selective checkpointing knows. Its inputs stand for those that are there already, so they
            # are made where nobody counts.
            with _disable_current_modes():
                like_BTHD = v_BGSD.new_empty(batch, n_queries, heads, v_BGSD.shape[-1])
            out_BHTD, lse_BTH = aten._scaled_dot_product_flash_attention(*[like_BTHD.transpose(1, 2)] * 3)[:2]
            out_BTHD = out_BHTD.transpose(1, 2)
        else:
            out_BTHD = v_BGSD.new_empty(*shape_BTH, v_BGSD.shape[-1])
            lse_BTH = v_BGSD.new_empty(shape_BTH, dtype=torch.float32)
        ctx.save_for_backward(v_BGSD, *given, out_BTHD, lse_BTH)
        return out_BTHD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        if ctx.calls is not None:
            ctx.calls.backward += 1
        v_BGSD, *given, _, _ = ctx.saved_tensors
        wanted = [tensor for tensor, need in zip((v_BGSD, *given), ctx.needs_input_grad[3:], strict=True) if need]
        dtypes = [torch.float32 if ctx.tile_work else tensor.dtype for tensor in wanted]
        sums = [tensor.new_empty(tensor.shape, dtype=dtype) for tensor, dtype in zip(wanted, dtypes, strict=True)]
        if ctx.tile_work is not None:
            ctx.tile_work()
        gradients = iter([total.to(tensor.dtype) for total, tensor in zip(sums, wanted, strict=True)])
        return None, None, None, *(next(gradients) if need else None for need in ctx.needs_input_grad[3:])


def _tile_of(part: Part) -> tuple[int, int]:
    """Return how many queries and keys a tile has."""
    queries, keys = part.q_BTHE.shape[1], part.k_BSGE.shape[1]
    return min(queries, tiled_attention.query_tile([part])), min(keys, tiled_attention.KEY_TILE)


def _tile_work(part: Part) -> Callable[[], None]:
    """Return what allocates and frees the memory of one tile of attention while gradients are taken: float32 scores,
    probabilities and the gradients of both, and what a hook keeps with what goes back along it."""
    shape_BHts = len(part.q_BTHE), part.q_BTHE.shape[2], *_tile_of(part)
    pairs = None if part.score_mod is None else _pairs_of_tile(part, shape_BHts)

    def work() -> None:
        four = torch.empty(4, *shape_BHts, dtype=torch.float32, device="meta")
        if part.hook is not None and pairs is not None:
            with torch.enable_grad():
                inputs = [
                    x.requires_grad_() for x in (pairs.scores_BHts, *pairs.parameters, *pairs.queries, *pairs.keys)
                ]
                rewritten, _ = part.hook.scores(pairs, four.new_empty(*shape_BHts[:3], part.hook.carried))
                torch.autograd.grad(rewritten, inputs, torch.empty_like(rewritten), allow_unused=True)

    return work


def hook_products(part: Part) -> float:
    """Return the multiply-adds that the matrix products of a part's hook cost for one pair of tokens in one head."""
    if part.hook is None:
        return 0.0
    shape_BHts = 1, part.q_BTHE.shape[2], 4, 64
    pairs = _pairs_of_tile(part, shape_BHts)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        part.hook.scores(pairs, pairs.scores_BHts.new_empty(*shape_BHts[:3], part.hook.carried))
    return counter.get_total_flops() / 2 / math.prod(shape_BHts)


def _pairs_of_tile(part: Part, shape_BHts: tuple[int, int, int, int]) -> Pairs:
    """Return a tile of that shape as the part's hook sees it, on the meta device."""
    assert part.score_mod is not None
    batch, _, t, s = shape_BHts

    def tile(tensors: Sequence[Tensor], n_tokens: int) -> tuple[Tensor, ...]:
        shapes = [(min(batch, len(x)), n_tokens, *x.shape[2:]) for x in tensors]
        return tuple(torch.empty(shape, dtype=x.dtype, device="meta") for shape, x in zip(shapes, tensors, strict=True))

    pos_B = min(batch, len(part.layout.pos_BT))
    return Pairs(
        torch.empty(shape_BHts, dtype=torch.float32, device="meta"),
        None,
        torch.empty(pos_B, t, dtype=torch.int64, device="meta"),
        torch.empty(pos_B, s, dtype=torch.int64, device="meta"),
        tuple(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in part.score_mod.parameters),
        tile(part.score_mod.queries, t),
        tile(part.score_mod.keys, s),
    )


# ---- operations


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
        """From where the batch is on the device."""
        with Count(longest=train.seq_len - 1):  # what is sent once and kept is sent here
            model.contexts(pos_BT, pos_BT, doc_BT)
            model.add_positions(model.embed(tokens_BT), pos_BT)
        memory = _new_memory(model, train.micro_batch_size, outline.dtype)
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
    """Return the context in which `count` is told where a model is, its kernels chosen as on `device`."""
    return run_as_on(device, model, counted_kernel(model.attention), count)


# ---- memory


class Watch(TorchDispatchMode):
    """Count the bytes of tensors made inside, until they are let go.

    before: tensors that are there already and do not count, nor do views of them. live: bytes at this moment. peak:
    the most there have been. A tensor of the host that meets one of the meta device (a table of angles, a mask) is
    taken along to it, where a real run would have made it.
    """

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._before = [tensor.untyped_storage() for tensor in before]  # held, so that no other takes their id
        self._known: dict[int, Any] = {id(storage): storage for storage in self._before}

    def __torch_dispatch__(self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        places = {leaf.is_meta for leaf in given if isinstance(leaf, Tensor) and leaf.ndim}
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

        def let_go(_: Any) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, let_go)
        self.live += size
        self.peak = max(self.peak, self.live)


def _to_meta(tensor: Tensor) -> Tensor:
    """Return the shape of a tensor of the host; single numbers stay, as they may be looked at."""
    return tensor if tensor.is_meta or tensor.ndim == 0 else torch.empty_like(tensor, device="meta")


@dataclass(frozen=True)
class Activations:
    """What one micro batch needs beside weights and optimizer [bytes].

    tables: tokens, angles, biases: there for the whole step. kept: what forward leaves behind for backward. peak: the
    most of everything at once, tables and kept tensors included. reading: the same where there is no backward.
    """

    tables: int
    kept: int
    peak: int
    reading: int

    @property
    def working(self) -> int:
        """Above what is kept, at the worst moment: logits, temporaries, gradients on their way."""
        return self.peak - self.tables - self.kept


def watch_activations(
    outline: Outline,
    micro_batch_size: int,
    device: str,
    *,
    checkpointing: str,
    keeps_gradients: bool,
    sequence_parallel: int = 1,
) -> Activations:
    """Watch a forward and backward over micro_batch_size sequences on `device` (cpu or cuda), or over slices of
    them where sequence_parallel ranks share each.

    keeps_gradients: whether the gradients of parameters stay until backward has ended (they count in `peak`), or are
    taken away one by one.
    """
    config, model = outline.config, outline.model
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hooks = [] if keeps_gradients else [each.register_post_accumulate_grad_hook(_release) for each in trained]
    memories = [_new_memory(model, micro_batch_size, outline.dtype) for _ in range(2)]  # one for each forward
    before = [*model.parameters(), *(hidden for memory in memories if memory is not None for hidden in memory.hidden)]
    kernel = watched_kernel(config.engine.attention)
    with sums_ordered_as(config.engine), run_as_on(device, model, kernel), Watch(before) as watch:
        tokens_BT, targets_BT, _pos_BT = (
            torch.empty(micro_batch_size, config.train.seq_len, dtype=torch.int64, device="meta") for _ in range(3)
        )
        contexts = _contexts(model, micro_batch_size, config.train.seq_len)
        pos_BT = torch.arange(config.train.seq_len).expand(micro_batch_size, -1)
        tables = watch.live  # tokens, and what the scheme makes of parameters
        # Before the step: `peak` only rises, and reading needs less than forward and backward do.
        with torch.no_grad(), _given(model, contexts, "none", sequence_parallel):
            model(tokens_BT, targets_BT, pos_BT, memory=memories[0])
        memories[0] = None
        reading = watch.peak
        with _given(model, contexts, checkpointing, sequence_parallel):
            loss = model(tokens_BT, targets_BT, pos_BT, memory=memories[1])
            kept = watch.live - tables
            loss.backward()
    for hook in hooks:
        hook.remove()
    model.zero_grad(set_to_none=True)
    of_host = _table_bytes(contexts)
    return Activations(tables + of_host, kept, watch.peak + of_host, reading + of_host)


def _contexts(model: Transformer, n_rows: int, seq_len: int) -> dict[str, AttentionContext]:
    """Return positions of the host, which may be looked at, and the tables the schemes make of them."""
    n_before = model.position.memory_len
    pos_BS = torch.arange(n_before + seq_len).expand(n_rows, -1)  # every row has its own, as the data gives them
    return model.contexts(pos_BS[:, n_before:] if n_before else pos_BS, pos_BS)


@contextmanager
def _given(
    model: Transformer, contexts: Mapping[str, AttentionContext], checkpointing: str = "none", n_ranks: int = 1
) -> Iterator[None]:
    """Let the model use contexts that are there already, a way of activation checkpointing, ranks that share."""
    before, make_contexts = model.activation_checkpointing, model.contexts
    model.activation_checkpointing = checkpointing
    model.sequence = None if n_ranks == 1 else SequenceShare(0, n_ranks, Exchange())
    model.contexts = lambda *_: dict(contexts)  # type: ignore[method-assign]  # of this one instance
    try:
        yield
    finally:
        model.contexts = make_contexts  # type: ignore[method-assign]  # as `run_as_on` has it
        model.activation_checkpointing, model.sequence = before, None


def _release(parameter: Tensor) -> None:
    parameter.grad = None


def _table_bytes(contexts: Mapping[str, AttentionContext]) -> int:
    """Tables of angles and biases, which all layers of a kind share [bytes]; what is there twice counts once."""
    tables = [tables for context in contexts.values() for tables, _ in context.views]
    tensors = [leaf for leaf in tree_leaves(tables) if isinstance(leaf, Tensor)]
    storages = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors if not tensor.is_meta}
    return sum(storage.nbytes() for storage in storages.values())


# ---- FLOPs


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
    # As on a CPU: the same FLOPs, and the counter knows all its products. Watch takes tables of the host along.
    with Watch(), run_as_on("cpu", model, KERNELS["eager"]):
        contexts = _contexts(model, 1, seq_len)
        contexts = {kind: context._replace(kernel=calls[kind].kernel) for kind, context in contexts.items()}
        memories = [_new_memory(model, 1, outline.dtype) for _ in range(2)]  # one for each forward
        with _given(model, contexts):
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
