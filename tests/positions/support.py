"""Settings of every scheme and scaling, random tensors, and a dense attention in the dtype under test."""

import math
from pathlib import Path

import torch
import yaml

from coca_train import positions
from coca_train.positions import AttentionShape, frequencies
from coca_train.positions.base import Position

CONFIGS = Path(__file__).parents[2] / "configs" / "position"
TRAINED = 16  # context the frequencies were "trained" at [tokens]; tests run below and beyond it
PLAIN = {"name": "plain", "theta": 10000.0}


def scaling(name, convention="paper", **changes):
    """Settings of one frequency choice at the size of these tests (ramp ends that cut a 16-wide head in three)."""
    fields = {
        "theta": 100.0,
        "factor": 4.0,
        "alpha": 2.0,
        "original_seq_len": TRAINED,
        "beta_fast": 1.5,
        "beta_slow": 0.1,
        "convention": convention,
    }
    wanted = frequencies.frequency_module(name).Settings.__pydantic_fields__
    return {"name": name} | {key: value for key, value in fields.items() if key in wanted} | changes


def scalings():
    """Every file of positions/frequencies/, in both conventions where it has two."""
    for name in frequencies.frequency_names():
        yield scaling(name)
        if "convention" in scaling(name):
            yield scaling(name, "code")


def rope(frequencies=PLAIN, rotary_pct=1.0):
    return {"scheme": "rope", "rotary_pct": rotary_pct, "frequencies": frequencies}


def coca(frequencies=PLAIN, variant="slack", t_width="half"):
    fixed = {"scheme": "coca", "rotary_pct": 1.0}
    return fixed | {"variant": variant, "t_width": t_width, "frequencies": frequencies}


def alibi(fold="never"):
    return {"scheme": "alibi", "fold": fold}


def label(settings):
    """A readable test id."""
    words = [str(value) for key, value in settings.items() if key not in ("frequencies", "name")]
    inner = settings.get("frequencies", settings)
    return "-".join([*words, inner.get("name", ""), inner.get("convention", "")]).strip("-")


def shipped():
    """Every scheme as its yaml in configs/position ships it: (file name, settings)."""
    for path in sorted(CONFIGS.glob("*.yaml")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        defaults = [entry for entry in tree.pop("defaults", []) if isinstance(entry, dict)]
        for group, choice in ((k, v) for entry in defaults for k, v in entry.items()):
            tree[group] = yaml.safe_load((CONFIGS / group / f"{choice}.yaml").read_text(encoding="utf-8"))
        yield path.stem, tree


def build(settings, n_heads=4, n_kv_heads=2, head_dim=16) -> Position:
    return positions.build(positions.settings(settings), AttentionShape(n_heads, n_kv_heads, head_dim, TRAINED))


def random_qkv(scheme: Position, n_tokens, batch=2, dtype=torch.float64, seed=0):
    """Leaf tensors q_BTHD, k_BSGK, v_BSGD, the same numbers for every dtype up to its rounding."""
    generator = torch.Generator().manual_seed(seed)
    shape = scheme.shape
    widths = ((shape.n_heads, shape.head_dim), (shape.n_kv_heads, scheme.key_dim), (shape.n_kv_heads, shape.head_dim))
    made = (torch.randn(batch, n_tokens, *width, generator=generator, dtype=torch.float64) for width in widths)
    return [x.to(dtype).requires_grad_() for x in made]


def start(n_tokens, first=0, batch=1):
    """Positions first, first + 1, … of shape (batch, T)."""
    return torch.arange(first, first + n_tokens).expand(batch, n_tokens)


def dense_scores(scheme: Position, q, k, pos_q, pos_k, length):
    """Scores (B, H, T, S) by way of the scheme's hooks; summed in float32 or wider, as fused kernels do."""
    tables = scheme.tables(pos_q, pos_k, length)
    q_BTHE, k_BSGE = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in scheme.rotate(q, k, tables))
    k_BSHE = k_BSGE.repeat_interleave(q_BTHE.shape[2] // k_BSGE.shape[2], 2)
    scores = torch.einsum("bthe,bshe->bhts", q_BTHE, k_BSHE) / math.sqrt(scheme.shape.head_dim)
    modify = scheme.score_mod(pos_q, pos_k, tables)
    if modify is None:
        return scores
    index = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    return modify(scores, *index)


def dense_attention(scheme: Position, q, k, v, pos_q, pos_k, length):
    """Causal attention (B, T, H, D) by way of the scheme's hooks."""
    scores = dense_scores(scheme, q, k, pos_q, pos_k, length)
    n_queries, n_keys = scores.shape[-2:]
    seen = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype)
    return torch.einsum("bhts,bshd->bthd", weights, v.repeat_interleave(scores.shape[1] // v.shape[2], 2))


def build_typed(scheme: Position) -> Position:
    """A fresh scheme of the same settings and shape."""
    return positions.build(scheme.settings, scheme.shape)
