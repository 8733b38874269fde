"""Blocks compiled one by one: one graph for all layers of a type, as their parameters are its inputs.

A graph that would have to break is an error at its first call, which is logged, and the layers of that type run
uncompiled. After that a further compilation is a new shape, and crossing torch's limit of them an error: without
`fullgraph` torch would silently run what was never compiled.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch._functorch import config as autograd_config

from coca_train.models.layers import AttentionContext
from coca_train.runtime import dist
from coca_train.runtime.compilation import compile_alone, is_of_compiler, reason
from coca_train.runtime.machine import can_compile

Call = Callable[[nn.Module, Tensor, AttentionContext, Tensor | None], Tensor]


class CompiledBlocks:
    """A compiled form of `call` for each layer type. backend: torch.compile's.

    eager: layer types that are not compiled, with the reason.
    """

    def __init__(self, call: Call, backend: str = "inductor") -> None:
        self._call, self._backend = call, backend
        self._compiled: dict[str, Call] = {}
        self.eager: dict[str, str] = {}

    def __call__(self, block: nn.Module, x_BTC: Tensor, context: AttentionContext, past_BMC: Tensor | None) -> Tensor:
        layer_type = context.layer_type
        if layer_type in self._compiled:
            return self._compiled[layer_type](block, x_BTC, context, past_BMC)
        if self._backend == "inductor" and not can_compile(x_BTC.device.type):
            return self._call(block, x_BTC, context, past_BMC)
        if layer_type not in self.eager:
            # Alone: layer types do not share torch's limit of recompilations, nor do models of one process.
            compiled = compile_alone(self._call, self._backend)
            try:
                # The backward graph too, here: torch would compile it in the first backward pass, where a failure of
                # the compiler ends the training.
                with autograd_config.patch(force_non_lazy_backward_lowering=True):
                    x_new_BTC = compiled(block, x_BTC, context, past_BMC)
                self._compiled[layer_type] = compiled
                return x_new_BTC
            except Exception as error:
                if not is_of_compiler(error):
                    raise
                self.eager[layer_type] = why = reason(error)
            dist.log(f"WARNING engine.compile: layers of type {layer_type} are not compiled: {why}")
        return self._call(block, x_BTC, context, past_BMC)
