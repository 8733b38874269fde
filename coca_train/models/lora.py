"""LoRA (Hu et al., arXiv 2106.09685): a weight matrix trained through a low-rank adapter, W + (alpha / rank) B A.

The layers are those of `peft`, which is imported here only, and when it is needed. What peft calls
`<layer>.base_layer.weight` keeps its name, `<layer>.weight`; its adapter is `<layer>.lora_A.weight` (rank, inputs) and
`<layer>.lora_B.weight` (outputs, rank). There is no dropout on what an adapter sees.
"""

import importlib.util
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from coca_train.config.schema import LoraConfig
from coca_train.runtime.errors import UserError

LAYER, DOWN, UP = ".weight", ".lora_A.weight", ".lora_B.weight"
BLOCK = re.compile(r"\.\d+\.")
THEIRS = {".base_layer.": ".", ".lora_A.default.": ".lora_A.", ".lora_B.default.": ".lora_B."}


def attach(model: nn.Module, layers: Sequence[str], lora: LoraConfig) -> None:
    """Give linear layers, by name, adapters in place. Their values are not set.

    Raises UserError E-STG-18 where peft is not installed.
    """
    assert lora.rank is not None
    if importlib.util.find_spec("peft") is None:
        raise UserError(
            f"E-STG-18 stages lora.rank={lora.rank}: peft is not installed, which makes the adapters; it is the extra "
            "'lora'. Fix: pip install peft"
        )
    from peft import LoraConfig as Settings
    from peft import inject_adapter_in_model

    settings = Settings(
        r=lora.rank,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  a float will do
        lora_dropout=0.0,
        target_modules=list(layers),
        init_lora_weights=False,
    )
    inject_adapter_in_model(settings, model)


def named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield `model.named_parameters()` under our names, with or without adapters."""
    for name, parameter in model.named_parameters():
        for theirs, ours in THEIRS.items():
            name = name.replace(theirs, ours)
        yield name, parameter


def is_adapter(name: str) -> bool:
    """Whether a parameter, or a tensor of a checkpoint, is half of an adapter."""
    return name.endswith((DOWN, UP))


def trained_in_full(trained: Iterable[str]) -> list[str]:
    """Return what a LoRA stage trains apart from adapters, the numbers of blocks as *. trained: names of parameters."""
    return list(dict.fromkeys(BLOCK.sub(".*.", name) for name in trained if not is_adapter(name)))


def adapters_alone(trained: Iterable[str]) -> str:
    """Return a `trainable` that trains the same adapters, and nothing in full."""
    layers = dict.fromkeys(BLOCK.sub(".*.", name.removesuffix(UP)) for name in trained if name.endswith(UP))
    return f"[{','.join(layer + LAYER for layer in layers)}]"


def adapter_of(name: str) -> tuple[str, str]:
    """Return the names of A and B of a weight, whether it has them or not."""
    layer = name.removesuffix(LAYER)
    return layer + DOWN, layer + UP


def init_adapter(name: str, parameter: Tensor, generator: torch.Generator) -> None:
    """Fill A from U(-1/sqrt(inputs), 1/sqrt(inputs)), as peft and the authors' code do, and B with zeros.

    The layer computes at first what it computed without them.
    """
    if name.endswith(UP):
        parameter.zero_()
        return
    bound = 1 / math.sqrt(parameter.shape[1])
    values = torch.empty(parameter.shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)
    parameter.copy_(values)


def merge(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return W + scale B A, in float32."""
    return weight.float() + (b.float() @ a.float()) * scale
