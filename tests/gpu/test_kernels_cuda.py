"""On CUDA every scheme's kernel equals the definition, gradients of learnable terms included, and holds no T x T."""

from dataclasses import replace

import pytest
import torch

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.flex import flex
from coca_train.attention.kernels import KERNELS, choose
from coca_train.attention.pattern import AttentionPattern
from coca_train.attention.scores import part_of
from coca_train.config.schema import LogitScaleConfig
from coca_train.positions.base import AttentionShape
from coca_train.testing.parts import MODEL, VOCAB, layer_of, projections, shipped, start, tokens
from tests.models.conftest import CAUSAL, build

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SHAPE = AttentionShape(n_heads=4, n_kv_heads=2, head_dim=64, d_model=256, max_seq_len=64)
SCHEMES = dict(shipped())
WINDOWS = {
    "sliding_window": {"name": "sliding_window", "window": 100},
    "sinks": {"name": "sinks", "n_sink": 4, "window": 60},
    "lambda_mask": {"name": "lambda_mask", "n_global": 10, "window": 64, "max_distance": 64},
    "rerope": {"name": "rerope", "window": 32},
    "segments": {"name": "segments", "length": 48},
    "self_extend": {"name": "self_extend", "window": 64, "group": 8, "neighbours": 24},
    "dual_chunk": {"name": "dual_chunk", "window": 64, "chunk_size": 48, "local_window": 16, "cap": "code"},
    "string": {"name": "string", "window": 64, "shift": 40, "local": 20},
    "dilated": {"name": "dilated", "window": 30, "dilation": 3, "n_global": 4},
}
# What options of `model` make of scores: with products alone, a table by distance, a hook of their own.
SCORE_OPTIONS = {
    "cap": {"score_cap": 5.0},
    "sink": {"learned_sink": True},
    "head_scale": {"score_scale": "head"},
    "ssmax": {"score_scale": "head", "logit_scale": LogitScaleConfig(name="ssmax", length=64, beta=0.1)},
    "s2": {},  # groups of heads that see different keys, in training
}
LOOPS = ("shaw", "fire", "dape", "cope", "grape_ap", "path", "stick_breaking")  # FlexAttention can look none of them up


def attend(kernel, settings, attention_pattern, n_tokens, dtype, rounded):
    """(output, gradients of q, k, v and of every parameter of the scheme), computed in dtype from values that have been
    rounded to `rounded`: CoPE's gates, DAPE's and TUPE's layers make much of what rounding takes off a query."""
    torch.manual_seed(0)
    position = positions.build(positions.settings(settings), SHAPE)
    layer = layer_of(position)
    for parameter in position.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    position, layer = (part.to("cuda", rounded).to(dtype) for part in (position, layer))
    widths = ((4, 64), (2, position.key_dim), (2, 64))
    q, k, v = (torch.randn(2, n_tokens, *w).to("cuda", rounded).to(dtype).requires_grad_() for w in widths)
    pos = start(n_tokens).cuda()
    on_cpu = projections(position, dtype)
    project = on_cpu._replace(query=lambda x: on_cpu.query(x.cpu()).cuda(), key=lambda x: on_cpu.key(x.cpu()).cuda())
    parts = []
    for layout in patterns.build(patterns.settings(attention_pattern)).layouts(pos, pos):
        tables = position(layout.pos_BT, layout.pos_BS, n_tokens)
        parts.append(part_of(layer(position, q, k, tables, project, tokens(layer, k)), layout))
    out = KERNELS[kernel](parts, v, 64**-0.5)
    out.float().square().sum().backward()
    grads = [x.grad for x in (q, k, v, *position.parameters(), *layer.parameters())]
    return choose(parts, n_tokens), out, [torch.zeros(()) if g is None else g for g in grads]


def same(settings, attention_pattern, n_tokens, dtype, tolerance):
    """Near the definition in float32, or at most twice as far from it as the definition itself is in this dtype: CoPE's
    gradient jumps where a count passes a whole number, which rounding decides."""

    def results(kernel, computed_in):
        name, out, grads = attend(kernel, settings, attention_pattern, n_tokens, computed_in, rounded=dtype)
        return name, [x.float() for x in (out, *grads)]

    _, wanted = results("eager", torch.float32)
    _, defined = results("eager", dtype)
    name, got = results("auto", dtype)
    for a, b, c in zip(got, wanted, defined, strict=True):
        assert (a - b).abs().max() <= max(tolerance * b.abs().max() + 1e-6, 2 * (c - b).abs().max())
    return name


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-3), (torch.bfloat16, 4e-2)])
def test_every_scheme(name, dtype, tolerance):
    kernel = same(SCHEMES[name], CAUSAL, 64, dtype, tolerance)
    wanted = {"transformer_xl": "flex", "linear_rope": "linear", **dict.fromkeys(LOOPS, "blocked")}.get(name)
    assert kernel == wanted if wanted else kernel in ("sdpa", "flex")


@pytest.mark.parametrize("attention_pattern", WINDOWS)
@pytest.mark.parametrize("name", ["rope", "coca_strict", "t5", "kerple_log"])
def test_every_attention_pattern(name, attention_pattern):
    assert same(SCHEMES[name], WINDOWS[attention_pattern], 200, torch.float32, 2e-3) == "flex"


@pytest.mark.parametrize("option", SCORE_OPTIONS)
@pytest.mark.parametrize("name", ["rope", "kerple_log", "fox"])
def test_every_score_option(name, option, monkeypatch):
    """A small model's loss and gradients, the options' own among them."""
    chosen, losses, grads = [], [], []
    monkeypatch.setitem(KERNELS, "flex", lambda *given: chosen.append("flex") or flex(*given))
    tokens_BT = torch.randint(0, VOCAB, (2, 201), generator=torch.Generator().manual_seed(5)).cuda()
    for kernel in ("eager", "auto"):
        seen = {"name": "s2", "window": 200, "group": 50} if option == "s2" else CAUSAL
        model = build(replace(MODEL, **SCORE_OPTIONS[option]), name, seen, attention=kernel).cuda()
        for parameter in model.parameters():  # a sink and a factor begin where they change nothing or little
            parameter.data.add_(0.1 * torch.linspace(-1, 1, parameter.numel()).view_as(parameter).cuda())
        loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:])
        loss.backward()
        losses.append(loss.item())
        grads.append([parameter.grad for parameter in model.parameters()])
    assert chosen or (name == "rope" and option in ("head_scale", "ssmax"))  # products alone, scaled beforehand
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    for wanted, got in zip(*grads, strict=True):
        assert (got - wanted).abs().max() <= 2e-3 * wanted.abs().max() + 1e-6


@pytest.mark.parametrize("name", sorted(set(SCHEMES) - {"learned", "tupe"}))
def test_memory_at_32k(name):
    """Forward and backward of one layer take less than a quarter of what the T x T scores alone would."""
    n_tokens = 32768
    torch.cuda.reset_peak_memory_stats()
    attend("auto", SCHEMES[name], CAUSAL, n_tokens, torch.bfloat16, rounded=torch.bfloat16)
    scores_bytes = 2 * 4 * n_tokens**2 * 2
    assert torch.cuda.max_memory_allocated() < scores_bytes / 4


def test_causal_layout_needs_no_mask():
    pos = start(8)
    (layout,) = AttentionPattern(None).layouts(pos, pos)
    assert layout.is_causal_only
