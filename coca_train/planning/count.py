"""Every operation of a step as it is dispatched: which part of the step it belongs to, the bytes it moves, its FLOPs.

The same mode counts on the meta device, where a step costs nothing, and on tensors that are real, where the operations
are timed. Bytes: what an operation is given is read once and what it makes is written once, whatever caches keep.
"""

import bisect
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.autograd import _get_sequence_nr
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

LOSS, ATTENTION, LINEAR, ELEMENTWISE, AGAIN = "loss", "attention", "linear", "elementwise", "computed again"
OPTIMIZER, COMMUNICATION = "optimizer", "communication"
FORWARD, BACKWARD = "forward", "backward"

# Nothing is moved: another look at the same memory, or memory that nobody has written to.
VIEWS = frozenset(
    "_unsafe_view _reshape_alias detach alias lift_fresh empty empty_like empty_strided new_empty new_empty_strided "
    "empty_permuted set_ resize_ record_stream".split()
)
# Only the shape of what it is given matters.
SHAPES = frozenset("zeros_like ones_like full_like new_zeros new_ones new_full".split())
# What stood in the memory before is not read.
OVERWRITES = frozenset("copy_ zero_ fill_".split())
# Of the first tensor only some rows, as many as come out.
LOOKUPS = frozenset("embedding gather index_select index".split())
# Into the first tensor goes what the last one has.
SCATTERS = frozenset("scatter_add_ index_add_ index_put_ _index_put_impl_ scatter_".split())
# The device has to tell the host something before it can go on.
LOOKS = frozenset("_local_scalar_dense item is_nonzero nonzero equal masked_select _unique2".split())
FUSED_ATTENTION = "flash_attention"  # in the names of its operations
aten = torch.ops.aten
FLOPS = flop_registry | {
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}


class Access(NamedTuple):
    """Some of a tensor's memory: which memory, where in it, how much."""

    memory: int
    where: tuple[int, int]
    nbytes: int


class Operation(NamedTuple):
    """One operation. block: number of its layer; None: outside of them. phase: forward, computed again, backward.

    given, made: shapes and dtypes of its tensors, by which two runs are compared.
    """

    part: str
    block: int | None
    phase: str
    name: str
    given: tuple[tuple[torch.Size, torch.dtype], ...]
    made: tuple[tuple[torch.Size, torch.dtype], ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    flops: float

    @property
    def nbytes(self) -> int:
        """Read and written."""
        return sum(access.nbytes for access in (*self.reads, *self.writes))

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return (self.given or self.made)[0][1]


class Scope(NamedTuple):
    """Where a step is. share: of the pairs that causality leaves, those that this layer's attention sees."""

    part: str | None = None
    block: int | None = None
    share: float = 1.0


class Count(TorchDispatchMode):
    """Counts operations on tensors of `place` (a type of device) that are dispatched inside.

    syncs: how often the host waits for the device or sends it something, by the line of our code that asks for it.
    Counted on the meta device, where a look finds True, or `longest`: positions are contiguous, all pairs of a tile are
    seen, and distances go that far [tokens]. outside: the part of what is in no scope. around(part, name): what is
    entered while an operation runs.
    """

    def __init__(
        self,
        place: str = "meta",
        longest: int = 1,
        outside: str | None = None,
        around: Callable[[str, str], AbstractContextManager[Any]] = lambda part, name: nullcontext(),
    ) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.syncs: Counter[str] = Counter()
        self._place, self._longest, self._around = place, longest, around
        self._scopes = [Scope(outside)]
        # Autograd numbers its nodes as they are made: by its number a node of the backward pass is found in forward.
        self._since, self._scope_since = [0], [Scope(outside)]
        self._last = Scope(outside)
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._n_memories = 0

    @contextmanager
    def scope(self, **changes: Any) -> Iterator[None]:
        """What is dispatched inside belongs to this part or block, and what autograd makes of it does."""
        self.enter(**changes)
        try:
            yield
        finally:
            self.leave()

    def enter(self, **changes: Any) -> None:
        """`scope`, for hooks."""
        self._scopes.append(self._scopes[-1]._replace(**changes))
        self._mark()

    def leave(self) -> None:
        """The end of `enter`."""
        self._scopes.pop()
        self._mark()

    def _mark(self) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._since.append(_get_sequence_nr())
            self._scope_since.append(self._scopes[-1])

    def _now(self) -> tuple[Scope, str]:
        """Scope and phase of what is dispatched now."""
        if torch._C._current_graph_task_id() == -1:
            return self._scopes[-1], FORWARD
        if len(self._scopes) > 1:  # a block runs forward in the backward pass
            return self._scopes[-1], AGAIN
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        # Others are of a graph that some backward makes for itself, or add gradients up: they belong where that is.
        if 0 <= number < self._since[-1]:
            self._last = self._scope_since[bisect.bisect_right(self._since, number) - 1]
        return self._last, BACKWARD

    def __torch_dispatch__(self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if self._place == "meta":
            if (answer := self._look(name, given, kwargs)) is not None:
                return answer[0]
            args, kwargs = self._sent(name, given, args, kwargs)
        if name in VIEWS or func.is_view:
            return func(*args, **kwargs)
        scope, phase = self._now()
        flops = FLOPS.get(func._overloadpacket)
        part = COMMUNICATION if func.namespace == "c10d" else _part(scope, phase, name, flops is not None)
        with self._around(part, name):
            out = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if any(x.device.type == self._place for x in (*given, *made)):
            n_flops = 0.0 if flops is None else flops(*args, **kwargs, out_val=out)
            # The formula is of all pairs. Causality leaves half of them, a visibility a share of those.
            n_flops *= scope.share / 2 if FUSED_ATTENTION in name else 1
            reads, writes = self._accesses(func, name, given, made, args)
            shapes = (tuple((x.shape, x.dtype) for x in tensors) for tensors in (given, made))
            self.operations.append(Operation(part, scope.block, phase, name, *shapes, reads, writes, n_flops))
        return out

    def _look(self, name: str, given: Sequence[Tensor], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """What an operation answers for which the host must wait for the device; None: it need not."""
        on_device = any(x.is_meta for x in given)
        to_host = name == "_to_copy" and on_device and kwargs.get("device") not in (None, torch.device("meta"))
        if not on_device or not (name in LOOKS or to_host):
            return None
        self._sync(name)
        first = given[0]
        if to_host:
            return (torch.zeros(first.shape, dtype=kwargs.get("dtype") or first.dtype),)
        if name in ("nonzero", "masked_select", "_unique2"):
            return (torch.empty(first.numel(), first.ndim, dtype=torch.int64, device="meta"),)
        return (True if first.dtype == torch.bool or name == "equal" else self._longest,)

    def _sent(self, name: str, given: Sequence[Tensor], args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, tensors of the host as they would be on the device."""
        from_host = [x for x in given if not x.is_meta]
        if name == "lift_fresh":
            if given[0].is_meta:
                self._sync("torch.tensor")
        elif name in ("_to_copy", "copy_"):
            to_device = kwargs.get("device") == torch.device("meta") or (name == "copy_" and given[0].is_meta)
            if from_host and to_device:
                self._sync(name)
        elif any(x.ndim for x in from_host) and len(from_host) < len(given):
            self._sync("a tensor of the host")
            return tree_map_only(Tensor, lambda x: x.to("meta") if x.ndim else x, (args, kwargs))
        return args, kwargs

    def _sync(self, name: str) -> None:
        ours = [
            frame
            for frame in traceback.extract_stack(limit=40)
            if "/coca_train/" in frame.filename and "/planning/" not in frame.filename
        ]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "elsewhere"
        self.syncs[f"{place} {name}"] += 1

    def _accesses(
        self, func: Any, name: str, given: Sequence[Tensor], made: Sequence[Tensor], args: Any
    ) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        """What an operation reads and writes, the same memory once."""
        changed = [
            each
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for each in (value if isinstance(value, (list, tuple)) else [value])
            if isinstance(each, Tensor)
        ]
        if name == "_fused_adamw_":  # says it changes gradients too, which it does for a scale alone
            changed = [x for number, each in enumerate(args[:6]) if number != 1 for x in each]
        if name in LOOKUPS:
            return self._of([*given[1:], *made]), self._of(made)
        if name in SCATTERS:
            rows = self._at(given[0], given[-1].numel() * given[0].element_size())
            return (*self._of(given[1:]), rows), (rows,)
        if name == "embedding_dense_backward":
            rows = self._at(made[0], given[0].nbytes)
            return self._of(given), (*self._of(made), rows)
        read = [] if name in SHAPES else given
        if name in OVERWRITES:
            read = given[1:]
        return self._of(read), self._of([*made, *changed])

    def _of(self, tensors: Sequence[Tensor]) -> tuple[Access, ...]:
        return tuple(dict.fromkeys(self._at(x) for x in tensors if x.device.type == self._place))

    def _at(self, tensor: Tensor, nbytes: int | None = None) -> Access:
        """nbytes: fewer than all of it."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._numbers:
            self._numbers[key] = self._n_memories, ref(storage, lambda _: self._numbers.pop(key))
            self._n_memories += 1
        spread = zip(tensor.shape, tensor.stride(), strict=True)
        numel = math.prod(n for n, stride in spread if stride)  # what is expanded is there once
        size = numel * tensor.element_size() if nbytes is None else nbytes
        return Access(self._numbers[key][0], (tensor.storage_offset(), numel), size)


def _part(scope: Scope, phase: str, name: str, is_product: bool) -> str:
    if phase == AGAIN:
        return AGAIN
    if FUSED_ATTENTION in name:
        return ATTENTION
    return scope.part or (LINEAR if is_product else ELEMENTWISE)
