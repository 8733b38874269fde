"""A limit of recompilations of its own for every compiled function."""

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from coca_train.runtime.compilation import compile_alone, compile_with_fallback, reason


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


def test_beyond_the_limit_the_function_itself_runs_and_that_is_said_once(capsys):
    traced = []

    def backend(graph, inputs):
        traced.append(inputs[0].shape)
        return graph.forward

    double = compile_with_fallback(scaled, backend, "the double")
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
        for n in (3, 4, 5, 6, 3):
            assert torch.equal(double(torch.ones(n)), torch.full((n,), 2.0))
    assert traced == [(3,), (4,)]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("WARNING the double: ")


def test_what_cannot_be_compiled_is_tried_once_and_said_once(capsys):
    def asks(x):
        return x if float(x.sum()) else -x

    run = compile_with_fallback(asks, "eager", "asks")
    for _ in range(3):
        assert torch.equal(run(torch.ones(3)), torch.ones(3))
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("WARNING asks")]) == 1


def test_an_error_of_the_function_itself_is_no_matter_of_the_compiler():
    def fails(x):
        return x @ x

    with pytest.raises(RuntimeError):
        compile_with_fallback(fails, "eager", "fails")(torch.ones(2, 3))


def test_the_reason_is_what_dynamo_came_upon():
    """torch's first line has the kind of the break alone: `Observed exception`."""

    def fails(x):
        raise TypeError("no such thing")

    with pytest.raises(TorchDynamoException) as caught:
        compile_alone(fails, "eager")(torch.ones(3))
    assert "no such thing" in reason(caught.value) and "\n" not in reason(caught.value)
