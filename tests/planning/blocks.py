"""A block by itself, on real tensors to be compiled or on the meta device to be counted."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from coca_train.attention.scores import Part
from coca_train.engine.base import parameters_on_meta
from coca_train.models.transformer import build_model
from coca_train.planning.dispatch import DeviceChoices
from tests.planning.conftest import configure

LLAMA = ("model=llama_tiny", "model.vocab_size=320", "train.seq_len=128", "model.n_layers=1", "engine.dtype=bf16")
NEOX = ("model=neox_350m", "model.vocab_size=320", "train.seq_len=128", "model.n_layers=1", "model.d_model=256",
        "model.n_heads=4", "model.d_ff=1024")  # fmt: skip


@torch.library.custom_op("tests_planning::flash_attention", mutates_args=())
def attention(q_BTHE: Tensor, k_BSGE: Tensor, v_BSGD: Tensor) -> Tensor:
    """Stands where attention does: a kernel that is not looked into, for tensors as the layer leaves them."""
    return q_BTHE + 1


@attention.register_fake
def _(q_BTHE: Tensor, k_BSGE: Tensor, v_BSGD: Tensor) -> Tensor:
    return torch.empty_like(q_BTHE)


@torch.library.custom_op("tests_planning::flash_attention_backward", mutates_args=())
def attention_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradients."""
    return q + 1, k + 1, v + 1


@attention_backward.register_fake
def _(g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


attention.register_autograd(
    lambda ctx, g: attention_backward(g, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def _kernel(parts: Sequence[Part], v_BSGD: Tensor, scale: float) -> Tensor:
    return attention(parts[0].q_BTHE, parts[0].k_BSGE, v_BSGD)


def block(words: Sequence[str], device: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The first block of a configuration, and what goes in. device: cpu or meta."""
    config = configure(*words)
    with parameters_on_meta():
        model = build_model(config, 320)
    model = model.to(torch.bfloat16)
    if device != "meta":
        model.to_empty(device=device)
    pos_BT = torch.arange(config.train.seq_len).expand(4, -1)
    context = model.contexts(pos_BT, pos_BT)[model.kinds[0]]._replace(kernel=_kernel)
    context = context._replace(views=tree_map_only(Tensor, lambda table: table.to(device), context.views))
    x_BTC = torch.zeros(4, config.train.seq_len, config.model.d_model, dtype=torch.bfloat16, device=device)

    def run(x_BTC: Tensor) -> Tensor:
        if device != "meta":
            return model.blocks[0](x_BTC, context, None)
        with DeviceChoices("cuda"):
            return model.blocks[0](x_BTC, context, None)

    return run, x_BTC.requires_grad_()
