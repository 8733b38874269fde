"""Random parts of an attention under any attention pattern, and kernels compared on them."""

from typing import Any

import torch
from torch import Tensor

from coca_train.attention import patterns
from coca_train.attention.kernels import KERNELS
from coca_train.attention.scores import Part

HEADS, GROUPS = 4, 2
ATTENTION_PATTERNS: dict[str, dict[str, Any]] = {
    "causal": {"name": "causal"},
    "sliding_window": {"name": "sliding_window", "window": 4},
    "segments": {"name": "segments", "length": 6},
    "sinks": {"name": "sinks", "n_sink": 2, "window": 3},
    "lambda_mask": {"name": "lambda_mask", "n_global": 2, "window": 3, "max_distance": 5},
    "lambda_wide": {"name": "lambda_mask", "n_global": 2, "window": 6, "max_distance": 4},
    "rerope": {"name": "rerope", "window": 5},
}


class RandomParts:
    """Random leaves, the same for the same arguments, and the parts that a subclass makes of them; two rows."""

    scale: float

    def __init__(
        self,
        n_queries: int,
        n_keys: int,
        attention_pattern: str,
        value_width: int,
        dtype: torch.dtype,
        doc: Any,
        pos: Any,
    ) -> None:
        self._generator, self.dtype = torch.Generator().manual_seed(n_queries * 1000 + n_keys), dtype
        pos_BS = torch.arange(n_keys)[None] if pos is None else pos
        rules = patterns.build(patterns.settings(ATTENTION_PATTERNS[attention_pattern]))
        self.layouts = rules.layouts(pos_BS[:, n_keys - n_queries :], pos_BS, doc)
        self.leaves: list[Tensor] = []
        self.parts: list[Part] = []
        self.v = self.leaf(2, n_keys, GROUPS, value_width)

    def leaf(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64).to(dtype or self.dtype)
        self.leaves.append(values.requires_grad_())
        return self.leaves[-1]

    def run(self, kernel: str) -> tuple[Tensor, list[Tensor]]:
        """(out, gradient of every leaf)."""
        out = KERNELS[kernel](self.parts, self.v, self.scale)
        weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(out.dtype)
        gradients = torch.autograd.grad((out * weight).sum(), self.leaves, allow_unused=True)
        return out, [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, self.leaves, strict=True)]


def same(case: RandomParts, kernel: str = "blocked") -> None:
    """The kernel equals the definition, gradients included."""
    (expected, expected_grads), (out, grads) = case.run("eager"), case.run(kernel)
    torch.testing.assert_close(out, expected)
    for a, b in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(a, b)
        assert b.any() or a.abs().max() < 1e-12  # what has no part in it gets nothing


def documents(n_keys: int) -> dict[str, Tensor]:
    """Rows of a batch with documents of their own, positions starting anew in each."""
    doc = torch.stack([torch.arange(n_keys) * 3 // n_keys, torch.arange(n_keys) // 5])
    return {"doc": doc, "pos": torch.stack([torch.arange(n_keys) - torch.searchsorted(row, row) for row in doc])}


def gaps(n_keys: int) -> Tensor:
    """Increasing positions of two rows, where a pair's distance is not that of the indices."""
    return torch.cumsum(torch.randint(1, 4, (2, n_keys), generator=torch.Generator().manual_seed(0)), 1)
