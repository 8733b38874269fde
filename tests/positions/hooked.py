"""One layer of a scheme with a hook, in every kernel, against the dense reference: float64, tiles so small that a
text has several, values and all gradients."""

import itertools

import torch

from coca_train.models import kernels, online
from coca_train.models.scores import part_of
from coca_train.positions import visibilities
from tests.positions import reference, support

KERNELS = {"eager": kernels.eager, "blocked": kernels.blocked, "online": online.online}
DOCUMENTS = torch.tensor([[0] * 3 + [1] * 9 + [2] * 7, [0] * 13 + [1] * 6])
N_TOKENS = DOCUMENTS.shape[1]
VISIBILITIES = {"causal": {"name": "causal"}, "window": {"name": "sliding_window", "window": 5}}
CASES = list(itertools.product(KERNELS, VISIBILITIES, ["one", "packed"], [(4, 2), (3, 3)]))


def check(settings, kernel, visibility, documents, heads, monkeypatch, change=lambda mapped: mapped):
    """AssertionError where the kernel differs from the reference. change: of what the layer has made."""
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    monkeypatch.setattr(online, "QUERY_TILE", 4)
    monkeypatch.setattr(online, "KEY_TILE", 3)
    scheme = support.build(settings, *heads)
    layer = support.layer_of(scheme)
    named = dict(layer.named_parameters())
    pos, doc = support.start(N_TOKENS), None
    if documents == "packed":
        pos, doc = torch.stack([torch.cat([*map(torch.arange, row.bincount())]) for row in DOCUMENTS]), DOCUMENTS
    q, k, v = inputs = support.random_qkv(scheme, N_TOKENS)
    rules = VISIBILITIES[visibility]
    (layout,) = visibilities.build(visibilities.settings(rules)).layouts(pos, pos, doc)
    given = scheme(pos, pos, N_TOKENS), support.projections(scheme), support.tokens(layer, k)
    mapped = change(layer(scheme, q, k, *given))
    out = KERNELS[kernel]([part_of(mapped, layout)], v, scheme.shape.head_dim**-0.5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine = torch.autograd.grad(out, [*inputs, *named.values()], weight)

    wide = [x.detach().requires_grad_() for x in (*inputs, *named.values())]
    values = dict(zip(named, wide[3:], strict=True))
    exact = reference.attention(settings, *wide[:3], pos, N_TOKENS, values, None, rules, doc)
    torch.testing.assert_close(out, exact, rtol=1e-9, atol=1e-9)
    for name, a, b in zip(["q", "k", "v", *named], mine, torch.autograd.grad(exact, wide, weight), strict=True):
        assert b.any(), name
        assert (a - b).abs().max() <= 1e-7 * b.abs().max() + 1e-12, name


def check_compiled(settings, monkeypatch):
    """The same with every tile's hook compiled, as on CUDA: traced, its gradient too, and run uncompiled."""
    torch._dynamo.reset()

    def compiled(mapped):
        hook = mapped.hooked.by
        traced = hook._replace(scores=torch.compile(hook.scores, backend="aot_eager"))
        return mapped._replace(hooked=mapped.hooked._replace(by=traced))

    check(settings, "online", "window", "packed", (4, 2), monkeypatch, compiled)
