"""Compiled blocks: one graph for each kind of layers, none that breaks, none made anew after the first step, and what
they compute is what they compute otherwise, gradients included.

By Dynamo and AOTAutograd (`aot_eager`), which is where graphs break and are made anew; by Inductor where a compiler is.
"""

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.layer_types import UNIFORM
from coca_train.config.schema import LayersConfig, LayerTypeConfig
from coca_train.data.batch import collate
from coca_train.data.packing import Row
from coca_train.engine.base import summed_loss
from coca_train.models.compiled import CompiledBlocks
from coca_train.models.memory import Memory
from coca_train.models.recompute import CHECKPOINTING
from coca_train.models.transformer import Transformer
from coca_train.runtime.machine import missing_compiler
from coca_train.settings import load
from coca_train.testing.parts import MODEL, VOCAB, build, refused, shipped
from tests.cases import slow_unless
from tests.config.support import refused as config_refused

T, CPU = 40, torch.device("cpu")
SCHEMES, ROPE_SCALINGS = dict(shipped()), dict(shipped("position/rope_scaling"))
ATTENTION_PATTERNS = {
    name: settings
    for name, settings in shipped("attention_pattern")
    if patterns.build(patterns.settings(settings)).trains
}
SCHEDULE = LayersConfig(
    pattern=["default", "far"],
    types={"far": LayerTypeConfig(attention_pattern={"name": "sliding_window", "window": 9})},
)


def batch_of(step: int, with_documents: bool, seq_len: int = T) -> Any:
    """Another batch every step, with documents of other lengths."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, VOCAB, (2, seq_len + 1), generator=generator).numpy()
    starts = [[5 + step, 17], [30 - step]] if with_documents else [None, None]
    return collate([Row(row, seq_len, start) for row, start in zip(ids, starts, strict=True)])


def model_of(scheme: Any, attention_pattern: Any = None, layers: Any = UNIFORM, way: str = "none") -> Transformer:
    seen = patterns.settings(attention_pattern or {"name": "causal"})
    model = Transformer(
        MODEL, positions.settings(scheme), seen, vocab_size=VOCAB, max_seq_len=T, layers=layers,
        activation_checkpointing=way,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.1, generator=generator)
    return model.train()


def steps(model: Transformer, batches: list[Any]) -> list[torch.Tensor]:
    """Losses and gradients."""
    torch.manual_seed(1)
    seen = []
    for batch in batches:
        loss = summed_loss(model, batch, CPU)
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        model.zero_grad(set_to_none=True)
    return seen


def check(model: Transformer, batches: list[Any], backend: str = "aot_eager", n_kinds: int = 1) -> None:
    """The same losses and gradients, and as many graphs as there are kinds of layers.

    Without Inductor nothing is rounded otherwise: in float64 a gradient that does not arrive is seen, however small.
    """
    exactly = {"rtol": 1e-6, "atol": 1e-9} if backend == "aot_eager" else {"rtol": 1e-4, "atol": 1e-5}
    model = model.double() if backend == "aot_eager" else model
    torch._dynamo.reset()
    counters.clear()
    expected = steps(model, batches)
    model.compiled = CompiledBlocks(CHECKPOINTING[model.activation_checkpointing], backend)
    seen = steps(model, batches)
    assert model.compiled.eager == {}
    # torch 2.11 looks at every number that a checkpointed block is given: one more once a text ends elsewhere.
    looks = torch.__version__ < "2.12" and model.activation_checkpointing != "none"
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] in {n_kinds, n_kinds << looks}
    for mine, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **exactly)


def cases() -> list[tuple[str, str, bool, str, bool]]:
    """(scheme, way, documents, attention pattern, layer schedule): every scheme in every way, the rest in turn."""
    out, seen = [], list(ATTENTION_PATTERNS)
    for i, scheme in enumerate(SCHEMES):
        for j, way in enumerate(CHECKPOINTING):
            for documents in (False, True):
                attention_pattern = seen[(i + j + 3 * documents) % len(seen)]
                if refused(ATTENTION_PATTERNS[attention_pattern], build(SCHEMES[scheme])):
                    attention_pattern = "causal"
                out.append((scheme, way, documents, attention_pattern, (i + j + documents) % 2 == 0))
    return out


ALL = cases()
QUICK = [ALL[at] for at in (0, 25, 63, 111)]


@pytest.mark.parametrize(("scheme", "way", "documents", "attention_pattern", "schedule"), slow_unless(QUICK, ALL))
def test_one_graph_for_every_scheme(scheme, way, documents, attention_pattern, schedule):
    layers = UNIFORM if refused({"name": "sliding_window", "window": 9}, build(SCHEMES[scheme])) else SCHEDULE
    layers = layers if schedule else UNIFORM
    model = model_of(SCHEMES[scheme], ATTENTION_PATTERNS[attention_pattern], layers, way)
    check(model, [batch_of(step, documents) for step in range(3)], n_kinds=len(set(model.layer_types)))


@pytest.mark.parametrize("frequency", slow_unless(["clex"], ROPE_SCALINGS))
@pytest.mark.parametrize("scheme", ["rope", pytest.param("coca", marks=pytest.mark.slow)])
def test_one_graph_for_every_frequency(scheme, frequency):
    model = model_of(SCHEMES[scheme] | {"rope_scaling": ROPE_SCALINGS[frequency]})
    check(model, [batch_of(step, True) for step in range(3)])


@pytest.mark.parametrize("trained", ["position", "attention.k", "mlp"])
@pytest.mark.slow
def test_two_graphs_in_a_stage_that_trains_a_part(trained):
    """One of them for layers whose input needs no gradient."""
    model = model_of(SCHEMES["coca"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name or "blocks.1" in name)
    check(model, [batch_of(step, False) for step in range(2)], n_kinds=2)


def test_a_penalty_on_the_angle_reaches_the_loss():
    check(model_of(SCHEMES["rope"] | {"angle_penalty": 5.0}), [batch_of(step, True) for step in range(3)])


@pytest.mark.slow
def test_what_recomputed_blocks_leave_is_not_compiled():
    """A checkpointed region of a graph has no effects: such blocks run as they are written."""
    torch._dynamo.reset()
    model, batches = model_of(SCHEMES["rope"] | {"angle_penalty": 5.0}, way="full").double(), [batch_of(0, True)]
    expected = steps(model, batches)
    model.compiled = CompiledBlocks(CHECKPOINTING["full"], "aot_eager")
    for mine, theirs in zip(steps(model, batches), expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert list(model.compiled.eager) == ["default"]


def test_a_longer_stage_is_one_more():
    model = model_of(SCHEMES["rope"])
    check(model, [batch_of(0, False), batch_of(0, False, 24), batch_of(1, False), batch_of(1, False, 24)], n_kinds=2)


@pytest.mark.slow
def test_with_a_memory_of_the_segment_before():
    torch._dynamo.reset()
    model, batch, grads = model_of(SCHEMES["transformer_xl"] | {"memory_len": 8}), batch_of(0, False), []
    for blocks in (None, CompiledBlocks(CHECKPOINTING["full"], "aot_eager")):
        model.compiled = blocks
        memory = Memory([torch.full((2, 8, MODEL.d_model), 0.3)] * MODEL.n_layers, torch.tensor([8, 5]))
        model(batch.tokens_BT, batch.targets_BT, batch.pos_BT, memory=memory).backward()
        grads.append([p.grad for p in model.parameters()])
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    assert model.compiled is not None and model.compiled.eager == {}


@pytest.mark.slow
@pytest.mark.skipif(missing_compiler("cpu") is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("way", CHECKPOINTING)
@pytest.mark.parametrize("scheme", ["coca", "t5", "rope"])
def test_inductor(scheme, way):
    check(model_of(SCHEMES[scheme], way=way), [batch_of(step, True) for step in range(2)], "inductor")


@pytest.mark.slow
@pytest.mark.skipif(missing_compiler("cpu") is not None, reason="needs a C++ compiler")
def test_a_compiler_that_fails_is_said_in_a_line(tmp_path, capsys):
    """Its own messages fill pages."""
    from torch._inductor import config, utils

    torch._dynamo.reset()
    broken = tmp_path / "g++"
    lines = "case $1 in --version|-v) exec g++ $1;; esac; seq -f 'main.cpp:%g: error: no' 100 >&2; exit 1"
    broken.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    broken.chmod(0o755)
    model, batches = model_of(SCHEMES["rope"]), [batch_of(0, False)]
    expected = steps(model, batches)
    model.compiled = CompiledBlocks(CHECKPOINTING["none"])
    with config.patch({"cpp.cxx": (str(broken),)}), utils.fresh_cache():
        assert all(torch.equal(a, b) for a, b in zip(steps(model, batches), expected, strict=True))
    said = "".join(capsys.readouterr())
    assert said.count("layers of type default are not compiled: CppCompileError") == 1
    assert len(said.splitlines()) == 1


def test_a_graph_that_would_break_is_said_in_words(capsys):
    def asks(block, x_BTC, context, past_BMC):
        return block(x_BTC, context, past_BMC) if float(x_BTC.sum()) else x_BTC

    model, batches = model_of(SCHEMES["rope"]), [batch_of(0, False)]
    expected = steps(model, batches)
    model.compiled = CompiledBlocks(asks, "aot_eager")
    assert all(torch.equal(a, b) for a, b in zip(steps(model, batches), expected, strict=True))
    assert list(model.compiled.eager) == ["default"]
    assert "".join(capsys.readouterr()).count("layers of type default are not compiled") == 1


def test_a_backend_that_fails_is_said_with_its_cause(capsys):
    """torch's first line has the name of the backend alone."""

    def lower(graph, inputs):
        raise NotImplementedError("no such kernel\nand pages of where")

    register_backend(lower, name="lower")
    model = model_of(SCHEMES["rope"])
    model.compiled = CompiledBlocks(CHECKPOINTING["none"], "lower")
    steps(model, [batch_of(0, False)])
    assert model.compiled.eager == {"default": "NotImplementedError: no such kernel"}
    assert len("".join(capsys.readouterr()).splitlines()) == 1


def test_a_backward_graph_that_cannot_be_compiled_runs_as_it_is():
    """torch compiles it in the first backward pass, where nothing could be done about it any more."""

    def as_it_is(graph, inputs):
        return make_boxed_func(graph)

    def fails(graph, inputs):
        raise NotImplementedError("no such kernel")

    register_backend(aot_autograd(fw_compiler=as_it_is, bw_compiler=fails), name="fails_backwards")
    torch._dynamo.reset()
    model, batches = model_of(SCHEMES["rope"]), [batch_of(0, False)]
    expected = steps(model, batches)
    model.compiled = CompiledBlocks(CHECKPOINTING["none"], "fails_backwards")
    assert all(torch.equal(a, b) for a, b in zip(steps(model, batches), expected, strict=True))
    assert model.compiled.eager == {"default": "NotImplementedError: no such kernel"}


@pytest.mark.slow
def test_crossing_the_limit_of_recompilations_is_an_error():
    torch._dynamo.reset()
    model = model_of(SCHEMES["rope"])
    model.compiled = CompiledBlocks(CHECKPOINTING["none"], "aot_eager")
    with (
        torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False),
        pytest.raises(FailOnRecompileLimitHit),
    ):
        steps(model, [batch_of(0, False, seq_len) for seq_len in (24, 32, 40)])


def test_only_training_is_compiled():
    model, batch = model_of(SCHEMES["rope"]), batch_of(0, False)
    model.compiled = CompiledBlocks(lambda *given: 1 / 0, "aot_eager")
    with torch.no_grad():
        model(batch.tokens_BT)
    model.eval()(batch.tokens_BT)


def test_the_option():
    assert load(["engine.compile=blocks"]).config.engine.compile == "blocks"
    assert load([]).config.engine.compile == "auto"


def test_zero_3_is_refused():
    (line,) = config_refused(["engine.compile=blocks", "engine.zero_stage=3"])
    assert line.startswith("E-CFG-77") and "engine.compile=none" in line
