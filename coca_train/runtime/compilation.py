"""torch.compile as this project uses it: one graph, and a limit of recompilations that nothing else shares."""

import re
from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar

import torch

from coca_train.runtime import dist

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

CONTEXT = re.compile(r"^\s*Developer debug context: (.+)$", re.MULTILINE)  # Dynamo's, of what it came upon


def compile_alone(function: Callable[Arguments, Result], backend: str) -> Callable[Arguments, Result]:
    """Return a compiled copy of the function, whose graph may not break.

    torch counts recompilations by code object. A copy of the code has a count of its own, on every version of torch
    (the argument `isolate_recompiles` is newer than 2.11). Crossing the limit is an error: the graph may not break.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return torch.compile(copy, fullgraph=True, backend=backend)


def compile_with_fallback(
    function: Callable[Arguments, Result], backend: str, what: str
) -> Callable[Arguments, Result]:
    """Return the function compiled alone; what torch does not compile runs as it is, and a line says so once.

    Shapes beyond the limit of recompilations run uncompiled, those before it stay compiled; a function that cannot be
    compiled at all is not tried again. what: names the function in that line.
    """

    # Around the function, which may be any callable.
    def call(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        return function(*args, **named)

    compiled = compile_alone(call, backend)
    failed = reported = False

    def run(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        nonlocal failed, reported
        if failed:
            return function(*args, **named)
        try:
            return compiled(*args, **named)
        except Exception as error:
            at_limit = is_recompile_limit(error)
            if not at_limit and not is_of_compiler(error):
                raise
            failed = not at_limit
            why = reason(error)
        if not reported:
            dist.log(f"WARNING {what}: {'further shapes run' if at_limit else 'runs'} uncompiled, slower: {why}")
            reported = True
        return function(*args, **named)

    return run


def is_recompile_limit(error: Exception) -> bool:
    """Whether torch refuses to compile a function for one shape more (torch._dynamo.config.recompile_limit)."""
    from torch._dynamo.exc import FailOnRecompileLimitHit  # here: a second of imports that few runs need

    return isinstance(error, FailOnRecompileLimitHit)


def is_of_compiler(error: Exception) -> bool:
    """Whether torch.compile cannot compile a function, as opposed to an error of the function itself."""
    from torch._dynamo.exc import TorchDynamoException  # here: as above
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return isinstance(error, TorchDynamoException | GuardOnDataDependentSymNode)


def reason(error: Exception) -> str:
    """Return why torch does not compile, in a line: its message runs over pages, and begins with the name of a backend
    or the type of a graph break, neither of which is the cause."""
    from torch._dynamo.exc import BackendCompilerFailed  # here: as above

    named = isinstance(error, BackendCompilerFailed)
    while isinstance(error, BackendCompilerFailed):
        error = error.inner_exception
    lines = [*([type(error).__name__] if named else []), *str(error).strip().splitlines()[:1]]
    return ": ".join([*lines, *CONTEXT.findall(str(error))]) or type(error).__name__
