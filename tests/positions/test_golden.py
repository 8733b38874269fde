"""Numbers that did not come through our code: mpmath (tests/golden/make.py), transformers, x-transformers.

Frequencies, rope, coca and alibi; the other schemes are in test_golden_terms.py and test_parity_schemes.py.
"""

import json
from pathlib import Path

import pytest
import torch

from coca_train.positions import rope_scaling
from coca_train.positions.schemes import alibi
from coca_train.testing import parts
from tests.golden import make, patterns, terms
from tests.positions import support

ROWS = json.loads((Path(__file__).parents[1] / "golden/positions.json").read_text(encoding="utf-8"))


def ours(settings, rotary_dim, length):
    typed = rope_scaling.settings_class(settings["name"])(**settings)
    return typed.build(rotary_dim)(length)


@pytest.mark.parametrize("row", ROWS["spectra"], ids=lambda r: f"{support.label(r['settings'])}-{r['length']}")
def test_spectrum_equals_mpmath(row):
    spectrum = ours(row["settings"], row["rotary_dim"], row["length"])
    assert spectrum.inv_freq_J.dtype == torch.float32
    exact = torch.tensor(row["inv_freq"], dtype=torch.float64)
    # computed in float64, rounded once: half a unit in the last place of float32
    assert ((spectrum.inv_freq_J.double() - exact).abs() <= exact * 2**-24 * 1.001).all()
    assert spectrum.temperature == pytest.approx(row["temperature"], rel=1e-14)


def test_paper_and_code_ramps_differ_as_the_spec_says():
    """At D = 64, L = 4096, s = 8 by up to 57 % in a single frequency."""
    fields = {"theta": 10000.0, "factor": 8.0, "original_seq_len": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
    paper, code = (
        ours({"name": "yarn", **fields, "convention": convention}, 64, 0).inv_freq_J for convention in ("paper", "code")
    )
    assert ((paper / code - 1).abs().max().item()) == pytest.approx(0.566, abs=1e-3)


@pytest.mark.parametrize(("maker", "file"), [(make, "positions"), (terms, "terms"), (patterns, "patterns")])
def test_files_are_what_their_makers_write(maker, file):
    """Nobody edited a number by hand."""
    text = Path(maker.__file__).with_name(f"{file}.json").read_text(encoding="utf-8")
    assert json.loads(json.dumps(maker.golden())) == json.loads(text)


@pytest.mark.parametrize("row", ROWS["scores"], ids=lambda r: f"{r['kind']}-{r['rope_scaling']['name']}")
@pytest.mark.parametrize("place", range(len(ROWS["vectors"]["places"])))
def test_score_equals_mpmath(row, place):
    query, key = ROWS["vectors"]["places"][place]
    make = support.rope if row["kind"] == "rope" else lambda f: support.coca(f, row["kind"])
    scheme = parts.build(make(row["rope_scaling"]), 1, 1, 8)
    vector = ROWS["vectors"]["k" if row["kind"] == "rope" else "t"]
    q = torch.tensor(ROWS["vectors"]["q"], dtype=torch.float64)[None, None, None]
    k = torch.tensor(vector, dtype=torch.float64)[None, None, None]
    score = parts.dense_scores(scheme, q, k, torch.tensor([[query]]), torch.tensor([[key]]), 64).item()
    # float32 angles: half a unit in the last place at angle m is m * 2**-24, for either side
    angle_error = (query + key + 2) * 2**-23
    assert score == pytest.approx(row["values"][place], rel=1e-6, abs=8 * angle_error)


@pytest.mark.parametrize("heads", ROWS["alibi_slopes"])
def test_alibi_slopes_equal_mpmath(heads):
    slopes = alibi.slopes(int(heads), torch.device("cpu"))
    assert slopes.tolist() == torch.tensor(ROWS["alibi_slopes"][heads], dtype=torch.float32).tolist()


@pytest.mark.parametrize("heads", [4, 6, 8, 12])
def test_alibi_equals_x_transformers(heads):
    peer = pytest.importorskip("x_transformers.x_transformers").AlibiPositionalBias(heads)
    scheme = parts.build(support.alibi(), heads, heads, 16)
    q, k, _ = parts.random_qkv(scheme, 9, 1)
    bias = parts.dense_scores(scheme, q * 0, k, parts.start(9), parts.start(9), 9)[0]
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    assert torch.allclose(bias[:, causal], peer(9, 9).double()[:, causal], rtol=1e-6, atol=0)


def peer_spectrum(rope_type, dim, length, theta=10000.0, trained=2048, **parameters):
    """transformers' frequencies for a head of `dim` features, of which `partial_rotary_factor` are rotated."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        max_position_embeddings=trained,
        rope_parameters={"rope_type": rope_type, "rope_theta": theta, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"), seq_len=length)


RAMP = {"theta": 10000.0, "beta_fast": 32.0, "beta_slow": 1.0, "convention": "code"}


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("factor", "trained"), [(8.0, 4096), (16.0, 2048), (4.0, 131072), (32.0, 512)])
def test_yarn_code_equals_transformers(dim, factor, trained):
    peer, temperature = peer_spectrum("yarn", dim, None, factor=factor, original_max_position_embeddings=trained)
    spectrum = ours({"name": "yarn", **RAMP, "factor": factor, "original_seq_len": trained}, dim, 1)
    assert torch.allclose(spectrum.inv_freq_J, peer, rtol=2e-6, atol=0)
    assert spectrum.temperature == pytest.approx(temperature, rel=1e-12)


@pytest.mark.parametrize("length", [100, 2048, 2049, 16384])
@pytest.mark.parametrize("alpha", [1.0, 2.0, 8.0])
def test_dynamic_ntk_equals_transformers(length, alpha):
    peer, _ = peer_spectrum("dynamic", 64, length, factor=alpha)
    spectrum = ours({"name": "dynamic_ntk", "theta": 10000.0, "alpha": alpha, "original_seq_len": 2048}, 64, length)
    assert torch.allclose(spectrum.inv_freq_J, peer, rtol=2e-6, atol=0)


def test_linear_equals_transformers():
    peer, _ = peer_spectrum("linear", 128, None, factor=16.0)
    spectrum = ours({"name": "linear", "theta": 10000.0, "factor": 16.0}, 128, 1)
    assert torch.allclose(spectrum.inv_freq_J, peer, rtol=1e-6, atol=0)


def test_rope_equals_transformers_llama():
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    parameters = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 4096}
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters=parameters)
    settings = support.rope({"name": "yarn", **RAMP, "factor": 8.0, "original_seq_len": 4096})
    scheme = parts.build(settings, 4, 2, 64)
    q, k, _ = parts.random_qkv(scheme, 37, dtype=torch.float32)
    pos = parts.start(37, first=5)
    cos, sin = LlamaRotaryEmbedding(config)(q, pos)
    theirs = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    for mine, other in zip(scheme.rotate(q, k, scheme(pos, pos, 37)), theirs, strict=True):
        assert torch.allclose(mine, other.transpose(1, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("rotary_pct", [0.25, 1.0])
def test_partial_rope_equals_transformers_gpt_neox(rotary_pct):
    pytest.importorskip("transformers")
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    parameters = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": rotary_pct}
    config = GPTNeoXConfig(hidden_size=256, num_attention_heads=4, rope_parameters=parameters)
    scheme = parts.build(support.rope(rotary_pct=rotary_pct), 4, 4, 64)
    q, k, _ = parts.random_qkv(scheme, 33, dtype=torch.float32)
    pos = parts.start(33)
    cos, sin = GPTNeoXRotaryEmbedding(config)(q, pos)
    theirs = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    for mine, other in zip(scheme.rotate(q, k, scheme(pos, pos, 33)), theirs, strict=True):
        assert torch.allclose(mine, other.transpose(1, 2), rtol=0, atol=1e-5)
