"""torch.compile as it is used here: one graph, and a limit of recompilations that nothing else shares."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch


def compile_alone(function: Callable[..., Any], backend: str) -> Any:
    """Return a compiled copy of the function, whose graph may not break.

    torch counts recompilations by code object. A copy of the code has a count of its own, on every version of torch
    (the argument `isolate_recompiles` is newer than 2.11). Crossing the limit is an error: the graph may not break.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(copy, fullgraph=True, backend=backend)
