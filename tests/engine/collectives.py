"""What a step sends: collectives counted as torch dispatches them, whoever calls them."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Sent(TorchDispatchMode):
    """Inside: by collective and dtype, how often it was called, and elements of the largest tensors in it.

    The largest is what all ranks have together: the sum of an all-gather, the whole of a reduce-scatter. Numbers of
    a few elements (losses, norms, flags) are left out.
    """

    def __init__(self, at_least: int = 64) -> None:
        super().__init__()
        self.at_least = at_least
        self.calls: dict[str, int] = defaultdict(int)
        self.elements: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            by_argument = [sum(t.numel() for t in tree_leaves(each) if isinstance(t, Tensor)) for each in args]
            if (n_elements := max(by_argument, default=0)) >= self.at_least:
                name = func._schema.name.removeprefix("c10d::").strip("_")
                key = f"{name} {str(tensors[0].dtype).removeprefix('torch.')}"
                self.calls[key] += 1
                self.elements[key] += n_elements
        return func(*args, **(kwargs or {}))


def a_step(changes: dict[str, Any], micro: int = 2) -> dict[str, list[float]]:
    """In a forked rank: by collective, calls and elements a trained parameter of the second step."""
    from tests.engine.scenarios import batches, build

    built = build(micro=micro, **changes)
    n_parameters = sum(torch.Size(shape).numel() for name, shape in built.state_spec().items() if "exp_avg/" in name)
    built.train_step(batches(0, micro), 1e-3)
    with Sent() as sent:
        built.train_step(batches(1, micro), 1e-3)
    built.close()
    return {key: [sent.calls[key], sent.elements[key] / n_parameters] for key in sorted(sent.calls)}
