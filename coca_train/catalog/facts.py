"""Properties and costs of schemes, frequencies and attention patterns, measured on a reference model.

Each is built and called as a model does, and its tensors are measured.

Shape legend: B batch (1), T tokens, S keys, H query heads, G key/value heads, D head_dim, E dot-product width, K cached
key width, C d_model.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from coca_train import positions
from coca_train.attention import patterns
from coca_train.attention.kernels import choose
from coca_train.attention.linear import is_linear
from coca_train.attention.linear import products as linear_products
from coca_train.attention.pattern import AttentionPattern, seen
from coca_train.attention.scores import Part, part_of
from coca_train.catalog.entries import Entry, entries
from coca_train.config.load import resolve
from coca_train.config.schema import Config, ModelConfig, PatternSettings, SchemeSettings
from coca_train.models.transformer import Transformer
from coca_train.planning.meta_attention import hook_products
from coca_train.positions import ROPE_SCALINGS, rope_scaling, scaling_of
from coca_train.positions.base import AttentionShape, Projections
from coca_train.positions.rope_scaling import RopeScaling
from coca_train.positions.token_positions import Positions
from coca_train.runtime.device import pretend_device
from coca_train.runtime.errors import UserError
from coca_train.settings import load


@dataclass(frozen=True)
class ReferenceModel:
    """A model and its training window."""

    name: str  # choice of configs/model
    config: Config

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    @property
    def seq_len(self) -> int:
        """The training window [tokens]."""
        return self.config.train.seq_len

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape.of(self.model, self.seq_len)

    def trained_at(self, seq_len: int) -> "ReferenceModel":
        """Return the same model with another training window [tokens]."""
        return replace(self, config=replace(self.config, train=replace(self.config.train, seq_len=seq_len)))

    def scheme(self, entry: Entry) -> SchemeSettings:
        """Return the typed settings of a choice of configs/position for this training window."""
        return positions.settings(self._values(entry))

    def scaling(self, entry: Entry) -> RopeScaling:
        """Return those of a choice of configs/position/rope_scaling."""
        return ROPE_SCALINGS.settings(self._values(entry))

    def pattern(self, entry: Entry) -> PatternSettings:
        """Return those of a choice of configs/attention_pattern."""
        return patterns.settings(self._values(entry))

    def _values(self, entry: Entry) -> object:
        resolved, problems = resolve({**asdict(self.config), "choice": entry.values})
        assert not problems, problems
        return resolved["choice"]


def load_reference(model: str, seq_len: int) -> ReferenceModel:
    """Load a reference model. Raises UserError when there is none of this name, or it cannot be built."""
    return ReferenceModel(model, load([f"model={model}", f"train.seq_len={seq_len}"]).config)


class LayerTensors(NamedTuple):
    """The tensors of one layer of attention."""

    parts: list[Part]  # one: plain causal attention
    v_BTGD: Tensor
    tokens: int  # numbers per token that the scheme caches in addition to keys and values


def build_layer(
    settings: SchemeSettings, shape: AttentionShape, pos_BT: Tensor, length: int, dtype: torch.dtype
) -> LayerTensors:
    """Build a scheme's queries, keys and terms for tokens at these positions; only their shapes matter.

    Raises what the scheme raises where it cannot serve these positions.
    """
    position = positions.build(settings, shape).to(dtype)
    own = position.layer().to(dtype)
    for parameter in (*position.parameters(), *own.parameters()):
        nn.init.zeros_(parameter)
    n_tokens = pos_BT.shape[1]
    q_BTHD, k_BTGK, v_BTGD = (
        torch.ones(1, n_tokens, heads, width, dtype=dtype)
        for heads, width in (
            (shape.n_heads, shape.head_dim),
            (shape.n_kv_heads, position.key_dim),
            (shape.n_kv_heads, shape.head_dim),
        )
    )

    def zeros(heads: int, width: int) -> Callable[[Tensor], Tensor]:
        return lambda x_C: x_C.new_zeros(*x_C.shape[:-1], heads, width)

    project = Projections(zeros(shape.n_heads, shape.head_dim), zeros(shape.n_kv_heads, position.key_dim))
    with torch.no_grad():
        x_BTC = position.embed(torch.zeros(1, n_tokens, shape.d_model, dtype=dtype), Positions.of(pos_BT))
        tokens = own.tokens(x_BTC)
        mapped = own(position, q_BTHD, k_BTGK, position(pos_BT, pos_BT, length), project, tokens)
    (layout,) = AttentionPattern(None).layouts(pos_BT, pos_BT)
    return LayerTensors([part_of(mapped, layout)], v_BTGD, sum(x[0, 0].numel() for x in tokens))


def settings_on(device: str, settings: SchemeSettings) -> SchemeSettings:
    """Return settings with which a scheme computes on the CPU as on `device`.

    `fold: auto` (alibi) depends on the device of the tensors: on CUDA it always folds. All else about a scheme is the
    same on every device.
    """
    if device == "cuda" and getattr(settings, "fold", "") == "auto":
        return replace(settings, fold="always")
    return settings


SHORT, LONG = 512, 4096  # windows at which paths are determined, and (LONG) shares of work and memory [tokens]
FARTHEST = 131_072  # windows are tried up to here [tokens]
TINY = AttentionShape(2, 2, head_dim=16, d_model=32, max_seq_len=FARTHEST)  # for trying far windows
DTYPE = torch.bfloat16

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class SchemeFacts:
    """The facts about one scheme in one model."""

    entry: Entry
    settings: SchemeSettings
    relative: bool | None  # None: it knows no positions
    n_parameters: int  # of the whole model, above those of one without positions
    parameters: Shapes  # those that a model without positions has not, or in another shape; `<i>`: in every layer
    paths: dict[str, tuple[str, str]]  # device -> the kernel for a window of SHORT, and of LONG tokens
    products: float  # multiply-adds for one pair of tokens and one head, at LONG
    linear: bool  # their number grows with T, that of the others with the pairs
    numbers: float  # numbers per token that one layer passes to the kernel, at LONG
    growth: float  # numbers grow with T to this power
    cached: int  # numbers per token that one layer keeps in a cache
    reach: int | None  # longest window [tokens]; None: FARTHEST is not the end
    rope_scaling: list[str]
    attention_patterns: dict[str, str]  # name -> why it cannot go with the scheme; "": it can

    def work(self, n_tokens: int) -> float:
        """Return the multiply-adds of one head for a window: of its pairs on and below the diagonal."""
        pairs = n_tokens * (n_tokens + 1) / 2
        return self.products * (LONG + 1) / 2 * n_tokens if self.linear else self.products * pairs

    def held(self, n_tokens: int) -> float:
        """Return how many numbers one layer passes to the kernel for a window."""
        return self.numbers * LONG * (n_tokens / LONG) ** self.growth


def measure_scheme(entry: Entry, reference: ReferenceModel) -> SchemeFacts:
    """Build the scheme and measure it."""
    settings, shape = reference.scheme(entry), reference.shape

    @cache
    def at(device: str, n_tokens: int) -> LayerTensors:
        """Build a layer of the model trained with windows of n_tokens; one for both devices where possible."""
        trained = reference.trained_at(n_tokens).scheme(entry)
        if device != "cpu" and settings_on(device, trained) is trained:
            return at("cpu", n_tokens)
        return _layer(settings_on(device, trained), shape, n_tokens)

    with torch.device("meta"):
        position = positions.build(settings, shape)
    n_parameters, parameters = _parameters(settings, reference)
    paths = {d: _paths(at(d, SHORT), at(d, LONG), d) for d in ("cpu", "cuda")}
    long, half = at("cpu", LONG), at("cpu", LONG // 2)
    return SchemeFacts(
        entry=entry,
        settings=settings,
        relative=position.relative if position.sees_positions else None,
        n_parameters=n_parameters,
        parameters=parameters,
        paths=paths,
        products=products(long.parts[0], long.v_BTGD, paths["cpu"][1]),
        linear=position.linear,
        numbers=_numbers(long) / LONG,
        growth=math.log2(_numbers(long) / _numbers(half)),
        cached=shape.n_kv_heads * (position.key_dim + shape.head_dim) + long.tokens,
        reach=_reach(settings),
        rope_scaling=list(entries("position/rope_scaling")) if scaling_of(settings) else [],
        attention_patterns={
            name: _problem(other, settings, reference) for name, other in entries("attention_pattern").items()
        },
    )


def measure_schemes(reference: ReferenceModel) -> dict[str, SchemeFacts]:
    """Return the facts about every choice of configs/position."""
    return {name: measure_scheme(entry, reference) for name, entry in entries("position").items()}


def _parameters(settings: SchemeSettings, reference: ReferenceModel) -> tuple[int, Shapes]:
    """Return how many parameters the scheme adds to a model, and the shapes of those that are new or changed."""
    plain = reference.scheme(entries("position")["nope"])
    (count, shapes), (plain_count, plain_shapes) = (_count(each, reference) for each in (settings, plain))
    changed = {name: shape for name, shape in shapes.items() if plain_shapes.get(name) != shape}
    return count - plain_count, changed


def _count(position: SchemeSettings, reference: ReferenceModel) -> tuple[int, Shapes]:
    causal = reference.pattern(entries("attention_pattern")["causal"])
    with torch.device("meta"):
        model = Transformer(reference.model, position, causal, vocab_size=64, max_seq_len=reference.seq_len)
    named = {name: tuple(p.shape) for name, p in model.named_parameters()}
    collapsed = {name.replace("blocks.0.", "blocks.<i>."): shape for name, shape in named.items()}
    kept = {name: shape for name, shape in collapsed.items() if not name.startswith("blocks.") or "<i>" in name}
    return sum(math.prod(shape) for shape in named.values()), kept


def _layer(settings: SchemeSettings, shape: AttentionShape, n_tokens: int) -> LayerTensors:
    return build_layer(settings, shape, torch.arange(n_tokens)[None], n_tokens, DTYPE)


def _paths(short: LayerTensors, long: LayerTensors, device: str) -> tuple[str, str]:
    with pretend_device(device):
        return choose(short.parts, SHORT), choose(long.parts, LONG)


def products(part: Part, v_BTGD: Tensor, kernel: str) -> float:
    """Return the multiply-adds for one pair of tokens in one head: q'·k', its terms, the matrix products of a hook, and
    the weighted sum of the values. Of linear attention those for a token, by its pairs."""
    if is_linear([part]):
        return 2 * linear_products(part.q_BTHE.shape[-1], v_BTGD.shape[-1]) / (v_BTGD.shape[1] + 1)
    terms, width = part.terms, part.q_BTHE.shape[-1]
    values = width if kernel == "sdpa" else v_BTGD.shape[-1]  # fused kernels pad the values to the keys' width
    for term in (terms.query, terms.key):
        width += term[0].shape[-1] if term is not None else 0
    by_distance = terms.value_RD.shape[-1] if terms.value_RD is not None else 0
    return width + values + by_distance + hook_products(part)


def _numbers(tensors: LayerTensors) -> int:
    """Count the numbers in all tensors of a layer, shared memory once."""
    (part,) = tensors.parts
    passed = tree_leaves((part.q_BTHE, part.k_BSGE, part.terms, part.score_mod, part.divisor, tensors.v_BTGD))
    return sum({x.untyped_storage().data_ptr(): x.numel() for x in passed if isinstance(x, Tensor)}.values())


def _reach(settings: SchemeSettings) -> int | None:
    """Return the longest window that is not refused, by trying its first and last token."""

    def fits(n_tokens: int) -> bool:
        try:
            build_layer(settings, TINY, torch.tensor([[0, n_tokens - 1]]), n_tokens, DTYPE)
        except UserError:
            return False
        return True

    if fits(FARTHEST):
        return None
    fine, refused = 1, FARTHEST
    while refused - fine > 1:
        middle = (fine + refused) // 2
        fine, refused = (middle, refused) if fits(middle) else (fine, middle)
    return fine


def _problem(attention_pattern: Entry, settings: SchemeSettings, reference: ReferenceModel) -> str:
    """Return why an attention pattern does not go with a scheme, with windows of half the training window: pairs a
    whole training window apart need one row more than a table of learned positions has."""
    half = reference.trained_at(max(1, reference.seq_len // 2)).pattern(attention_pattern)
    return "; ".join(text for _, text, _ in patterns.problems(half, settings, reference.model))


STRETCH = 4  # frequencies are shown at this many training windows
FAR = 16  # what the last query sees is shown at this many training windows


@dataclass(frozen=True)
class ScalingFacts:
    """The facts about one choice of position/rope_scaling, for a head of the reference's width."""

    entry: Entry
    kind: str  # fixed, dynamic (follows the length) or learned
    theta: float
    stretch: tuple[float, float, float]  # wavelengths over those of `plain` with this theta, at STRETCH windows:
    # of the fastest pair, the one a quarter of the way to the slowest, and the slowest
    temperature: float  # multiplied into q' and into k', at STRETCH windows


@dataclass(frozen=True)
class PatternFacts:
    """The facts about one choice of attention pattern, for the last query of FAR training windows."""

    entry: Entry
    used_in: str  # training, evaluation or both
    n_seen: int  # keys, itself included
    farthest: int  # largest distance at which the scheme places a key
    cached: int | None  # keys that a cache has to keep; None: all


def measure_frequencies(entry: Entry, reference: ReferenceModel) -> ScalingFacts:
    """Measure frequencies; learned ones at zero, as they start."""
    settings = reference.scaling(entry)
    module = settings.build(reference.shape.head_dim).eval()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    with torch.no_grad():
        trained, far = module(reference.seq_len), module(STRETCH * reference.seq_len)
    plain = rope_scaling.settings_class("plain")(name="plain", theta=settings.theta)
    unscaled = plain.spectrum(reference.shape.head_dim, reference.seq_len)
    stretch_J = unscaled.inv_freq_J / far.inv_freq_J
    follows = not torch.equal(trained.inv_freq_J, far.inv_freq_J)
    return ScalingFacts(
        entry=entry,
        kind="learned" if any(True for _ in module.parameters()) else "dynamic" if follows else "fixed",
        theta=settings.theta,
        stretch=(float(stretch_J[0]), float(stretch_J[len(stretch_J) // 4]), float(stretch_J[-1])),
        temperature=far.temperature,
    )


def measure_attention_pattern(entry: Entry, reference: ReferenceModel) -> PatternFacts:
    """Measure the last row of all views."""
    rules = patterns.build(reference.pattern(entry))
    n_tokens, keep = FAR * reference.seq_len, rules.keep()
    pos_BT = torch.arange(n_tokens)[None]
    n_seen, farthest = 0, 0
    for layout in rules.layouts(pos_BT[:, -1:], pos_BT):
        seen_S = seen(layout, slice(0, 1), slice(0, n_tokens))[0, 0]
        distance_S = (layout.pos_BT[0] - layout.pos_BS[0])[seen_S]
        n_seen += int(seen_S.sum())
        farthest = max(farthest, int(distance_S.max()) if len(distance_S) else 0)
    used_in = "training" if rules.in_training() else "training, evaluation" if rules.trains else "evaluation"
    return PatternFacts(entry, used_in, n_seen, farthest, keep and keep.first + keep.last)
