"""What the rules take for one kernel, by hand; and that Inductor's own schedule makes no more kernels and moves no more
bytes than they say."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from coca_train.planning.fusion import COLUMNS, POINTWISE, ROWS
from coca_train.positions import rotary
from tests.planning.blocks import LLAMA, NEOX, block
from tests.planning.schedules import ruled, scheduled

N, C = 4 * 64, 256
ALL, WIDTH, TOKENS = (
    2 * N * C,
    2 * C,
    4 * N,
)  # bytes: of activations in bf16, of a weight, of a number a token in float32


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    # On CUDA it is one operation, as LayerNorm is everywhere (dispatch.py); here the schedule is to make one of many.
    return F.layer_norm(x, (C,), w, None, 1e-5) if x.is_meta else F.rms_norm(x, (C,), w, 1e-5)


def layer_norm(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, (C,), w, None, 1e-5)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The products and the cast of a rotation; what turns the halves round (cat) is a kernel of its own."""
    return (x * cos + x * sin).to(x.dtype)


def bias_gradient(x: Tensor, b: Tensor) -> Tensor:
    return x * 2 + b


def given(device: str, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.zeros(shape, dtype=torch.bfloat16, device=device, requires_grad=True) for shape in shapes]


X, W = (4, 64, C), (C,)
# function, shapes, kernels and bytes forward, kernels and bytes backward
NAMED: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], tuple[int, int], tuple[int, int]]] = {
    "RMSNorm reads x once and writes once": (rms_norm, [X, W], (1, 2 * ALL + WIDTH + 2 * TOKENS), (2, 5 * ALL)),
    "LayerNorm reads x once and writes once": (layer_norm, [X, W], (1, 2 * ALL + WIDTH + 2 * TOKENS), (2, 5 * ALL)),
    "SwiGLU is one": (swiglu, [X, X], (1, 4 * ALL), (1, 6 * ALL)),
    "GELU is one": (gelu, [X], (1, 2 * ALL), (1, 3 * ALL)),
    "a rotation's products and its cast are one": (rotated, [X, X, X], (1, 4 * ALL), (1, 7 * ALL)),
    "the gradient of a bias is a sum of its own": (bias_gradient, [X, W], (1, 2 * ALL + WIDTH), (2, 3 * ALL)),
}
SLACK = 1.05  # numbers of a token and weights, whose bytes the table leaves out


@pytest.mark.parametrize("name", NAMED)
def test_a_rule_by_hand(name: str) -> None:
    function, shapes, *expected = NAMED[name]
    for kernels, (n, nbytes) in zip(ruled(function, *given("meta", *shapes)), expected, strict=True):
        assert len(kernels) == n, kernels
        assert nbytes / SLACK <= sum(kernel.nbytes for kernel in kernels) <= nbytes * SLACK


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_the_schedule_shows_it(name: str) -> None:
    function, shapes, *expected = NAMED[name]
    graphs = scheduled(function, *given("cpu", *shapes))
    for graph, (n, nbytes) in zip(graphs, expected, strict=True):
        assert len(graph) <= n and sum(graph) <= nbytes * SLACK


BLOCKS = {
    "llama, rope": (*LLAMA, "position=rope"),
    "llama, coca": (*LLAMA, "position=coca"),
    "llama, strict coca": (*LLAMA, "position=coca", "position.variant=strict"),
    "neox, rope": (*NEOX, "position=rope"),
    "neox, coca": (*NEOX, "position=coca"),
    "neox, sequential, alibi": (*NEOX, "model.residual=sequential", "position=alibi", "position.fold=never"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_move_no_more_than_the_rules_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of everything but products and attention, forward and backward together, within 5 %; each of them within 10 %,
    as a compiler computes some things again in backward that autograd keeps."""
    monkeypatch.setattr(rotary, "PIECE", 2**40)  # on the CPU a rotation goes through time in pieces
    seen = [sum(graph) for graph in scheduled(*block(BLOCKS[name], "cpu"))]
    told = [sum(kernel.nbytes for kernel in kernels) for kernels in ruled(*block(BLOCKS[name], "meta"))]
    assert sum(seen) <= 1.05 * sum(told)
    assert all(one <= 1.10 * other for one, other in zip(seen, told, strict=True)), (seen, told)


def test_what_another_kernel_needs_is_written_and_what_none_does_is_not() -> None:
    """A product between two sums keeps them apart, and reads what the first wrote."""

    def around_a_product(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            before = (x * 2 + 1) * x
            return before + before @ w

    forward, _ = ruled(around_a_product, *given("meta", X, (C, C)))
    assert [(kernel.nbytes, kernel.rule) for kernel in forward] == [(2 * ALL, POINTWISE), (3 * ALL, POINTWISE)]


def test_rules_are_told_apart() -> None:
    forward, backward = ruled(layer_norm, *given("meta", X, W))
    assert [kernel.rule for kernel in forward] == [ROWS]
    assert sorted(kernel.rule for kernel in backward) == [COLUMNS, ROWS]
