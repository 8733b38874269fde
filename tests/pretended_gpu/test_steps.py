"""What a step on a pretended GPU does not let pass. (Fake tensors need no GPU, and no build for one.)"""

import pytest
import torch

from tests.pretended_gpu.steps import GPU, Asked, nothing_asked


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda x: x.cpu(), id="cpu"),
        pytest.param(lambda x: x.to("cpu", torch.float64), id="to"),
        pytest.param(lambda x: torch.empty(2).copy_(x), id="copy_"),
        pytest.param(lambda x: torch.vmap(lambda one: one.cpu())(x), id="inside vmap"),
    ],
)
def test_a_copy_to_the_host_is_a_question(ask):
    with nothing_asked(), pytest.raises(Asked):
        ask(torch.empty(2, device=GPU))


def test_a_copy_from_the_host_is_none():
    with nothing_asked():
        assert torch.ones(2).to(GPU).device == GPU
        assert torch.ones(2).double().is_cpu
