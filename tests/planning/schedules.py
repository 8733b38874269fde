"""What Inductor makes of a function: its schedule, before any code is generated from it (so no compiler is needed)."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any
from unittest import mock

import torch
from torch._inductor import compile_fx, config, scheduler
from torch._inductor.exc import InductorError

from coca_train.planning.count import Count
from coca_train.planning.fusion import Kernel, fused

# Matrix products and attention are kernels of their own there too, and none of the rules'.
OTHERS = (scheduler.ExternKernelSchedulerNode, scheduler.NopKernelSchedulerNode)


class ScheduledError(Exception):
    """Raised where code would be generated."""


def scheduled(function: Callable[..., torch.Tensor], *given: Any) -> list[list[int]]:
    """Forward and backward of a function as one graph each: bytes that every generated kernel reads and writes, by the
    schedule's own count."""
    graphs: list[list[int]] = []

    def codegen(self: scheduler.Scheduler) -> None:
        nodes = [node for node in self.nodes if not isinstance(node, OTHERS)]
        graphs.append([node.get_read_write_buffers_sizes() for node in nodes])
        raise ScheduledError

    def compile_inner(gm: Any, inputs: Any, **how: Any) -> Any:
        run = deepcopy(gm).forward  # uncompiled: only so that the backward pass is reached
        try:
            compile_fx.compile_fx_inner(gm, inputs, **how)
        except InductorError as error:
            assert "ScheduledError" in str(error), error  # noqa: PT017
        return compile_fx.make_boxed_func(run)

    def backend(gm: Any, inputs: Any) -> Any:
        return compile_fx.compile_fx(gm, inputs, inner_compile=compile_inner)

    torch._dynamo.reset()
    patched = mock.patch.object(scheduler.Scheduler, "codegen", codegen)
    with patched, config.patch(force_disable_caches=True):
        out = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*given)
        if out.requires_grad and len(graphs) < 2:
            out.backward(torch.ones_like(out))
    torch._dynamo.reset()
    return graphs


def ruled(function: Callable[..., torch.Tensor], *given: Any) -> list[list[Kernel]]:
    """The same by the rules, on tensors of the meta device."""
    count = Count()
    with count:
        with count.scope(block=0):
            out = function(*given)
        if out.requires_grad:
            out.backward(torch.empty_like(out))
    kernels = [kernel for kernel in fused(count.operations) if not (kernel.flops or kernel.is_attention)]
    return [[kernel for kernel in kernels if kernel.phase == phase] for phase in ("forward", "backward")]
