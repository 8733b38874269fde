"""On Hopper torch tries cuDNN's attention first, elsewhere nothing is changed."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from coca_train.engine.process import order_attention


@pytest.fixture(autouse=True)
def _as_before():
    before = torch._C._get_sdp_priority_order()
    yield
    torch._C._set_sdp_priority_order(before)


def test_cudnn_is_first_on_hopper_alone():
    before = torch._C._get_sdp_priority_order()
    for capability in ((8, 0), (8, 9), (10, 0)):
        order_attention(capability)
        assert torch._C._get_sdp_priority_order() == before
    order_attention((9, 0))
    order_attention((9, 0))
    order = torch._C._get_sdp_priority_order()
    assert order[0] == int(SDPBackend.CUDNN_ATTENTION)
    assert sorted(order) == sorted(before)
