"""Settings of every scheme and scaling, random tensors, and a dense attention in the dtype under test."""

import math
from pathlib import Path

import torch
import yaml

from coca_train import positions
from coca_train.positions import frequencies
from coca_train.positions.base import AttentionShape, Pairs, Position, Projections

CONFIGS = Path(__file__).parents[2] / "configs" / "position"
LINKS = {"${train.seq_len}": 64, "${model.init_std}": 1.0}  # what shipped yamls refer to
TRAINED = 16  # context the frequencies were "trained" at [tokens]; tests run below and beyond it
PLAIN = {"name": "plain", "theta": 10000.0}


def scaling(name, convention="paper", **changes):
    """Settings of one frequency choice at the size of these tests (ramp ends that cut a 16-wide head in three)."""
    fields = {
        "theta": 100.0,
        "factor": 2.0 if name == "longrope" else 4.0,  # its temperature would be great for so small a window
        "alpha": 2.0,
        "original_seq_len": TRAINED,
        "beta_fast": 1.5,
        "beta_slow": 0.1,
        "convention": convention,
        "low_freq_factor": 0.1,
        "high_freq_factor": 1.5,
        "max_factor": 4,
        "param_factor": 1,
        "ode_step": 0.25,
        "share": 0.6,
        "short_factor": None,  # lists have the length of one head: tests/positions/test_longrope.py
        "long_factor": None,
        "temperature": None,
    }
    wanted = frequencies.frequency_module(name).Settings.__pydantic_fields__
    return {"name": name} | {key: value for key, value in fields.items() if key in wanted} | changes


def scalings():
    """Every file of positions/frequencies/ without parameters, in both conventions where it has two."""
    for name in frequencies.frequency_names():
        if hasattr(frequencies.frequency_module(name), "spectrum"):
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
        text = path.read_text(encoding="utf-8")
        for link, value in LINKS.items():
            text = text.replace(link, str(value))
        tree = yaml.safe_load(text)
        defaults = [entry for entry in tree.pop("defaults", []) if isinstance(entry, dict)]
        for group, choice in ((k, v) for entry in defaults for k, v in entry.items()):
            tree[group] = yaml.safe_load((CONFIGS / group / f"{choice}.yaml").read_text(encoding="utf-8"))
        yield path.stem, tree


def build(settings, n_heads=4, n_kv_heads=2, head_dim=16, d_model=24) -> Position:
    """A scheme whose own parameters, if any, are random (float64, the same every time)."""
    shape = AttentionShape(n_heads, n_kv_heads, head_dim, d_model, TRAINED)
    return randomise(positions.build(positions.settings(settings), shape))


def randomise(module, seed=1):
    """Fill every parameter with N(0, 0.5), float64."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return module


def layer_of(scheme: Position):
    """One layer's own part of a scheme, with random parameters, the same every time."""
    return randomise(scheme.layer(), seed=2)


def projections(scheme: Position, dtype=torch.float64, seed=3):
    """W_Q and W_K of one layer: random, the same every time."""
    shape, generator = scheme.shape, torch.Generator().manual_seed(seed)

    def linear(n_heads, width):
        size = (n_heads * width, shape.d_model)
        weight = torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype) / shape.d_model**0.5
        return lambda x: (x.to(dtype) @ weight.T).unflatten(-1, (n_heads, width))

    return Projections(linear(shape.n_heads, shape.head_dim), linear(shape.n_kv_heads, scheme.key_dim))


def inputs(k_BSGK, d_model):
    """The layer's input x_BSC for schemes that look at it: keys through a fixed random matrix, so that a test which
    gives queries and keys has given the input as well."""
    width = k_BSGK.shape[2] * k_BSGK.shape[3]
    matrix = torch.randn(width, d_model, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return k_BSGK.flatten(2) @ (matrix / width**0.5).to(k_BSGK)


def tokens(layer, k_BSGK):
    """What a layer makes of its input, in the dtype of its parameters."""
    dtype = next((p.dtype for p in layer.parameters()), k_BSGK.dtype)
    return layer.tokens(inputs(k_BSGK, layer.shape.d_model).to(dtype))


def mapped(scheme: Position, q, k, pos_q, pos_k, length, layer=None):
    """The scheme's hooks in the order attention calls them: Mapped(q', k', terms, hooked)."""
    layer, tables = layer or layer_of(scheme), scheme(pos_q, pos_k, length)
    return layer(scheme, q, k, tables, projections(scheme, q.dtype), tokens(layer, k))


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


def distances(pos_q, pos_k):
    """r = max(m - n, 0) of every pair, (B, T, S)."""
    return (pos_q[:, :, None] - pos_k[:, None, :]).clamp(min=0)


def dense_scores(scheme: Position, q, k, pos_q, pos_k, length, layer=None):
    """Scores (B, H, T, S) by way of the scheme's hooks."""
    return dense_scores_of(mapped(scheme, q, k, pos_q, pos_k, length, layer), scheme, pos_q, pos_k)


def dense_scores_of(mapped, scheme: Position, pos_q, pos_k):
    """What a layer has made of queries and keys, summed in float32 or wider, as fused kernels do. Causal: a hook that
    counts tokens does not count those that come later."""
    q_BTHE, k_BSGE, terms, hooked = mapped
    scores = _products(q_BTHE, k_BSGE)
    r_BTS = distances(pos_q, pos_k)
    if terms.query is not None:
        scores = scores + _by_distance(_products(*_one_batch(terms.query)), r_BTS)
    if terms.key is not None:
        scores = scores + _by_distance(_products(*_one_batch(terms.key)), r_BTS.mT).mT
    scores = scores / math.sqrt(scheme.shape.head_dim)
    if terms.distance_HR is not None:
        table = terms.distance_HR
        scores = scores + table[:, r_BTS.clamp(max=table.shape[1] - 1)].transpose(0, 1)
    if hooked is not None:
        pairs = Pairs(scores, causal(*scores.shape[-2:])[None, None], pos_q, pos_k, *hooked[1:])
        scores, _ = hooked.by.scores(pairs, scores.new_zeros(*scores.shape[:3], hooked.by.carried))
    return scores


def causal(n_queries, n_keys):
    """What the last n_queries of n_keys tokens see, (T, S)."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)


def _products(a_BTHE, b_BSGE):
    """a · b for every pair, (B, H, T, S); the fewer heads are repeated."""
    n_heads = max(a_BTHE.shape[2], b_BSGE.shape[2])
    a, b = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (a_BTHE, b_BSGE))
    a, b = (x.repeat_interleave(n_heads // x.shape[2], 2) for x in (a, b))
    return torch.einsum("bthe,bshe->bhts", a, b)


def _one_batch(term):
    x_BTHD, e_RHD = term
    return x_BTHD, e_RHD[None].expand(x_BTHD.shape[0], -1, -1, -1)


def _by_distance(g_BHTR, r_BTS):
    """g[b, h, t, r[b, t, s]], the last column for all larger distances."""
    index = r_BTS.clamp(max=g_BHTR.shape[-1] - 1)[:, None].expand(g_BHTR.shape[0], g_BHTR.shape[1], -1, -1)
    return g_BHTR.gather(-1, index)


def dense_attention(scheme: Position, q, k, v, pos_q, pos_k, length, layer=None):
    """Causal attention (B, T, H, D) by way of the scheme's hooks."""
    scores = dense_scores(scheme, q, k, pos_q, pos_k, length, layer)
    weights = scores.masked_fill(~causal(*scores.shape[-2:]), -math.inf).softmax(-1)
    out = torch.einsum("bhts,bshd->bthd", weights.to(v.dtype), v.repeat_interleave(scores.shape[1] // v.shape[2], 2))
    value_RD = mapped(scheme, q, k, pos_q, pos_k, length, layer).terms.value_RD
    if value_RD is not None:
        values = value_RD[distances(pos_q, pos_k).clamp(max=value_RD.shape[0] - 1)]
        out = out + torch.einsum("bhts,btsd->bthd", weights, values.expand(q.shape[0], -1, -1, -1)).to(out.dtype)
    return out


def build_typed(scheme: Position) -> Position:
    """A fresh scheme of the same settings, shape and parameters."""
    return randomise(positions.build(scheme.settings, scheme.shape))
