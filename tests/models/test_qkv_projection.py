"""Q, K and V as one product are what they are one by one, gradients included; parameters stay apart."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coca_train.attention.kernels import KERNELS
from coca_train.models.qkv_projection import KEEP_UP_TO, can_join, project
from coca_train.runtime.device import pretend_device
from coca_train.testing.parts import MODEL, shipped
from tests.models.test_compiled import batch_of, model_of

SCHEMES = dict(shipped())


def losses(scheme, device, trained=""):
    model, batch = model_of(SCHEMES[scheme]).double(), batch_of(0, True, 80)  # more than three tokens for each feature
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    contexts = model.contexts(batch.pos_BT, batch.pos_BT, batch.doc_BT)
    contexts = {kind: each._replace(kernel=KERNELS["eager"]) for kind, each in contexts.items()}  # on both the same
    with FlopCounterMode(display=False) as flops, pretend_device(device):
        x_BTC = model.add_positions(model.embed(batch.tokens_BT), batch.pos_BT)
        for kind, block in zip(model.layer_types, model.blocks, strict=True):
            x_BTC = block(x_BTC, contexts[kind])
        loss = model.head(model.final_norm(x_BTC), batch.targets_BT)
        loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, flops.get_total_flops()


@pytest.mark.parametrize("scheme", ["rope", "coca", "shaw", "transformer_xl", "fox"])
def test_one_product_is_the_same(scheme):
    (a, grads, flops), (b, joined, flops_joined) = losses(scheme, "cpu"), losses(scheme, "cuda")
    torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    assert grads.keys() == joined.keys() and flops == flops_joined
    for name in grads:
        torch.testing.assert_close(grads[name], joined[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("trained", ["attention.k", "attention"])
def test_frozen_weights_are_given_no_work(trained):
    """A stage that trains T alone computes as many project as it does one by one."""
    (_, grads, flops), (_, joined, flops_joined) = losses("coca", "cpu", trained), losses("coca", "cuda", trained)
    assert grads.keys() == joined.keys() and all(trained in name for name in joined)
    assert flops == flops_joined


def test_what_can_be_joined():
    class Adapted(nn.Linear):
        pass

    plain = nn.Linear(4, 3)
    assert can_join((plain, nn.Linear(4, 2)))
    assert not can_join((plain, Adapted(4, 2)))
    assert not can_join((plain, nn.Linear(4, 2).requires_grad_(False)))


def test_it_is_one_product():
    layers = [nn.Linear(MODEL.d_model, width) for width in (8, 4, 4)]
    with pretend_device("cuda"):
        q, k, v = project(torch.randn(2, 72, MODEL.d_model), layers, (4, 2, 4))
        few = project(torch.randn(2, 71, MODEL.d_model), layers, (4, 2, 4))  # too few to be a gain
    assert (
        q.shape[-2:] == (2, 4)
        and k.shape[-2:] == (2, 2)
        and q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr()
    )
    assert v.shape == (2, 72, 1, 4)
    assert few[0].untyped_storage().data_ptr() != few[1].untyped_storage().data_ptr()


@torch.no_grad()
def test_small_joint_weights_are_kept_with_a_cache():
    """Of single tokens without gradients; adapters and large weights stay as they are."""
    layers, kept = tuple(nn.Linear(16, width) for width in (8, 4, 4)), {}
    x_BTC = torch.randn(2, 1, 16)
    before = [layer(x_BTC).unflatten(-1, (-1, 4)) for layer in layers]
    torch.testing.assert_close(list(project(x_BTC, layers, (4, 4, 4), kept)), before)
    assert kept[layers].weight_NC.shape == (16, 16)
    for layer in layers:
        layer.weight.zero_()  # within one text nobody does this
    torch.testing.assert_close(list(project(x_BTC, layers, (4, 4, 4), kept)), before)
    narrow = [heads.unflatten(-1, (-1, width)) for heads, width in zip(before, (4, 2, 4), strict=True)]
    narrow = [each.flatten(-3, -2) for each in narrow]
    torch.testing.assert_close(list(project(x_BTC, layers, (4, 2, 4), kept)), narrow)
    for others in ((layers[0], nn.Linear(16, KEEP_UP_TO // 16)), (layers[0], nn.Identity())):
        kept.clear()
        project(x_BTC, others, (4, 4), kept)
        assert kept == {others: None}
    kept.clear()
    project(x_BTC.expand(-1, 2, -1), layers, (4, 4, 4), kept)
    with torch.enable_grad():
        assert project(x_BTC, layers, (4, 4, 4), kept)[0].requires_grad
    assert not kept
