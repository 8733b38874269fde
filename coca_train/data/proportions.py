"""Which source the i-th sample comes from, and which of that source's samples it is: exact, O(sources).

The sources are the leaves of a binary tree. Of the first i samples that reach a node with weight l on its left and W on
both sides, floor(i l / W + 1/2) go to the left (a Bresenham line over exact integers), the others to the right. Counts
never fall, and every sample hits exactly one source. A split is off by 1/2 sample at most, and a source below takes
its part of that: over the nodes on its way, a source of weight w is off by at most the sum of w / (2 W_child).

Two trees. The chain splits off one source after the other. Where a source could be more than CHAIN_OFF samples off in
it (six sources or more), Huffman's tree is taken (Proc. IRE 40, 1952): there W_child is at least w times 1, 1, 2, 3, 5,
8 ... (Fibonacci) on the way up, since what is joined later is never lighter. So no source is ever off by more than
(1/1 + 1/1 + 1/2 + 1/3 + 1/5 + ...) / 2 = 1.68 samples. In any stretch of samples it is off by twice that.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, compress
from typing import NamedTuple

CHAIN_OFF = 2


class Node(NamedTuple):
    """A split. left, right: numbers of nodes, or ~j for source j. Weights of the left side and of both."""

    left: int
    right: int
    left_weight: int
    weight: int

    def count(self, i: int) -> int:
        """Return how many of the first i samples that reach this node go to the left."""
        return (2 * i * self.left_weight + self.weight) // (2 * self.weight)

    def left_samples(self, begin: int, end: int) -> Iterator[int]:
        """Yield for k = begin .. end - 1 the sample that is the k-th to go left: the first i with count(i + 1) = k + 1.

        That is ceil((2 k W + W) / 2 l) - 1; the division is done once, what follows is added up.
        """
        part = 2 * self.left_weight
        sample, rest = divmod((2 * begin + 1) * self.weight - 1, part)
        step, more = divmod(2 * self.weight, part)
        for _ in range(begin, end):
            yield sample
            sample, rest = sample + step, rest + more
            if rest >= part:
                sample, rest = sample + 1, rest - part


class Proportions:
    """Exact interleaving of sources by weight.

    weights: positive numbers; a float counts as the decimal it prints as (0.1 and 0.9 are 1 : 9).
    """

    def __init__(self, weights: Sequence[float]) -> None:
        # By the decimal that the yaml shows: binary fractions would order 0.1 and 0.9 unlike 1 and 9.
        exact = [Fraction(str(weight)) for weight in weights]
        assert min(exact) > 0, weights
        scale = math.lcm(*(weight.denominator for weight in exact))
        numbers = [int(weight * scale) for weight in exact]
        divisor = math.gcd(*numbers)
        self.weights = [number // divisor for number in numbers]
        self.nodes, off = chain(self.weights)
        self.is_chain = off <= CHAIN_OFF
        if not self.is_chain:
            self.nodes = huffman(self.weights)
        self._root = len(self.nodes) - 1 if self.nodes else ~0  # without a node the one source is the root

    def locate(self, first: int, n: int) -> tuple[list[int], list[int]]:
        """Return the sources of samples first .. first + n - 1, and their numbers among the samples of these."""
        sources, numbers = [0] * n, [0] * n
        # Down the tree with all samples at once: each node parts its samples in one pass.
        todo = [(self._root, first, list(range(n)))]  # node, its number of the first sample, samples that reach it
        while todo:
            at, first, samples = todo.pop()
            if at < 0:
                for number, sample in enumerate(samples, first):
                    sources[sample], numbers[sample] = ~at, number
                continue
            node = self.nodes[at]
            begin, end = node.count(first), node.count(first + len(samples))
            to_left, goes_right = [], bytearray(b"\1") * len(samples)
            for sample in node.left_samples(begin, end):
                to_left.append(samples[sample - first])
                goes_right[sample - first] = False
            if to_left:
                todo.append((node.left, begin, to_left))
            if len(to_left) < len(samples):
                todo.append((node.right, first - begin, list(compress(samples, goes_right))))
        return sources, numbers

    def counts(self, n: int) -> list[int]:
        """Return how many of the first n samples come from each source."""
        counts = [0] * len(self.weights)
        todo = [(self._root, n)]
        while todo:
            at, reach = todo.pop()
            if at < 0:
                counts[~at] = reach
                continue
            count = self.nodes[at].count(reach)
            todo += [(self.nodes[at].left, count), (self.nodes[at].right, reach - count)]
        return counts

    def longest(self, j: int, available: int) -> int:
        """Return the largest n with counts(n)[j] <= available."""
        low, high = available, available + 1
        while self.counts(high)[j] <= available:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.counts(middle)[j] <= available else (low, middle)
        return low


def chain(weights: Sequence[int]) -> tuple[list[Node], float]:
    """Build the tree that splits off source 0 first, then source 1, and so on; the last node is the root.

    Returns how far a source may be off in it, too [samples].
    """
    last = len(weights) - 1
    rests = list(accumulate(reversed(weights)))[::-1]  # rests[j]: the weights from j on
    nodes = [Node(~j, last - j - 2 if j < last - 1 else ~last, weights[j], rests[j]) for j in reversed(range(last))]
    above = worst = 0.0
    for j, weight in enumerate(weights):
        above += 1 / rests[j] if j else 0.0
        worst = max(worst, weight * above + (j < last))
    return nodes, worst / 2


def huffman(weights: Sequence[int]) -> list[Node]:
    """Build Huffman's tree: join the two lightest nodes, of equal ones the older; the lighter is the left one."""
    nodes: list[Node] = []
    heap = [(weight, j, ~j) for j, weight in enumerate(weights)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (light, _, left), (heavy, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        nodes.append(Node(left, right, light, light + heavy))
        heapq.heappush(heap, (light + heavy, len(weights) + len(nodes), len(nodes) - 1))
    return nodes
