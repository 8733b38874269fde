"""Scores of the schemes with terms of their own against numbers that did not come through our code.

mpmath and plain integers, worked in tests/golden/terms.py from the papers' formulas. Each case brings vectors
and parameters in eighths; here they go into the scheme's hooks, at positions far beyond any table too.
"""

import json
from pathlib import Path

import pytest
import torch

from coca_train import positions
from coca_train.positions.base import AttentionShape, Projections
from coca_train.testing import parts

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/terms.json").read_text(encoding="utf-8"))


def by_name():
    """Cases by scheme; those of schemes whose numbers may be of all layers or of each, twice."""
    for row in GOLDEN["cases"]:
        name = row["settings"]["scheme"]
        if "shared" not in positions.SCHEMES.module(name).Settings.__pydantic_fields__:
            yield name, row
            continue
        for shared, label in ((True, name), (False, f"{name}_per_layer")):
            yield label, row | {"settings": row["settings"] | {"shared": shared}}


CASES = dict(by_name())


def scheme_and_layer(row):
    """(scheme, layer) of a case, float64, all parameters set from the case and none left over."""
    shape = AttentionShape(**row["shape"], max_seq_len=parts.TRAINED)
    scheme = positions.build(positions.settings(row["settings"]), shape).double()
    layer = scheme.layer().double()
    named = dict([*scheme.named_parameters(), *layer.named_parameters()])
    assert set(named) == set(row["parameters"])
    for name, parameter in named.items():
        given = torch.tensor(row["parameters"][name], dtype=torch.float64)
        assert given.shape == parameter.shape
        parameter.data.copy_(given)
    return scheme, layer


def projections(row):
    """The layer's W_Q and W_K where a case has them."""

    def linear(weight):
        w = torch.tensor(weight, dtype=torch.float64)
        return lambda x_C: (x_C @ w.T).unflatten(-1, (-1, row["shape"]["head_dim"]))

    return Projections(linear(row.get("w_q", [[]])), linear(row.get("w_k", [[]])))


@pytest.fixture
def score(monkeypatch):
    """Score of every head of a case at one place, by way of the scheme's hooks."""

    def at(row, m, n):
        scheme, layer = scheme_and_layer(row)
        monkeypatch.setattr(parts, "projections", lambda *_: projections(row))
        q, k = (torch.tensor(row[name], dtype=torch.float64)[None, None] for name in ("q", "k"))
        places = torch.tensor([[m]]), torch.tensor([[n]])
        return parts.dense_scores(scheme, q, k, *places, 64, layer)[0, :, 0, 0]

    return at


@pytest.mark.parametrize(("name", "place"), [(name, i) for name in CASES for i in range(len(CASES[name]["places"]))])
def test_score_equals_mpmath(score, name, place):
    row = CASES[name]
    m, n = row["places"][place]
    value, exact = score(row, m, n), torch.tensor([scores[place] for scores in row["scores"]], dtype=torch.float64)
    if row.get("up_to_a_constant"):
        value, exact = value - score(row, 0, 0), exact - torch.tensor([s[0] for s in row["scores"]]).double()
    # float32 angles: half a unit in the last place at angle r is r * 2**-24, for each of up to 64 sums of pairs
    scheme = row["settings"]["scheme"]
    largest = {"xpos": m + n + 2, "sandwich": m - n + 1, "transformer_xl": m - n + 1}.get(scheme, 0)
    assert torch.allclose(value.double(), exact, rtol=1e-6, atol=1e-7 + 64 * largest * 2**-24)


def test_shaw_attention_equals_mpmath():
    """Values that depend on the distance, in a whole small attention."""
    row = CASES["shaw"]
    shape = row["shape"] | {"n_heads": 1, "n_kv_heads": 1}
    scheme, layer = scheme_and_layer(row | {"shape": shape})
    q, k, v = (torch.tensor(row["sequence"][name], dtype=torch.float64)[None, :, None] for name in "qkv")
    pos = parts.start(6)
    out = parts.dense_attention(scheme, q, k, v, pos, pos, 6, layer)[0, :, 0]
    assert torch.allclose(out, torch.tensor(row["sequence"]["outputs"], dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("row", GOLDEN["t5_buckets"]["rows"], ids=lambda r: f"{r['n_buckets']}-{r['max_distance']}")
@pytest.mark.parametrize("scheme", ["t5", "tupe"])
def test_buckets_equal_integers(row, scheme):
    """A table that holds its own bucket numbers shows the bucket of every distance."""
    sizes = {"n_buckets": row["n_buckets"], "max_distance": row["max_distance"]}
    settings = {"scheme": scheme, **sizes} | ({"max_len": 32768} if scheme == "tupe" else {})
    built = parts.build(settings, 1, 1, 4, 2)
    for name, parameter in built.named_parameters():
        parameter.data.zero_()
        if name == "table":
            parameter.data.copy_(torch.arange(row["n_buckets"])[:, None])
    distances = GOLDEN["t5_buckets"]["distances"]
    zero = torch.zeros(1, len(distances), 1, 4, dtype=torch.float64)
    pos_q, pos_k = torch.tensor([[32767]]), 32767 - torch.tensor([distances])
    bucket_S = parts.dense_scores(built, zero[:, :1], zero, pos_q, pos_k, 32768)[0, 0, 0]
    assert bucket_S.round(decimals=6).tolist() == row["buckets"]


def test_sinusoidal_equals_mpmath():
    row = GOLDEN["embeddings"]["sinusoidal"]
    scheme = parts.build(row["settings"], d_model=6)
    added = parts.embed(
        scheme, torch.zeros(1, len(row["places"]), 6, dtype=torch.float64), torch.tensor([row["places"]])
    )[0]
    for place, mine, exact in zip(row["places"], added, row["values"], strict=True):
        assert mine.tolist() == pytest.approx(exact, rel=0, abs=(place + 2) * 2**-23)


def test_learned_rows_are_added_as_they_are():
    """Eighths: the sum is exact in every dtype."""
    row = GOLDEN["embeddings"]["learned"]
    scheme = parts.build(row["settings"], d_model=6)
    (table,) = scheme.parameters()
    table.data.copy_(torch.tensor(row["table"]))
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x_BTC = torch.full((1, 3, 6), 0.5, dtype=dtype)
        rows = parts.embed(scheme.to(dtype), x_BTC, torch.tensor([[0, 8, 4]]))[0]
        assert rows.tolist() == [[0.5 + value for value in row["table"][place]] for place in (0, 8, 4)]
