"""What a compiler makes one kernel of, in the blocks of layers: by three rules, each seen in Inductor's own schedule.

Operations are gone through in their order; one joins the kernel of what it reads where a rule says so and no other
kernel would then have to run in its middle. A kernel reads from memory, once, what was there before it, and writes what
another one uses. Matrix products and attention stay as they are. What autograd keeps is what it keeps without a
compiler, which may compute it again instead: tests hold every rule to at most what the schedule saves
(tests/planning/test_fusion.py).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from coca_train.planning.count import AGAIN, ELEMENTWISE, FUSED_ATTENTION, Access, Operation

POINTWISE, ROWS, COLUMNS = "pointwise", "rows", "columns"
RULES = {
    POINTWISE: "sums, products, casts, activations, rotations that follow one another are one kernel",
    ROWS: "so are norms, with what is computed number by number before and after them",
    COLUMNS: "sums over all tokens (gradients of norms and biases) are one more, with what only they use",
}
ROW_WISE = frozenset(["native_layer_norm", "native_layer_norm_backward", "_softmax", "_log_softmax"])
SUMS = "native_layer_norm_backward, sums"  # the gradients of a norm's parameters
REDUCTIONS = frozenset(["sum", "mean", "amax", "amin", "linalg_vector_norm"])
NUMBER_BY_NUMBER = frozenset((
    "add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "neg", "pow", "sqrt", "rsqrt", "exp",
    "exp_", "log", "log1p", "sin", "cos", "sigmoid", "tanh", "relu", "silu", "gelu", "silu_backward",
    "gelu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward", "addcmul", "addcmul_", "where",
    "clamp", "clamp_min", "masked_fill", "masked_fill_", "maximum", "minimum", "lt", "le", "gt", "ge", "eq",
    "ne", "logical_and", "logical_not", "bitwise_and", "bitwise_not", "_to_copy", "copy_", "clone",
    "constant_pad_nd", "slice_backward", "select_backward", "zeros", "zeros_like", "ones_like", "fill_",
    "zero_", "full", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor",
))  # fmt: skip


class Kernel(NamedTuple):
    """One launch. rule: by which operations became it; "": it is one operation. replaces: bytes of each of these."""

    part: str
    phase: str
    nbytes: int
    flops: float
    dtype: torch.dtype
    is_attention: bool = False
    rule: str = ""
    replaces: tuple[int, ...] = ()


def unfused(operations: Iterable[Operation]) -> list[Kernel]:
    """A kernel for each operation; for the backward of a norm two, as its sums run the other way."""
    return [_kernel(part) for each in operations for part in _split(each)]


def _kernel(each: Operation) -> Kernel:
    return Kernel(each.part, each.phase, each.nbytes, each.flops, each.dtype, FUSED_ATTENTION in each.name)


def _split(operation: Operation) -> list[Operation]:
    if operation.name != "native_layer_norm_backward":
        return [operation]
    by_rows = tuple(access for access in operation.writes if access.nbytes == operation.reads[0].nbytes)
    by_columns = tuple(access for access in operation.writes if access not in by_rows)
    halves = {"native_layer_norm_backward": by_rows, SUMS: by_columns}
    return [operation._replace(name=name, writes=writes) for name, writes in halves.items() if writes]


def fused(operations: Sequence[Operation]) -> list[Kernel]:
    """With the rules applied, block by block: each is compiled by itself, its forward and its backward."""
    blocks: dict[tuple[int, str], list[int]] = defaultdict(list)
    kernels = []
    for index, operation in enumerate(operations):
        if operation.block is None:
            kernels += unfused([operation])
        else:
            blocks[operation.block, operation.phase].append(index)
    last_read = {access.memory: index for index, each in enumerate(operations) for access in each.reads}
    for indices in blocks.values():
        kernels += _Block(
            [_Node(index, part, _rule(part)) for index in indices for part in _split(operations[index])], last_read
        ).kernels()
    return kernels


class _Node(NamedTuple):
    """An operation in its block. rule: "" for what stays as it is. index: of the operation in the step."""

    index: int
    operation: Operation
    rule: str


def _rule(operation: Operation) -> str:
    if operation.part not in (ELEMENTWISE, AGAIN) or operation.flops or FUSED_ATTENTION in operation.name:
        return ""
    if operation.name in ROW_WISE:
        return ROWS
    if operation.name == SUMS:
        return COLUMNS
    if operation.name in REDUCTIONS:
        given, made = operation.given[0][0], operation.made[0][0]
        n_rows = given[:-1].numel() if given else 1
        return (
            ROWS
            if made.numel() == n_rows and given[-1] > 1 and tuple(made[: len(given) - 1]) == given[:-1]
            else COLUMNS
        )
    return POINTWISE if operation.name in NUMBER_BY_NUMBER else ""


class _Block:
    """One compiled piece: its nodes, and by number the kernel each is in."""

    def __init__(self, nodes: Sequence[_Node], last_read: dict[int, int]) -> None:
        self._nodes, self._last_read = nodes, last_read
        self._kernel_of = list(range(len(nodes)))
        self._after: dict[int, set[int]] = defaultdict(set)  # node -> nodes that must come later
        self._before: dict[int, set[int]] = defaultdict(set)
        self._order()
        for number in range(len(nodes)):
            self._join(number)

    def _order(self) -> None:
        """What must come before what: a reader after the writer, a writer after those that read what was there."""
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = defaultdict(list)
        for number, (_, operation, _) in enumerate(self._nodes):
            for memory in {access.memory for access in operation.reads}:
                if memory in writer:
                    self._edge(writer[memory], number)
                readers[memory].append(number)
            for memory in {access.memory for access in operation.writes}:
                for earlier in (*readers.pop(memory, ()), *([writer[memory]] if memory in writer else ())):
                    self._edge(earlier, number)
                writer[memory] = number

    def _edge(self, earlier: int, later: int) -> None:
        if earlier != later:
            self._after[earlier].add(later)
            self._before[later].add(earlier)

    def _join(self, number: int) -> None:
        """Put a node into the kernels of those it comes after, and of those that read the same."""
        rule = self._nodes[number].rule
        if not rule:
            return
        memories = {access.memory for access in self._nodes[number].operation.reads}
        candidates = {self._kernel_of[each] for each in self._before[number]}
        for other in range(number):
            if memories & {access.memory for access in self._nodes[other].operation.reads}:
                candidates.add(self._kernel_of[other])
        for kernel in sorted(candidates, reverse=True):
            own = self._kernel_of[number]
            if kernel != own and self._go_together(kernel, own) and not self._would_turn(kernel, own):
                self._kernel_of = [kernel if each == own else each for each in self._kernel_of]

    def _members(self, kernel: int) -> list[int]:
        return [number for number, each in enumerate(self._kernel_of) if each == kernel]

    def _go_together(self, kernel: int, own: int) -> bool:
        """By the rules: sums over tokens only with one another and with what they alone use."""
        rules = [{self._nodes[each].rule for each in self._members(side)} for side in (kernel, own)]
        if "" in rules[0] | rules[1]:
            return False
        sums = [COLUMNS in side for side in rules]
        if not any(sums):
            return True
        if all(sums):
            return self._space(kernel) == self._space(own)
        if ROWS in rules[0] | rules[1]:
            return False
        pointwise = (kernel, own)[sums.index(False)]
        mates = {*self._members(kernel), *self._members(own)}
        return all(self._is_private(each, mates) for each in self._members(pointwise))

    def _space(self, kernel: int) -> int:
        return max(shape.numel() for each in self._members(kernel) for shape, _ in self._nodes[each].operation.given)

    def _is_private(self, number: int, mates: set[int]) -> bool:
        """Whether nobody but these uses what a node writes."""
        index = max(self._nodes[each].index for each in mates)
        written = {access.memory for access in self._nodes[number].operation.writes}
        return self._after[number] <= mates and all(0 <= self._last_read.get(each, -1) <= index for each in written)

    def _would_turn(self, kernel: int, own: int) -> bool:
        """Whether another kernel would have to run between the two."""
        mates = {*self._members(kernel), *self._members(own)}
        waiting = [later for each in mates for later in self._after[each] if later not in mates]
        seen = set()
        while waiting:
            other = self._kernel_of[waiting.pop()]
            if other in seen:
                continue
            seen.add(other)
            for each in self._members(other):
                if self._after[each] & mates:
                    return True
                waiting += self._after[each]
        return False

    def kernels(self) -> list[Kernel]:
        made = []
        for kernel in dict.fromkeys(self._kernel_of):
            nodes = [self._nodes[each] for each in self._members(kernel)]
            first = nodes[0].operation
            if not nodes[0].rule:
                made.append(_kernel(first))
                continue
            rules = {node.rule for node in nodes}
            rule = next(name for name in (COLUMNS, ROWS, POINTWISE) if name in rules)
            replaces = tuple(node.operation.nbytes for node in nodes)
            made.append(Kernel(first.part, first.phase, self._moved(nodes), 0.0, first.dtype, False, rule, replaces))
        return made

    def _moved(self, nodes: Sequence[_Node]) -> int:
        """Bytes that a kernel reads of what was there before it, and writes for others."""
        read: dict[int, dict[Access, None]] = defaultdict(dict)
        written: dict[int, dict[Access, None]] = defaultdict(dict)
        for _, operation, _ in nodes:
            for access in operation.reads:
                if access.memory not in written:
                    read[access.memory][access] = None
            for access in operation.writes:
                written[access.memory][access] = None
        mine = {node.index for node in nodes}
        last = max(mine)
        kept = [accesses for memory, accesses in written.items() if self._outlives(memory, last, nodes)]
        return sum(_union(accesses) for accesses in (*read.values(), *kept))

    def _outlives(self, memory: int, last: int, nodes: Sequence[_Node]) -> bool:
        """Whether what is written is read by another kernel, or by nobody here (it is a result)."""
        if self._last_read.get(memory, -1) > last or memory not in self._last_read:
            return True
        mine = {id(node.operation) for node in nodes}
        return any(
            access.memory == memory and id(node.operation) not in mine
            for node in self._nodes
            for access in node.operation.reads
        )


def _union(accesses: Iterable[Access]) -> int:
    """Bytes of one memory, whatever looks at it there are: stretches that begin at one place count once."""
    longest: dict[int, Access] = {}
    for access in accesses:
        start, _ = access.where
        if start not in longest or longest[start].nbytes < access.nbytes:
            longest[start] = access
    return sum(access.nbytes for access in longest.values())
