"""A limit of recompilations of its own for every compiled function."""

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from coca_train.runtime.compilation import compile_alone


def scaled(x, *, by=2.0):
    return x * by


def test_copies_of_one_function_do_not_share_torchs_limit():
    with torch._dynamo.config.patch(recompile_limit=1, automatic_dynamic_shapes=False):
        for n in (3, 4, 5):
            assert torch.equal(compile_alone(scaled, "eager")(torch.ones(n)), torch.full((n,), 2.0))
        one = compile_alone(scaled, "eager")
        one(torch.ones(3))
        with pytest.raises(FailOnRecompileLimitHit):
            one(torch.ones(4))


def test_a_graph_that_breaks_is_an_error():
    def asks(x):
        return x if float(x.sum()) else -x

    with pytest.raises((TorchDynamoException, GuardOnDataDependentSymNode)):
        compile_alone(asks, "eager")(torch.ones(3))
