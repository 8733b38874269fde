"""Every operation of a step as it is dispatched: its part of the step, the bytes it moves, its FLOPs.

The same mode counts on the meta device, where a step costs nothing, and on real tensors, where operations are timed.
Bytes: inputs are read once and outputs are written once, whatever caches keep.
"""

import bisect
import math
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

LOSS, ATTENTION, LINEAR, ELEMENTWISE, RECOMPUTED = "loss", "attention", "linear", "elementwise", "computed again"
OPTIMIZER, COMMUNICATION = "optimizer", "communication"
FORWARD, BACKWARD = "forward", "backward"
# Whose lines are named: our code's, but not those that count. (A checkout may have an environment inside.)
PLANNING = f"{Path(__file__).parent}/"
OURS = f"{Path(__file__).parent.parent}/"

# Nothing is moved: another look at the same memory, or memory that nobody has written to.
VIEWS = frozenset((
    "_unsafe_view", "_reshape_alias", "detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "empty_permuted", "set_", "resize_", "record_stream",
))  # fmt: skip
NO_KERNELS = VIEWS | {"_local_scalar_dense", "item"}
# Only the shape of the inputs matters.
SHAPES = frozenset(["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"])
# What stood in the memory before is not read.
OVERWRITES = frozenset(["copy_", "zero_", "fill_"])
# Of the first tensor only some rows, as many as come out.
LOOKUPS = frozenset(["embedding", "gather", "index_select", "index"])
# Into the first tensor goes what the last one has.
SCATTERS = frozenset(["scatter_add_", "index_add_", "index_put_", "_index_put_impl_", "scatter_"])
# The device has to tell the host something before it can go on.
LOOKS = frozenset(["_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select", "_unique2"])
PRODUCTS = {  # where their factors begin
    "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addmm_": 1, "baddbmm_": 1, "add_wider_product": 1,
}  # fmt: skip
FUSED_ATTENTION = "flash_attention"  # in the names of its operations
FUSED_GRADIENTS = "_fused_adamw_", "grads"
META = torch.device("meta")

Arguments = tuple[object, ...]
Options = dict[str, object]


class Operation(NamedTuple):
    """One operation."""

    part: str
    block: int | None  # number of its layer; None: outside of the layers
    phase: str  # forward, computed again, backward
    name: str
    inputs: tuple[tuple[torch.Size, torch.dtype], ...]
    outputs: tuple[tuple[torch.Size, torch.dtype], ...]
    reads: tuple[int, ...]  # bytes of each memory, once
    writes: tuple[int, ...]
    flops: float

    @property
    def nbytes(self) -> int:
        """Read and written."""
        return sum(self.reads) + sum(self.writes)

    @property
    def is_attention(self) -> bool:
        """Whether it is fused attention."""
        return FUSED_ATTENTION in self.name

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in: a product of narrow numbers may be added to a wide sum."""
        dtypes = [dtype for _, dtype in self.inputs or self.outputs]
        floating = [dtype for dtype in dtypes if dtype.is_floating_point]
        return min(floating or dtypes[:1], key=lambda dtype: dtype.itemsize)


class Scope(NamedTuple):
    """Where a step is. share: of the pairs that causality leaves, those that this layer's attention sees."""

    part: str | None = None
    block: int | None = None
    share: float = 1.0


class Count(TorchDispatchMode):
    """Counts operations on tensors of `places` (types of devices) that are dispatched inside.

    syncs: how often the host waits for the device or sends it a tensor, by the line of our code. On the meta device a
    value that is read is True, or `longest`: positions are contiguous, all pairs of a tile are seen, and distances go
    that far [tokens]. exchanged: bytes of each exchange between ranks that share sequences. outside: the part of
    operations in no scope.
    """

    def __init__(self, places: Collection[str] = ("meta",), longest: int = 1, outside: str | None = None) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.syncs: Counter[str] = Counter()
        self.exchanged: list[int] = []
        self._places, self._longest = places, longest
        self._scopes = [Scope(outside)]
        # Autograd numbers its nodes in the order of their creation, which finds the forward scope of a backward node.
        self._since, self._scope_since = [0], [Scope(outside)]
        self._last = Scope(outside)

    def enter(self, scope: Scope) -> None:
        """Assign the operations until `leave`, and their backward, to this scope."""
        self._scopes.append(scope)
        self._mark()

    def leave(self) -> None:
        """Go back to the scope before `enter`."""
        self._scopes.pop()
        self._mark()

    @property
    def scope(self) -> Scope:
        """Where the step is."""
        return self._scopes[-1]

    def _mark(self) -> None:
        if torch._C._current_graph_task_id() == -1:
            self._since.append(_get_sequence_nr())
            self._scope_since.append(self.scope)

    def _now(self) -> tuple[Scope, str]:
        """Return the scope and phase of what is dispatched now."""
        if torch._C._current_graph_task_id() == -1:
            return self.scope, FORWARD
        if len(self._scopes) > 1:  # a block runs forward in the backward pass
            return self.scope, RECOMPUTED
        node = torch._C._current_autograd_node()
        number = -1 if node is None else node._sequence_nr()
        # Others are of a graph inside a backward function, or add up gradients: they belong to the current scope.
        if 0 <= number < self._since[-1]:
            self._last = self._scope_since[bisect.bisect_right(self._since, number) - 1]
        return self._last, BACKWARD

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> object:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        inputs = _tensors((args, kwargs))
        if "meta" in self._places:
            if (answer := self._look(name, inputs, kwargs)) is not None:
                return answer[0]
            args, kwargs = self._send_to_device(name, inputs, args, kwargs)
        # Reading a number, and sending from the host, are no kernels.
        if func.is_view or name in NO_KERNELS or _sends(name, inputs, kwargs):
            return func(*args, **kwargs)
        scope, phase = self._now()
        out = func(*args, **kwargs)
        outputs = _tensors(out)
        if any(x.device.type in self._places for x in (*inputs, *outputs)):
            # Causality leaves half of all pairs, an attention pattern a share of those.
            of_pairs = scope.share / 2 * _attention_flops(name, inputs) if FUSED_ATTENTION in name else 0.0
            reads, writes = self._moved(func, name, inputs, outputs, args, kwargs)
            of_inputs, of_outputs = (tuple((x.shape, x.dtype) for x in tensors) for tensors in (inputs, outputs))
            part = COMMUNICATION if func.namespace == "c10d" else _part(scope, phase, name)
            flops = of_pairs or _product_flops(name, inputs)
            self.operations.append(
                Operation(part, scope.block, phase, name, of_inputs, of_outputs, reads, writes, flops)
            )
        return out

    def _look(self, name: str, inputs: Sequence[Tensor], kwargs: Options) -> tuple[object] | None:
        """Return the result of an operation for which the host waits for the device; None: it does not wait."""
        if not any(x.is_meta for x in inputs):
            return None
        to_host = name == "_to_copy" and kwargs.get("device") not in (None, META)
        if name not in LOOKS and not to_host:
            return None
        self._sync(name)
        first, dtype = inputs[0], kwargs.get("dtype")
        if to_host:
            return (torch.zeros(first.shape, dtype=dtype if isinstance(dtype, torch.dtype) else first.dtype),)
        if name in ("nonzero", "masked_select", "_unique2"):
            return (torch.empty(first.numel(), first.ndim, dtype=torch.int64, device="meta"),)
        return (True if first.dtype == torch.bool or name == "equal" else self._longest,)

    def _send_to_device(
        self, name: str, inputs: Sequence[Tensor], args: Arguments, kwargs: Options
    ) -> tuple[Arguments, Options]:
        """Return the arguments with tensors of the host on the device."""
        from_host = [x for x in inputs if not x.is_meta]
        if name == "lift_fresh":
            if inputs[0].is_meta:
                self._sync("torch.tensor")
        elif _sends(name, inputs, kwargs):
            self._sync(name)
        elif any(x.ndim for x in from_host) and len(from_host) < len(inputs):
            self._sync("a tensor of the host")
            return tree_map_only(Tensor, lambda x: x.to("meta") if x.ndim else x, (args, kwargs))
        return args, kwargs

    def _sync(self, name: str) -> None:
        frames = [each for each in traceback.extract_stack(limit=40) if each.filename.startswith(OURS)]
        ours = [each for each in frames if not each.filename.startswith(PLANNING)]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "elsewhere"
        self.syncs[f"{place} {name}"] += 1

    def _moved(
        self,
        func: OpOverload,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        args: Arguments,
        kwargs: Options,
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the bytes that an operation reads and writes of each memory."""
        changed = []
        for argument, value in zip(func._schema.arguments, args, strict=False):
            # The schema of fused AdamW says that it changes gradients, which it does for a scale alone.
            if argument.alias_info and argument.alias_info.is_write and (name, argument.name) != FUSED_GRADIENTS:
                changed += _tensors(value)
        if name in LOOKUPS:
            return self._bytes([*inputs[1:], *outputs]), self._bytes(outputs)
        if name in SCATTERS:
            rows = inputs[-1].numel() * inputs[0].element_size()
            return (*self._bytes(inputs[1:]), rows), (rows,)
        if name == "embedding_dense_backward":
            return self._bytes(inputs), (*self._bytes(outputs), inputs[0].nbytes)
        if name in SHAPES:
            read = []
        elif name in OVERWRITES:
            read = inputs[1:]
        else:
            read = [x for x in inputs if x is not kwargs.get("out")]
        return self._bytes(read), self._bytes([*outputs, *changed])

    def _bytes(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """Return the bytes of each memory in these tensors; what is there twice, or expanded, counts once."""
        sizes: dict[tuple[int, int, int], int] = {}
        for x in tensors:
            if x.device.type in self._places:
                numel = math.prod(n for n, stride in zip(x.shape, x.stride(), strict=True) if stride)
                where = x.untyped_storage()._cdata, int(x.storage_offset()), numel
                sizes[where] = numel * x.element_size()
        return tuple(sizes.values())


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _sends(name: str, inputs: Sequence[Tensor], kwargs: Options) -> bool:
    """Return whether the host sends a tensor to the device."""
    if name == "copy_":
        return inputs[0].is_meta and not inputs[1].is_meta
    return name == "_to_copy" and not inputs[0].is_meta and kwargs.get("device") == META


def _attention_flops(name: str, inputs: Sequence[Tensor]) -> float:
    """Return the FLOPs of fused attention over all pairs: q'k and the weighted sum of v; backward the first once more,
    and two gradients of each."""
    backward = "backward" in name
    q_BHTE, k_BGSE, v_BGSD = inputs[1:4] if backward else inputs[:3]
    products = 3 * q_BHTE.shape[-1] + 2 * v_BGSD.shape[-1] if backward else q_BHTE.shape[-1] + v_BGSD.shape[-1]
    return 2.0 * math.prod(q_BHTE.shape[:3]) * k_BGSE.shape[2] * products


def _product_flops(name: str, inputs: Sequence[Tensor]) -> float:
    """Return the FLOPs of a product of matrices; 0 of everything else."""
    if name not in PRODUCTS:
        return 0.0
    a, b = inputs[PRODUCTS[name] : PRODUCTS[name] + 2]
    return 2.0 * a.numel() * b.shape[-1]


def _part(scope: Scope, phase: str, name: str) -> str:
    if phase == RECOMPUTED:
        return RECOMPUTED
    if FUSED_ATTENTION in name:
        return ATTENTION
    return scope.part or (LINEAR if name in PRODUCTS else ELEMENTWISE)
