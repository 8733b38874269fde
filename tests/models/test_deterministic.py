"""engine.deterministic on CUDA: no gradient is summed by FlexAttention's atomics."""

import pytest
import torch

from coca_train.attention.kernels import KERNELS, choose
from coca_train.attention.pattern import AttentionPattern
from coca_train.attention.scores import Part, part_of
from coca_train.runtime.device import pretend_device
from coca_train.testing.parts import build, layer_of, mapped, random_qkv, shipped, start

SCHEMES = dict(shipped())
# Whose look-ups learn: tables of biases, queries or keys that are multiplied with them, gates.
LEARN = {"t5", "kerple_log", "kerple_power", "tupe", "disentangled", "transformer_xl", "fox", "dd_alibi", "grape_a"}


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def parts_of(name: str) -> tuple[list[Part], torch.Tensor]:
    scheme = build(SCHEMES[name])
    q, k, v = random_qkv(scheme, 9)
    (layout,) = AttentionPattern(None).layouts(start(9), start(9))
    return [part_of(mapped(scheme, q, k, start(9), start(9), 9, layer_of(scheme)), layout)], v


def choose_on_cuda(name: str) -> str:
    with pretend_device("cuda"):
        return choose(parts_of(name)[0], 9)


@pytest.mark.parametrize("name", SCHEMES)
def test_what_learns_is_not_looked_up_by_flex(name, deterministic):
    """Without gradients it may be: forward there is one order."""
    torch.use_deterministic_algorithms(False)
    as_it_is = choose_on_cuda(name)
    torch.use_deterministic_algorithms(True)
    assert choose_on_cuda(name) == ("blocked" if name in LEARN else as_it_is)
    with torch.no_grad():
        assert choose_on_cuda(name) == as_it_is


def test_every_scheme_that_learns_would_be_looked_up():
    assert all(choose_on_cuda(name) == "flex" for name in LEARN)


def test_a_kernel_that_is_asked_for_by_name_obeys_too(deterministic):
    """On a CPU FlexAttention has no backward pass at all: where it ran, this would be its error."""
    parts, v = parts_of("t5")
    KERNELS["flex"](parts, v, 0.25).sum().backward()
