"""Schemes against implementations by other people, on small shapes and random numbers.

transformers      disentangled (DeBERTa-v2 with share_att_key: positions go through W_Q and W_K of the layer), shaw's
                  keys (Wav2Vec2-BERT's relative_key), the masks of sliding windows and of chunks
x-transformers    xpos (RotaryEmbedding with use_xpos), sinusoidal

Elsewhere: rope, its scalings and alibi in test_golden.py, llama3 in test_llama3.py, t5 in test_t5.py (T5,
x-transformers), transformer_xl in test_transformer_xl.py (XLNet), DeBERTa-v1 in test_disentangled.py, tupe's relative
term in test_tupe.py. No package has kerple, sandwich, sinks, lambda_mask or rerope: for those, tests/golden/ has
formulas in 40 digits and a reader that takes token after token.
"""

import pytest
import torch

from coca_train.attention import pattern as attention_pattern
from coca_train.attention import patterns
from coca_train.testing import parts
from tests.positions import support

CAUSAL = torch.ones(40, 40, dtype=torch.bool).tril()


@pytest.mark.parametrize("span", [6, 50])
def test_disentangled_equals_transformers_deberta(span):
    """Distance k - 1 is DeBERTa's last. Its scale_factor, 3 with both kinds of terms, is 1 here: we divide by √D."""
    pytest.importorskip("transformers")
    from transformers import DebertaV2Config
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    fields = {"hidden_size": 24, "num_attention_heads": 4, "max_relative_positions": span, "position_buckets": -1}
    kinds = {"relative_attention": True, "share_att_key": True, "pos_att_type": ["c2p", "p2c"]}
    peer = DisentangledSelfAttention(DebertaV2Config(**fields, **kinds)).double().eval()
    scheme = parts.build({"scheme": "disentangled", "max_distance": span - 1}, 4, 4, 6, 24)
    project = parts.projections(scheme)
    for linear, ours in ((peer.query_proj, project.query), (peer.key_proj, project.key)):
        linear.weight.data.copy_(ours(torch.eye(24).double()).flatten(1).T)
        linear.bias.data.zero_()
    (p,) = scheme.parameters()
    table = torch.randn(2 * span, 24, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    table[span:] = p.detach()  # distances below 0, which causality hides, are left random

    n_tokens = 17
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, n_tokens, 1))
    pos = parts.start(n_tokens)
    apart = pos[0, :, None] - pos[0]
    theirs = peer.disentangled_attention_bias(q[0].transpose(0, 1), k[0].transpose(0, 1), apart[None], table, 1)
    content = torch.einsum("thd,shd->hts", q[0], k[0]) / 6**0.5
    mine = parts.dense_scores(scheme, q, k, pos, pos, n_tokens)[0]
    causal = CAUSAL[:n_tokens, :n_tokens]
    assert torch.allclose((mine - content)[:, causal], theirs[:, causal], rtol=0, atol=1e-6)


@pytest.mark.parametrize("max_distance", [4, 60])
def test_shaw_keys_equal_transformers_wav2vec2_bert(max_distance):
    pytest.importorskip("transformers")
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as peer

    scheme = parts.build({"scheme": "shaw", "max_distance": max_distance}, 4, 4)
    layer = parts.layer_of(scheme)
    module = torch.nn.Module()  # what the peer's function reads of its attention module
    module.left_max_position_embeddings, module.right_max_position_embeddings = max_distance, 0
    module.scaling, module.distance_embedding = 16**-0.5, torch.nn.Embedding(max_distance + 1, 16).double()
    module.distance_embedding.weight.data.copy_(dict(layer.named_parameters())["keys"].flip(0))  # r = k ... 0
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, 13, 1))
    _, theirs = peer._apply_relative_key_position_encoding(module, q.transpose(1, 2), k.transpose(1, 2))
    mine = parts.dense_scores(scheme, q, k * 0, parts.start(13), parts.start(13), 13, layer)
    causal = CAUSAL[:13, :13]
    assert torch.allclose(mine[0][:, causal], theirs[0][:, causal], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rotary_pct", [1.0, 0.5])
@pytest.mark.parametrize("scale_base", [4, 512])
def test_xpos_equals_x_transformers(scale_base, rotary_pct):
    """Its pairs are neighbours (2j, 2j + 1); ours are j and j + R/2."""
    peers = pytest.importorskip("x_transformers.x_transformers")
    width = round(16 * rotary_pct)
    fields = {"gamma": 0.4, "scale_base": float(scale_base), "rotary_pct": rotary_pct}
    scheme = parts.build({"scheme": "xpos", **fields, "rope_scaling": support.PLAIN}, 4, 4)
    q, k, _ = (x.detach() for x in parts.random_qkv(scheme, 33, 1))
    angles, growth = peers.RotaryEmbedding(width, use_xpos=True, scale_base=scale_base).forward_from_seq_len(33)

    def interleaved(x):
        a, b, rest = x.split((width // 2, width // 2, 16 - width), -1)
        return torch.cat((torch.stack((a, b), -1).flatten(-2), rest), -1).transpose(1, 2)

    their_q = peers.apply_rotary_pos_emb(interleaved(q), angles, growth)
    their_k = peers.apply_rotary_pos_emb(interleaved(k), angles, 1 / growth)
    theirs = (their_q @ their_k.mT)[0] / 4
    mine = parts.dense_scores(scheme, q, k, parts.start(33), parts.start(33), 33)[0]
    causal = CAUSAL[:33, :33]
    assert torch.allclose(mine[:, causal], theirs[:, causal], rtol=1e-4, atol=1e-4)


def test_sinusoidal_equals_x_transformers():
    peer = pytest.importorskip("x_transformers.x_transformers").ScaledSinusoidalEmbedding(24)
    scheme = parts.build({"scheme": "sinusoidal", "theta": 10000.0, "scale": 24**-0.5})
    x_BTC = torch.zeros(1, 50, 24)
    assert torch.allclose(parts.embed(scheme, x_BTC, parts.start(50))[0], peer(x_BTC), rtol=0, atol=2e-6)


@pytest.mark.parametrize("size", [1, 4, 40])
@pytest.mark.parametrize(("name", "field"), [("sliding_window", "window"), ("segments", "length")])
def test_masks_equal_transformers(name, field, size):
    masks = pytest.importorskip("transformers.masking_utils")
    if name == "sliding_window":
        function = masks.sliding_window_causal_mask_function(size)
    else:
        function = masks.chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64))
    index = torch.arange(17)
    theirs = torch.tensor([[function(0, 0, query, key) for key in index] for query in index])
    pos = parts.start(17)
    (layout,) = patterns.build(patterns.settings({"name": name, field: size})).layouts(pos, pos)
    assert attention_pattern.seen(layout, slice(0, 17), slice(0, 17))[0].equal(theirs)
