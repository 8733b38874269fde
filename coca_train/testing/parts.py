"""Objects that all contracts are tested with: one small random layer of a scheme (settings as shipped, parameters,
projections, queries, keys, values), and a small model.

Shape legend: B batch, T queries, S keys, G key/value heads, K cached key width, D head_dim, C d_model.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import yaml
from pydantic import ValidationError
from torch import Tensor, nn

from coca_train import positions
from coca_train.attention import kernels, linear, patterns, tiled_attention
from coca_train.attention.pattern import Layout
from coca_train.attention.scores import Tile, masked_pairs, part_of, scores, tensors_of
from coca_train.config.fields import fields_of
from coca_train.config.files import Registry, choices, config_dir
from coca_train.config.schema import LogitScaleConfig, ModelConfig, ModuleSettings
from coca_train.positions.base import AttentionShape, LayerPosition, Position, PositionedQK, Projections
from coca_train.positions.token_positions import Positions
from coca_train.runtime.errors import UserError

if TYPE_CHECKING:
    import pytest

Module = TypeVar("Module", bound=nn.Module)
Settings = TypeVar("Settings", bound=ModuleSettings)

TRAINED = 16  # the training window of these parts [tokens]; what is tested goes below and beyond it
VOCAB = 101
MODEL = ModelConfig(
    n_layers=2,
    d_model=48,
    n_heads=4,
    n_kv_heads=2,
    head_dim=None,
    d_ff=96,
    vocab_size=VOCAB,
    norm="rmsnorm",
    norm_eps=1e-6,
    activation="swiglu",
    qk_norm="none",
    logit_scale=LogitScaleConfig(name="none", length=None, beta=0.1),
    residual="sequential",
    bias=[],
    tie_embeddings=False,
    dropout=0.0,
    init_std=0.2,  # large, so that attention is far from uniform and errors show
    init_depth_scaled=False,
)
KERNELS = {"eager": kernels.eager, "blocked": kernels.blocked, "tiled": tiled_attention.tiled}
LINKS = {"${train.seq_len}": 64, "${model.init_std}": 1.0}  # what the yamls of positions refer to


def shipped(group: str = "position", plugin: Path | None = None) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (name, settings) of every choice of a group of configs/ as its yaml has them. plugin: a folder of more."""
    for name, path in choices(group, (config_dir(), *([plugin] if plugin else ()))).items():
        yield name, deepcopy(_read(path, group))


@cache
def _read(path: Path, group: str) -> dict[str, object]:
    text = path.read_text(encoding="utf-8")
    for link, value in LINKS.items():
        text = text.replace(link, str(value))
    tree = yaml.safe_load(text)
    for entry in tree.pop("defaults", []):
        for inner, choice in entry.items() if isinstance(entry, dict) else ():
            own = path.parent / inner / f"{choice}.yaml"  # of a plugin, or what it takes from here
            there = own if own.is_file() else config_dir() / group / inner / own.name
            tree[inner] = _read(there, f"{group}/{inner}")
    return tree


def build(
    settings: Mapping[str, object],
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_dim: int = 16,
    d_model: int = 24,
    bidirectional: bool = False,
) -> Position:
    """Build a scheme whose shared parameters, if any, are random (float64, the same every time)."""
    shape = AttentionShape(n_heads, n_kv_heads, head_dim, d_model, TRAINED, bidirectional=bidirectional)
    return randomise(positions.build(positions.settings(settings), shape))


def randomise(module: Module, seed: int = 1) -> Module:
    """Fill every parameter with N(0, 0.5), float64."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return module


def layer_of(scheme: Position) -> LayerPosition:
    """Build one layer of a scheme, with random parameters, the same every time."""
    return randomise(scheme.layer(), seed=2)


def projections(scheme: Position, dtype: torch.dtype = torch.float64, seed: int = 3) -> Projections:
    """Return random W_Q and W_K of one layer, the same every time."""
    shape, generator = scheme.shape, torch.Generator().manual_seed(seed)

    def linear(n_heads: int, width: int) -> Callable[[Tensor], Tensor]:
        size = (n_heads * width, shape.d_model)
        weight = torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype) / shape.d_model**0.5
        return lambda x: (x.to(dtype) @ weight.T).unflatten(-1, (n_heads, width))

    return Projections(linear(shape.n_heads, shape.head_dim), linear(shape.n_kv_heads, scheme.key_dim))


def inputs(k_BSGK: Tensor, d_model: int) -> Tensor:
    """Return the layer's input x_BSC for schemes that read it: keys through a fixed random matrix, so that a test which
    passes queries and keys has passed the input as well."""
    width = k_BSGK.shape[2] * k_BSGK.shape[3]
    matrix = torch.randn(width, d_model, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return k_BSGK.flatten(2) @ (matrix / width**0.5).to(k_BSGK)


def tokens(layer: LayerPosition, k_BSGK: Tensor) -> tuple[Tensor, ...]:
    """Return the layer's `tokens` of its input, in the dtype of its parameters."""
    dtype = next((p.dtype for p in layer.parameters()), k_BSGK.dtype)
    return layer.tokens(inputs(k_BSGK, layer.shape.d_model).to(dtype))


def mapped(
    scheme: Position,
    q_BTHD: Tensor,
    k_BSGK: Tensor,
    pos_BT: Tensor,
    pos_BS: Tensor,
    length: int,
    layer: LayerPosition | None = None,
) -> PositionedQK:
    """Call the scheme's hooks in the order in which attention calls them."""
    layer, tables = layer or layer_of(scheme), scheme(pos_BT, pos_BS, length)
    return layer(scheme, q_BTHD, k_BSGK, tables, projections(scheme, q_BTHD.dtype), tokens(layer, k_BSGK))


def _all_seen(scheme: Position, pos_BT: Tensor, pos_BS: Tensor) -> Layout:
    """Return the layout in which queries see all keys that the scheme's attention lets them."""
    name = "bidirectional" if scheme.shape.bidirectional else "causal"
    (layout,) = patterns.build(patterns.settings({"name": name})).layouts(pos_BT, pos_BS)
    return layout


def scores_of(mapped: PositionedQK, scheme: Position, pos_BT: Tensor, pos_BS: Tensor) -> Tensor:
    """Return the score of every pair, (B, H, T, S), float32 or wider, masked pairs included."""
    dtype = torch.promote_types(mapped.q_BTHE.dtype, torch.float32)
    wide = mapped._replace(q_BTHE=mapped.q_BTHE.to(dtype), k_BSGE=mapped.k_BSGE.to(dtype))
    layout = _all_seen(scheme, pos_BT, pos_BS)
    part = part_of(wide, layout)
    tile = Tile(layout, slice(0, pos_BT.shape[1]), slice(0, pos_BS.shape[1]), shifted=False)
    return scores(part.hook, tensors_of(part), tile, scheme.shape.head_dim**-0.5, masked_pairs(tile))[0]


def dense_scores(
    scheme: Position,
    q_BTHD: Tensor,
    k_BSGK: Tensor,
    pos_BT: Tensor,
    pos_BS: Tensor,
    length: int,
    layer: LayerPosition | None = None,
) -> Tensor:
    """Return scores (B, H, T, S) of queries and keys at these positions."""
    return scores_of(mapped(scheme, q_BTHD, k_BSGK, pos_BT, pos_BS, length, layer), scheme, pos_BT, pos_BS)


def dense_attention(
    scheme: Position,
    q_BTHD: Tensor,
    k_BSGK: Tensor,
    v_BSGD: Tensor,
    pos_BT: Tensor,
    pos_BS: Tensor,
    length: int,
    layer: LayerPosition | None = None,
) -> Tensor:
    """Compute attention by its definition, (B, T, H, D)."""
    layout = _all_seen(scheme, pos_BT, pos_BS)
    of_layer = mapped(scheme, q_BTHD, k_BSGK, pos_BT, pos_BS, length, layer)
    return kernels.eager([part_of(of_layer, layout)], v_BSGD, scheme.shape.head_dim**-0.5)


def random_qkv(
    scheme: Position, n_tokens: int, batch: int = 2, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    """Draw leaf tensors q_BTHD, k_BSGK, v_BSGD, the same numbers for every dtype up to its rounding."""
    generator = torch.Generator().manual_seed(seed)
    shape = scheme.shape
    widths = ((shape.n_heads, shape.head_dim), (shape.n_kv_heads, scheme.key_dim), (shape.n_kv_heads, shape.head_dim))
    drawn = (torch.randn(batch, n_tokens, *width, generator=generator, dtype=torch.float64) for width in widths)
    return [x.to(dtype).requires_grad_() for x in drawn]


def small_tiles(monkeypatch: "pytest.MonkeyPatch", key_tile: int = 3) -> None:
    """Make tiles so small that a handful of tokens has several."""
    monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
    monkeypatch.setattr(linear, "CHUNK", 4)
    for name, size in (("QUERY_TILE", 4), ("KEY_TILE", key_tile), ("TILE_PAIRS", 0)):
        monkeypatch.setattr(tiled_attention, name, size)


def start(n_tokens: int, first: int = 0, batch: int = 1) -> Tensor:
    """Return positions first, first + 1, … of shape (batch, T)."""
    return torch.arange(first, first + n_tokens).expand(batch, n_tokens)


def packed(*rows: list[int], first: int = 0) -> tuple[Tensor, Tensor]:
    """Return positions and documents (B, S) of rows of documents with these lengths."""
    pos = torch.stack([torch.cat([torch.arange(first, first + n) for n in lengths]) for lengths in rows])
    doc = torch.stack([torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]) for lengths in rows])
    return pos, doc


def refused(attention_pattern: Mapping[str, object], scheme: Position) -> bool:
    """Whether the attention pattern (settings) cannot go with the scheme."""
    return bool(patterns.build(patterns.settings(attention_pattern)).problems(scheme))


def strict(registry: Registry[Settings], settings: Mapping[str, object]) -> Settings:
    """Type settings by a registry (positions.SCHEMES and the like). AssertionError where an option has no description,
    or where the registry accepts one option more, or one less that has no default."""
    typed = registry.settings(settings)
    described = fields_of(type(typed))
    assert [f.name for f in fields(typed) if f.name != registry.tag and not described[f.name].description] == []

    def required(name: str) -> bool:
        return name == registry.tag or described[name].is_required()

    less = ({key: value for key, value in settings.items() if key != name} for name in settings if required(name))
    for wrong in ({**settings, "no_such_option": 1}, *less):
        try:
            registry.settings(wrong)
        except (UserError, ValidationError):
            continue
        raise AssertionError(f"{wrong} is taken, where settings are {list(settings)}")
    return typed


def hidden_states(scheme: Position, n_tokens: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw random token embeddings, the same numbers for every dtype up to its rounding."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, n_tokens, scheme.shape.d_model, generator=generator, dtype=torch.float64).to(dtype)


def embed(scheme: Position, x_BTC: Tensor, pos_BT: Tensor) -> Tensor:
    """Return token embeddings with what the scheme adds to them."""
    return scheme.embed(x_BTC, Positions.of(pos_BT))


def qkv(scheme: Position, x_BTC: Tensor, pos_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of the first layer for embeddings at these positions; v without positions."""
    project, embedded = projections(scheme, x_BTC.dtype), embed(scheme, x_BTC, pos_BT)
    values = projections(positions.build(positions.settings({"scheme": "nope"}), scheme.shape), x_BTC.dtype)
    return project.query(embedded), project.key(embedded), values.key(x_BTC)


def attention(
    scheme: Position, x_BTC: Tensor, pos_BT: Tensor, length: int, layer: LayerPosition | None = None
) -> Tensor:
    """Compute causal attention of the first layer, (B, T, H, D)."""
    return dense_attention(scheme, *qkv(scheme, x_BTC, pos_BT), pos_BT, pos_BT, length, layer)


def flat(tables: object) -> list[Tensor]:
    """List every tensor in a nest of tuples."""
    if isinstance(tables, Tensor):
        return [tables]
    return [x for part in tables for x in flat(part)] if isinstance(tables, tuple) else []


def end(scheme: Position) -> int:
    """Return the number of positions; a number that no test exceeds where it is unlimited."""
    return scheme.max_positions or 2**20
