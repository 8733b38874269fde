"""Block masks: what they leave out is not seen, what they take whole all is; memory of blocks; one for all layers."""

import weakref

import pytest
import torch
import torch._dynamo.exc
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coca_train.attention import flex, patterns
from coca_train.attention.flex import BLOCK, block_mask
from coca_train.attention.pattern import seen
from coca_train.testing.parts import packed, shipped, start
from tests.models.test_compiled import SCHEMES, batch_of, model_of

ATTENTION_PATTERNS = dict(shipped("attention_pattern"))


def layouts(attention_pattern, pos, doc=None, n_queries=None):
    rules = patterns.build(patterns.settings(ATTENTION_PATTERNS[attention_pattern]))
    return rules.layouts(pos[:, -(n_queries or pos.shape[1]) :], pos, doc)


def texts():
    pos, doc = packed([130, 200, 170], [500], [3, 1, 300, 196])
    return {"text": (start(500), None), "documents": (pos, doc), "behind a cache": (start(500), None)}


@pytest.mark.parametrize("text", texts())
@pytest.mark.parametrize("attention_pattern", ATTENTION_PATTERNS)
def test_a_block_mask_shows_what_is_seen(attention_pattern, text):
    """Pair by pair: blocks that are left out hide nothing that is seen, whole ones show nothing that is not."""
    pos, doc = texts()[text]
    for layout in layouts(attention_pattern, pos, doc, 200 if text == "behind a cache" else None):
        mask = flex.mask_mod(layout)
        made = block_mask(layout, mask)
        wanted = seen(layout, slice(0, layout.text_BT.shape[1]), slice(0, pos.shape[1]))
        theirs = create_block_mask(mask, len(wanted), None, *wanted.shape[1:], device="cpu")
        for row, pairs in enumerate(wanted):
            at = row if made.kv_num_blocks.shape[0] > 1 else 0
            for i in range(made.kv_num_blocks.shape[2]):
                partial = made.kv_indices[at, 0, i, : made.kv_num_blocks[at, 0, i]].tolist()
                whole = made.full_kv_indices[at, 0, i, : made.full_kv_num_blocks[at, 0, i]].tolist()
                assert not set(partial) & set(whole)
                for j in range(-(-pos.shape[1] // BLOCK)):
                    block = pairs[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
                    assert j in partial + whole or not block.any()
                    assert j not in whole or block.all()
        if doc is None:  # nothing is looked at pair by pair that need not be
            assert made.to_dense().sum() == theirs.to_dense()[: len(made.to_dense())].sum()


class Allocated(TorchDispatchMode):
    """Bytes alive at once at most."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and id(leaf.untyped_storage()) not in self.known:
                storage = leaf.untyped_storage()
                key, size = id(storage), storage.nbytes()
                self.known[key] = weakref.ref(storage, lambda _, key=key, size=size: self.let_go(key, size))
                self.live += size
                self.peak = max(self.peak, self.live)
        return out

    def let_go(self, key, size):
        self.live -= size
        del self.known[key]


@pytest.mark.parametrize("with_documents", [False, True])
def test_at_32k_it_takes_no_64_mb(with_documents):
    pos = start(32768)
    doc = (pos // 700) if with_documents else None
    (layout,) = layouts("sliding_window", pos % 700 if with_documents else pos, doc)
    with Allocated() as allocated:
        block_mask(layout, flex.mask_mod(layout))
    assert allocated.peak < 64e6


def test_one_mask_serves_all_layers_of_a_forward(monkeypatch):
    made = []
    monkeypatch.setattr(flex, "block_mask", lambda layout, mask: made.append(layout) or block_mask(layout, mask))
    model, batch = model_of(SCHEMES["t5"]), batch_of(0, True)
    model.attention = "flex"
    with torch.no_grad():
        model(batch.tokens_BT, None, batch.pos_BT, batch.doc_BT)
    assert len(model.blocks) > 1 and len(made) == 1


@pytest.fixture
def compiled(monkeypatch):
    """Kernels that Dynamo traces and nobody compiles further: key -> graphs."""
    torch._dynamo.reset()
    graphs, keep = {}, flex._compiled.__wrapped__

    def compiling(key):
        def backend(graph, inputs):
            graphs[key] = graphs.get(key, 0) + 1
            return graph.forward

        if key not in kernels:
            kernels[key] = keep(key, backend)
        return kernels[key]

    kernels = {}
    monkeypatch.setattr(flex, "_compiled", compiling)
    monkeypatch.setattr(flex, "_compiles", lambda q_BHTE: True)
    return graphs


@torch.no_grad()
def attend(scheme, attention_pattern, n_tokens):
    model = model_of(SCHEMES[scheme], ATTENTION_PATTERNS[attention_pattern])
    model.attention = "flex"
    model(torch.zeros(1, n_tokens, dtype=torch.int64))


@pytest.mark.slow
def test_one_kernel_for_each_scheme_and_rule(compiled):
    """What ran is asked of Dynamo: torch's limit of 8 counts for each kernel, and lengths become dynamic before it. The
    schemes whose bias is a table by distance (t5, kerple_log, sandwich) share one, with tables of three forms."""
    schemes = ["t5", "alibi", "kerple_log", "sandwich", "transformer_xl", "disentangled", "fox", "rope"]
    patterns_ = ["causal", "sliding_window"]
    for attention_pattern in patterns_:
        for scheme in schemes:
            for n_tokens in (40, 72, 96, 130, 200, 256, 300, 384, 512, 640):
                attend(scheme, attention_pattern, n_tokens)
    assert max(compiled.values()) <= 5, compiled
    assert len(compiled) >= 8


@pytest.mark.slow
def test_crossing_the_limit_is_an_error(compiled):
    with (
        torch._dynamo.config.patch(recompile_limit=1, automatic_dynamic_shapes=False),
        pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit),
    ):
        [attend("t5", "causal", n_tokens) for n_tokens in (40, 72)]
