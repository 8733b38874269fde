"""A forward pass of a model that does not fit into memory: the weights of one block at a time, in float32."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Read = Callable[[str], Tensor]


@contextmanager
def streamed(model: nn.Module, blocks: Sequence[nn.Module], read: Read) -> Iterator[nn.Module]:
    """`model`, whose parameters have no memory yet, ready to be called.

    blocks: modules that are called once a forward, each with weights of its own; theirs are read when the call comes
    and forgotten after it. All other weights are read now. read: a parameter by its name in the model.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inside = {id(parameter) for block in blocks for parameter in block.parameters()}
    with ExitStack() as stack:
        _fill(model, names, read, leave=inside)
        for block in blocks:
            own = {name: names[id(parameter)] for name, parameter in block.named_parameters()}
            hook = block.register_forward_pre_hook(lambda module, _, own=own: _load(module, own, read))
            stack.callback(hook.remove)
            hook = block.register_forward_hook(lambda module, *_: _forget(module))
            stack.callback(hook.remove)
        yield model.eval()


def _fill(model: nn.Module, names: dict[int, str], read: Read, leave: set[int]) -> None:
    """Give all parameters but those of `leave` their values; shared ones stay shared."""
    filled: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in leave and id(parameter) not in filled:
                filled[id(parameter)] = _parameter(read(names[id(parameter)]))
            if id(parameter) in filled:
                setattr(module, leaf, filled[id(parameter)])


def _load(block: nn.Module, own: dict[str, str], read: Read) -> None:
    for name, known_as in own.items():
        owner, _, leaf = name.rpartition(".")
        setattr(block.get_submodule(owner), leaf, _parameter(read(known_as)))


def _forget(block: nn.Module) -> None:
    for module in block.modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, leaf, nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False))


def _parameter(tensor: Tensor) -> Any:
    return nn.Parameter(tensor.to(torch.float32), requires_grad=False)
