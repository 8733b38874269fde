"""A scheme compared with its definition: attention on every kernel, values and gradients.

Shape legend: B batch, T queries, S keys, H query heads, D head_dim, C d_model.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from coca_train.attention import patterns
from coca_train.attention.pattern import Layout
from coca_train.attention.scores import part_of
from coca_train.positions import SCHEMES
from coca_train.positions.base import LayerPosition, Position, PositionedQK
from coca_train.runtime.compilation import compile_alone
from coca_train.testing import parts
from coca_train.testing.contract import Case, Contract
from coca_train.testing.problem import Problem, attention, placed, problem

if TYPE_CHECKING:
    import pytest

CAUSAL = {"name": "causal"}
ATTENTION_PATTERNS: dict[str, Case] = {  # every kind of view there is, in sizes that show within these texts
    "causal": CAUSAL,
    "sliding_window": {"name": "sliding_window", "window": 5},
    "sinks": {"name": "sinks", "n_sink": 2, "window": 4},
    "lambda_mask": {"name": "lambda_mask", "n_global": 3, "window": 4, "max_distance": 7},
    "rerope": {"name": "rerope", "window": 5},
    "segments": {"name": "segments", "length": 5},
    "bidirectional": {"name": "bidirectional"},
}
PACKED = parts.packed([3, 8, 6], [12, 5])
N_TOKENS = PACKED[0].shape[1]
EVERYTHING = slice(None)


class Layer(NamedTuple):
    """One layer of a scheme, with random numbers in it."""

    scheme: Position
    own: LayerPosition
    inputs: list[Tensor]  # q, k, v, then the parameters
    names: list[str]  # of the parameters

    def mapped(self, layout: Layout, rows: slice, keys: slice, length: int) -> PositionedQK:
        """Apply the layer to some queries and keys in a layout of theirs."""
        q_BTHD, k_BSGK = self.inputs[0][:, rows], self.inputs[1][:, keys]
        tables = self.scheme(layout.pos_BT, layout.pos_BS, length)
        project = parts.projections(self.scheme, q_BTHD.dtype)
        return self.own(self.scheme, q_BTHD, k_BSGK, tables, project, parts.tokens(self.own, k_BSGK))


class Defined(Contract):
    """Equal to the formula, pair by pair, in float64, which a subclass writes from the paper. A fast path that sums in
    another order, cuts a text into tiles or keeps keys in a cache is a path of the same formula."""

    kind, registry, shipped = "scheme", SCHEMES, "position"
    scheme: ClassVar[str]
    angles: ClassVar[bool] = False
    rounding: ClassVar[float] = 2e-5
    positive: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def products(cls) -> dict[str, tuple[Mapping[str, object], int]]:
        """Return attention patterns, for the cases alone where there are any: a shipped one differs by its numbers."""
        return {
            "attention_pattern": ({name: name for name in ATTENTION_PATTERNS}, len(cls.cases) or len(cls.settings()))
        }

    def score(self, problem: Problem) -> Tensor:
        """Return the score of every pair, see `Definition`."""
        raise NotImplementedError(f"{type(self).__name__}.score: write the scheme's formula, for every pair (m, n)")

    def value(self, problem: Problem) -> Tensor | None:
        """Return what is added to the values, see `Definition`."""
        return None

    def weight(self, problem: Problem) -> Tensor | None:
        """Return the weight of every pair, see `Definition`; then there is no `score`."""
        return None

    def rest(self, problem: Problem) -> Tensor | None:
        """Return the score of the key without a value, see `Definition`."""
        return None

    def embed(self, settings: Case, x_BTC: Tensor, pos_BT: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return token embeddings with what the scheme adds to them."""
        return x_BTC

    def test_attention_and_its_gradients_equal_the_definition(
        self, settings: Case, attention_pattern: str, monkeypatch: "pytest.MonkeyPatch"
    ) -> None:
        """Every kernel, in float64, one document and several, tiles so small that a text has several."""
        parts.small_tiles(monkeypatch)
        if self._refused(settings, attention_pattern):
            return
        exact_by = 1e-5 if self.angles else 1e-7
        for pos, doc in ((parts.start(N_TOKENS), None), PACKED):
            layer = self._layer(settings, attention_pattern)
            exact, exact_grads, weight = self._defined(settings, attention_pattern, layer, pos, doc)
            for kernel in parts.KERNELS:
                out = self._attend(kernel, layer, attention_pattern, pos, pos, doc)
                grads = gradients(out, layer.inputs, weight)
                _close(out, exact, 1e-6 if self.angles else 1e-9, f"{kernel}: attention")
                for name, a, b in zip(["q", "k", "v", *layer.names], grads, exact_grads, strict=True):
                    _close(a, b, exact_by, f"{kernel}: the gradient of {name}", 1e-11)

    def test_narrow_numbers_equal_the_definition(self, settings: Case, attention_pattern: str) -> None:
        """float32 with all gradients, bfloat16 with those of q, k and v; several documents."""
        if self._refused(settings, attention_pattern):
            return
        for dtype, within in ((torch.float32, self.rounding), (torch.bfloat16, 2e-2)):
            layer = self._layer(settings, attention_pattern, dtype)
            exact, exact_grads, weight = self._defined(settings, attention_pattern, layer, *PACKED)
            out = self._attend("blocked", layer, attention_pattern, PACKED[0], *PACKED)
            assert out.dtype == dtype
            _close(out, exact, within, f"{dtype}: attention")
            grads = gradients(out, layer.inputs, weight)
            names = ["q", "k", "v", *(layer.names if dtype == torch.float32 else [])]
            least = 1e-9 if self.rounding < 1e-4 else 1e-5  # a sum over all pairs may cancel to nothing
            for name, a, b in zip(names, grads, exact_grads, strict=False):
                what = f"the gradient of {name} (a sum of many that cancel? say so with `rounding`)"
                _close(a, b, within, f"{dtype}: {what}", least)

    def test_heads_equal_the_definition(self, settings: Case) -> None:
        """However many query heads share a key head."""
        for heads in ((3, 3), (4, 1), (6, 3), (1, 1)):
            layer, pos = self._layer(settings, heads=heads), parts.start(9)
            layer = layer._replace(inputs=[*(x[:, :9].detach() for x in layer.inputs[:3]), *layer.inputs[3:]])
            exact, *_ = self._defined(settings, "causal", layer, pos, None)
            out = self._attend("blocked", layer, "causal", pos, pos, None)
            _close(out, exact, 1e-6 if self.angles else 1e-9, f"{heads} heads: attention")

    def test_the_length_is_the_one_given(self, settings: Case) -> None:
        """`length` may exceed the tokens in hand: generation adapts to prompt and new tokens at once."""
        layer, pos = self._layer(settings), parts.start(N_TOKENS)
        exact, *_ = self._defined(settings, "causal", layer, pos, None, length=50)
        out = self._attend("eager", layer, "causal", pos, pos, None, length=50)
        _close(out, exact, 1e-6, "attention at length=50")

    def test_a_step_with_cached_keys_equals_the_definition(self, settings: Case, attention_pattern: str) -> None:
        """One query at a time over all keys so far, as a cache holds them; the cache knows what tokens of it."""
        if self._refused(settings, attention_pattern) or attention_pattern == "bidirectional":
            return
        layer, pos = self._layer(settings), parts.start(N_TOKENS)
        exact, *_ = self._defined(settings, attention_pattern, layer, pos, None)
        for last in range(N_TOKENS):
            now, so_far = slice(last, last + 1), slice(0, last + 1)
            step = self._attend("blocked", layer, attention_pattern, pos[:, now], pos[:, so_far], None, now, so_far)
            _close(step, exact[:, now], 1e-6, f"the query at {last}")

    def test_compiled_tiles_of_a_hook_equal_the_definition(
        self, settings: Case, monkeypatch: "pytest.MonkeyPatch"
    ) -> None:
        """As on CUDA: traced, its gradient too, and run uncompiled. Once for each hook, all tiles of one size: each
        other one is traced anew."""
        hooks = []
        for each in self.settings().values():
            scheme = parts.build(each)
            q_BTHD, k_BSGK, _ = parts.random_qkv(scheme, 2)
            score_mod = parts.mapped(scheme, q_BTHD, k_BSGK, parts.start(2), parts.start(2), 2).score_mod
            if each == settings:
                break
            hooks.append(score_mod and score_mod.by)
        if score_mod is None or score_mod.by in hooks:
            return
        layer = self._layer(settings)
        cut = [x[:, :16].detach().requires_grad_() for x in layer.inputs[:3]]
        layer, (pos, doc) = layer._replace(inputs=[*cut, *layer.inputs[3:]]), (x[:, :16] for x in PACKED)
        parts.small_tiles(monkeypatch, key_tile=4)
        torch._dynamo.reset()

        def compiled(mapped: PositionedQK) -> PositionedQK:
            assert mapped.score_mod is not None
            traced = compile_alone(mapped.score_mod.by.scores, "aot_eager")
            return mapped._replace(score_mod=mapped.score_mod._replace(by=mapped.score_mod.by._replace(scores=traced)))

        exact, exact_grads, weight = self._defined(settings, "sliding_window", layer, pos, doc)
        out = self._attend("tiled", layer, "sliding_window", pos, pos, doc, change=compiled)
        for a, b in zip([out, *gradients(out, layer.inputs, weight)], [exact, *exact_grads], strict=True):
            _close(a, b, 1e-7, "compiled", 1e-11)

    def test_embeddings_equal_the_definition(self, settings: Case) -> None:
        """Their gradients too."""
        scheme = parts.build(settings)
        named, generator = dict(scheme.named_parameters()), torch.Generator().manual_seed(4)
        x_BTC = torch.randn(2, 13, 24, generator=generator, dtype=torch.float64)
        pos = torch.stack((torch.arange(13), torch.arange(13).flip(0)))
        wide = {name: value.detach().clone().requires_grad_() for name, value in named.items()}
        out, exact = parts.embed(scheme, x_BTC, pos), self.embed(settings, x_BTC, pos, wide)
        _close(out, exact, 1e-6, "embeddings")
        if scheme.embeds and named:
            grads = [gradients(y, list(p.values()), x_BTC) for y, p in ((out, named), (exact, wide))]
            assert all((a - b).abs().max() <= 1e-9 * b.abs().max() for a, b in zip(*grads, strict=True))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert parts.embed(scheme.to(dtype), x_BTC.to(dtype), pos).dtype == dtype

    @staticmethod
    def _refused(settings: Case, attention_pattern: str) -> bool:
        return parts.refused(ATTENTION_PATTERNS[attention_pattern], parts.build(settings))

    def _layer(
        self,
        settings: Case,
        attention_pattern: str = "causal",
        dtype: torch.dtype = torch.float64,
        heads: tuple[int, int] = (4, 2),
    ) -> Layer:
        scheme = parts.build(settings, *heads, bidirectional=attention_pattern == "bidirectional").to(dtype)
        own = parts.layer_of(scheme).to(dtype)
        named = dict([*scheme.named_parameters(), *own.named_parameters()])
        for name, parameter in named.items():
            if name.rpartition(".")[2] in self.positive:
                parameter.data.abs_().add_(0.1)
        return Layer(scheme, own, [*parts.random_qkv(scheme, N_TOKENS, dtype=dtype), *named.values()], list(named))

    def _defined(
        self,
        settings: Case,
        attention_pattern: str,
        layer: Layer,
        pos: Tensor,
        doc: Tensor | None,
        length: int = N_TOKENS,
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return (output, gradients of all inputs, weights of the sum that is differentiated), float64."""
        q, k, v, *values = wide = [x.detach().double().requires_grad_() for x in layer.inputs]
        rules = patterns.build(patterns.settings(ATTENTION_PATTERNS[attention_pattern]))
        seen, m, n = placed(rules.layouts(pos, pos, doc))
        named, project = dict(zip(layer.names, values, strict=True)), parts.projections(layer.scheme)
        task = problem(settings, q, k, pos, pos, length, parameters=named, project=project)
        task = replace(task, seen_BTS=seen, m_BTS=m, n_BTS=n, bidirectional=rules.bidirectional)
        out = attention(self, task, v)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return out.detach(), gradients(out, wide, weight), weight

    def _attend(
        self,
        kernel: str,
        layer: Layer,
        attention_pattern: str,
        pos_BT: Tensor,
        pos_BS: Tensor,
        doc_BS: Tensor | None,
        rows: slice = EVERYTHING,
        keys: slice = slice(None),
        length: int = N_TOKENS,
        change: Callable[[PositionedQK], PositionedQK] = lambda mapped: mapped,
    ) -> Tensor:
        """Compute a model's attention of one layer's q, k, v."""
        rules = patterns.build(patterns.settings(ATTENTION_PATTERNS[attention_pattern]))
        layouts = rules.layouts(pos_BT, pos_BS, doc_BS)
        pieces = [part_of(change(layer.mapped(layout, rows, keys, length)), layout) for layout in layouts]
        return parts.KERNELS[kernel](pieces, layer.inputs[2][:, keys], layer.scheme.shape.head_dim**-0.5)


def _close(ours: Tensor, exact: Tensor, within: float, what: str, least: float = 0.0) -> None:
    """Raise AssertionError where the largest difference is more than `within` of the largest value."""
    ours, exact = ours.detach(), exact.detach()
    difference, bound = float((ours - exact).abs().max()), within * float(exact.abs().max()) + least
    assert difference <= bound, f"{what} differs from the definition by {difference:.2g}; {bound:.2g} is rounding"


def gradients(out: Tensor, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """Return the gradients of one weighted sum; zero where an input has no part in it."""
    leaves = [x for x in inputs if x.requires_grad]
    grads = iter(torch.autograd.grad(out, leaves, weight.to(out.dtype), allow_unused=True))
    by_leaf = [next(grads) if x.requires_grad else None for x in inputs]
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, by_leaf, strict=True)]
