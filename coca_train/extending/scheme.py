"""What every position scheme promises, as a class of tests: `class TestMine(SchemeContract)`, see docs/extending.md.

Shape legend: B batch, T queries, S keys, H query heads, D head_dim, C d_model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam

from coca_train import positions
from coca_train.config.schema import LogitScaleConfig, ModelConfig
from coca_train.extending import parts
from coca_train.extending.problem import Problem, attention, placed, problem
from coca_train.models import kernels, online
from coca_train.models.certificate import certify
from coca_train.models.init import init_weights
from coca_train.models.scores import part_of
from coca_train.models.transformer import Transformer
from coca_train.positions import visibilities
from coca_train.positions.base import LayerPosition, Mapped, Position
from coca_train.positions.visibility import Layout
from coca_train.runtime.errors import UserError

CAUSAL = {"name": "causal"}
VISIBILITIES: dict[str, dict[str, Any]] = {  # every kind of view there is, in sizes that show within these texts
    "causal": CAUSAL,
    "sliding_window": {"name": "sliding_window", "window": 5},
    "sinks": {"name": "sinks", "n_sink": 2, "window": 4},
    "lambda_mask": {"name": "lambda_mask", "n_global": 3, "window": 4, "max_distance": 7},
    "rerope": {"name": "rerope", "window": 5},
    "segments": {"name": "segments", "length": 5},
}
KERNELS = {"eager": kernels.eager, "blocked": kernels.blocked, "online": online.online}
PACKED = parts.packed([3, 8, 6], [12, 5])
N_TOKENS = PACKED[0].shape[1]
VOCAB, N_TEXT = 101, 33
EVERYTHING = slice(None)
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
    bias=False,
    tie_embeddings=False,
    dropout=0.0,
    init_std=0.2,  # large, so that attention is far from uniform and errors show
    init_depth_scaled=False,
)


class Layer(NamedTuple):
    """One layer of a scheme, with random numbers in it."""

    scheme: Position
    own: LayerPosition
    inputs: list[Tensor]  # q, k, v, then the parameters
    names: list[str]  # of the parameters

    def mapped(self, layout: Layout, rows: slice, keys: slice, length: int) -> Mapped:
        """What the layer makes of some queries and keys in a layout of theirs."""
        q_BTHD, k_BSGK = self.inputs[0][:, rows], self.inputs[1][:, keys]
        tables = self.scheme(layout.pos_BT, layout.pos_BS, length)
        project = parts.projections(self.scheme, q_BTHD.dtype)
        return self.own(self.scheme, q_BTHD, k_BSGK, tables, project, parts.tokens(self.own, k_BSGK))


class SchemeContract:
    """The tests of one scheme. A subclass gives its name, its definition and what its parameters are called.

    cases: settings to test besides those of the yamls in configs/position/ that name the scheme, without the key
    `scheme`; small ones, so that tables end and counts run out within 17 tokens. shared, own: shapes of the scheme's
    and of a layer's parameters under the first of these settings, at 4 heads, 2 of keys, head_dim 16, d_model 24.
    angles: it computes with float32 angles. rounding: what float32 may differ by. kinks: a ReLU stands on what queries
    and keys are made of, and bfloat16 puts single numbers on its other side, so that their gradients are compared as a
    whole. positive: parameters that are drawn above 0.1.
    """

    scheme: ClassVar[str]
    cases: ClassVar[Sequence[Mapping[str, Any]]] = ()
    shared: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    own: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    angles: ClassVar[bool] = False
    rounding: ClassVar[float] = 2e-5
    kinks: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ()

    def score(self, problem: Problem) -> Tensor:
        """The score of every pair, see `Definition`."""
        raise NotImplementedError(f"{type(self).__name__}.score: write the scheme's formula, for every pair (m, n)")

    def value(self, problem: Problem) -> Tensor | None:
        """What is added to the values, see `Definition`."""
        return None

    def embed(
        self, settings: Mapping[str, Any], x_BTC: Tensor, pos_BT: Tensor, parameters: Mapping[str, Tensor]
    ) -> Tensor:
        """Token embeddings and what the scheme adds to them."""
        return x_BTC

    @classmethod
    def settings(cls) -> dict[str, dict[str, Any]]:
        """By name, all settings that are tested: the cases, then the shipped ones."""
        given = {"-".join(["case", *map(_word, case.values())]): {"scheme": cls.scheme, **case} for case in cls.cases}
        return given | {name: each for name, each in parts.shipped() if each["scheme"] == cls.scheme}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Each test for all settings; or for the cases, where there are any, under all visibilities."""
        by_name = list(self.settings().items())
        assert by_name, f"{self.scheme}: no yaml of configs/position/ names it, so give `cases`"
        if "visibility" in metafunc.fixturenames:
            metafunc.parametrize("visibility", list(VISIBILITIES))
            by_name = by_name[: len(self.cases) or None]
        if "settings" in metafunc.fixturenames:
            metafunc.parametrize("settings", [each for _, each in by_name], ids=[name for name, _ in by_name])

    # The definition.

    def test_attention_and_its_gradients_equal_the_definition(
        self, settings: Any, visibility: str, monkeypatch: Any
    ) -> None:
        """Every kernel, in float64, one document and several, tiles so small that a text has several."""
        self._small_tiles(monkeypatch)
        if self._refused(settings, visibility):
            return
        exact_by = 1e-5 if self.angles else 1e-7
        for pos, doc in ((parts.start(N_TOKENS), None), PACKED):
            layer = self._layer(settings)
            exact, exact_grads, weight = self._defined(settings, visibility, layer, pos, doc)
            for kernel in KERNELS:
                out = self._attend(kernel, layer, visibility, pos, pos, doc)
                grads = _gradients(out, layer.inputs, weight)
                _close(out, exact, 1e-6 if self.angles else 1e-9, f"{kernel}: attention")
                for name, a, b in zip(["q", "k", "v", *layer.names], grads, exact_grads, strict=True):
                    _close(a, b, exact_by, f"{kernel}: the gradient of {name}", 1e-11)

    def test_narrow_numbers_equal_the_definition(self, settings: Any, visibility: str) -> None:
        """float32 with all gradients, bfloat16 with those of q, k and v; several documents."""
        if self._refused(settings, visibility):
            return
        for dtype, within in ((torch.float32, self.rounding), (torch.bfloat16, 2e-2)):
            layer = self._layer(settings, dtype)
            exact, exact_grads, weight = self._defined(settings, visibility, layer, *PACKED)
            out = self._attend("blocked", layer, visibility, PACKED[0], *PACKED)
            assert out.dtype == dtype
            _close(out, exact, within, f"{dtype}: attention")
            grads = _gradients(out, layer.inputs, weight)
            if dtype == torch.bfloat16 and self.kinks:
                assert all((a - b).norm() <= 6e-2 * b.norm() for a, b in zip(grads[:3], exact_grads[:3], strict=True))
                continue
            names = ["q", "k", "v", *(layer.names if dtype == torch.float32 else [])]
            least = 1e-9 if self.rounding < 1e-4 else 1e-5  # a sum over all pairs may cancel to nothing
            for name, a, b in zip(names, grads, exact_grads, strict=False):
                what = f"the gradient of {name} (a sum of many that cancel? say so with `rounding`)"
                _close(a, b, within, f"{dtype}: {what}", least)

    def test_heads_equal_the_definition(self, settings: Any) -> None:
        """However many query heads share a key head."""
        for heads in ((3, 3), (4, 1), (6, 3), (1, 1)):
            layer, pos = self._layer(settings, heads=heads), parts.start(9)
            layer = layer._replace(inputs=[*(x[:, :9].detach() for x in layer.inputs[:3]), *layer.inputs[3:]])
            exact, *_ = self._defined(settings, "causal", layer, pos, None)
            out = self._attend("blocked", layer, "causal", pos, pos, None)
            _close(out, exact, 1e-6 if self.angles else 1e-9, f"{heads} heads: attention")

    def test_the_length_is_the_one_given(self, settings: Any) -> None:
        """`length` may exceed the tokens in hand: generation adapts to prompt and new tokens at once."""
        layer, pos = self._layer(settings), parts.start(N_TOKENS)
        exact, *_ = self._defined(settings, "causal", layer, pos, None, length=50)
        out = self._attend("eager", layer, "causal", pos, pos, None, length=50)
        _close(out, exact, 1e-6, "attention at length=50")

    def test_a_step_with_cached_keys_equals_the_definition(self, settings: Any, visibility: str) -> None:
        """One query at a time over all keys so far, as a cache holds them; the cache knows what tokens of it."""
        if self._refused(settings, visibility):
            return
        layer, pos = self._layer(settings), parts.start(N_TOKENS)
        exact, *_ = self._defined(settings, visibility, layer, pos, None)
        for last in range(N_TOKENS):
            now, so_far = slice(last, last + 1), slice(0, last + 1)
            step = self._attend("blocked", layer, visibility, pos[:, now], pos[:, so_far], None, now, so_far)
            _close(step, exact[:, now], 1e-6, f"the query at {last}")

    def test_compiled_tiles_of_a_hook_equal_the_definition(self, settings: Any, monkeypatch: Any) -> None:
        """As on CUDA: traced, its gradient too, and run uncompiled. Once for each hook, all tiles of one size: each
        other one is traced anew."""
        hooks = []
        for each in self.settings().values():
            scheme = parts.build(each)
            q_BTHD, k_BSGK, _ = parts.random_qkv(scheme, 2)
            hooked = parts.mapped(scheme, q_BTHD, k_BSGK, parts.start(2), parts.start(2), 2).hooked
            if each == settings:
                break
            hooks.append(hooked and hooked.by)
        if hooked is None or hooked.by in hooks:
            return
        layer = self._layer(settings)
        cut = [x[:, :16].detach().requires_grad_() for x in layer.inputs[:3]]
        layer, (pos, doc) = layer._replace(inputs=[*cut, *layer.inputs[3:]]), (x[:, :16] for x in PACKED)
        for name in ("QUERY_TILE", "KEY_TILE"):
            monkeypatch.setattr(online, name, 4)
        torch._dynamo.reset()

        def compiled(mapped: Mapped) -> Mapped:
            assert mapped.hooked is not None
            traced = torch.compile(mapped.hooked.by.scores, backend="aot_eager")
            return mapped._replace(hooked=mapped.hooked._replace(by=mapped.hooked.by._replace(scores=traced)))

        exact, exact_grads, weight = self._defined(settings, "sliding_window", layer, pos, doc)
        out = self._attend("online", layer, "sliding_window", pos, pos, doc, change=compiled)
        for a, b in zip([out, *_gradients(out, layer.inputs, weight)], [exact, *exact_grads], strict=True):
            _close(a, b, 1e-7, "compiled", 1e-11)

    def test_embeddings_equal_the_definition(self, settings: Any) -> None:
        """Their gradients too."""
        scheme = parts.build(settings)
        named, generator = dict(scheme.named_parameters()), torch.Generator().manual_seed(4)
        x_BTC = torch.randn(2, 13, 24, generator=generator, dtype=torch.float64)
        pos = torch.stack((torch.arange(13), torch.arange(13).flip(0)))
        wide = {name: value.detach().clone().requires_grad_() for name, value in named.items()}
        out, exact = scheme.embed(x_BTC, pos), self.embed(settings, x_BTC, pos, wide)
        _close(out, exact, 1e-6, "embeddings")
        if scheme.embeds and named:
            grads = [_gradients(y, list(p.values()), x_BTC) for y, p in ((out, named), (exact, wide))]
            assert all((a - b).abs().max() <= 1e-9 * b.abs().max() for a, b in zip(*grads, strict=True))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert scheme.to(dtype).embed(x_BTC.to(dtype), pos).dtype == dtype

    # What the class says of itself.

    def test_it_is_relative_if_it_says_so(self, settings: Any) -> None:
        """Moved by 1000, the output stays; else it moves."""
        scheme = parts.build(settings)
        x_BTC, shift = _hidden(scheme, 9), min(1000, _end(scheme) - 9)
        here, there = (_attention(scheme, x_BTC, parts.start(9, first), 2000) for first in (0, shift))
        # angles are float32: at position 1000 they are known to 6e-5
        assert torch.allclose(here, there, rtol=0, atol=2e-3) == scheme.relative
        assert shift == 1000 if scheme.relative else (here - there).abs().max() > 0.02

    def test_switching_it_off_changes_the_output(self, settings: Any) -> None:
        """All tokens at one place; or, where it sees no places, without its hook."""
        scheme = parts.build(settings)
        x_BTC, pos = _hidden(scheme, 9), parts.start(9)
        here, nowhere = (_attention(scheme, x_BTC, p, 9) for p in (pos, pos * 0))
        assert ((here - nowhere).abs().max() > 1e-3) == scheme.sees_positions
        if scheme.has_effect and not scheme.sees_positions:
            layer = parts.layer_of(scheme)
            layer.register_forward_hook(lambda _, given, mapped: mapped._replace(hooked=None))
            assert (here - _attention(scheme, x_BTC, pos, 9, layer)).abs().max() > 1e-3

    def test_flags_of_hooks_and_embeddings(self, settings: Any) -> None:
        """`carries` is what its hook does; what acts on the embeddings does not act by pairs."""
        scheme = parts.build(settings)
        q, k, _ = parts.random_qkv(scheme, 3)
        hooked = parts.mapped(scheme, q, k, parts.start(3), parts.start(3), 3).hooked
        assert scheme.carries == (hooked is not None and hooked.by.carried > 0)
        assert not (scheme.embeds and scheme.by_pairs)

    def test_parameters_keep_their_names(self, settings: Any) -> None:
        """What a checkpoint holds: `shared` and `own` say so for the first of the settings."""
        if settings != next(iter(self.settings().values())):
            return
        scheme = parts.build(settings)
        modules = (scheme, parts.layer_of(scheme))
        shapes = [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]
        assert shapes == [dict(self.shared), dict(self.own)]

    def test_parameters_start_as_declared(self) -> None:
        """Each entry of INITIAL names a parameter and fills it with finite numbers; all chance is the generator's."""
        initial = getattr(positions.scheme_module(self.scheme), "INITIAL", {})
        modules = [parts.build(each) for each in self.settings().values()]
        named = [pair for each in modules for m in (each, each.layer()) for pair in m.named_parameters()]
        shapes = {name.rpartition(".")[2]: parameter.shape for name, parameter in named}
        assert set(initial) <= set(shapes)
        for name, fill in initial.items():
            first, again = (torch.full(shapes[name], math.nan) for _ in range(2))
            for values in (first, again):
                fill(values, torch.Generator().manual_seed(3))
            assert torch.isfinite(first).all() and torch.equal(first, again), name

    def test_settings_are_described_and_strict(self, settings: Any) -> None:
        """Every option is in the yaml and has a description; another is refused; what is wrong is said with a fix."""
        typed = parts.strict(positions.SCHEMES, settings)
        for each in (MODEL, _odd()):
            for key, text, fix in typed.problems(each) if hasattr(typed, "problems") else ():
                assert key.startswith(("position.", "model.")) and text and fix
        assert not (typed.problems(MODEL) if hasattr(typed, "problems") else ())

    # Tensors.

    def test_shapes_and_types(self, settings: Any) -> None:
        """In every dtype: what the dot product takes in that of q, biases in float32 (they grow with the distance)."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for n_tokens in (1, 5):
                scheme = parts.build(settings).to(dtype)
                self._shapes_and_types(scheme, n_tokens, dtype)

    def _shapes_and_types(self, scheme: Position, n_tokens: int, dtype: torch.dtype) -> None:
        pos, layer = parts.start(n_tokens), parts.layer_of(scheme).to(dtype)
        q, k, _ = _qkv(scheme, _hidden(scheme, n_tokens, dtype), pos)
        q_BTHE, k_BSGE, terms, hooked = mapped = parts.mapped(scheme, q, k, pos, pos, n_tokens, layer)
        assert q_BTHE.shape[:3] == (2, n_tokens, 4) and k_BSGE.shape[:3] == (2, n_tokens, 2)
        assert q_BTHE.shape[3] == k_BSGE.shape[3] >= scheme.shape.head_dim
        assert q_BTHE.dtype == k_BSGE.dtype == dtype
        assert all(torch.isfinite(x).all() for x in _flat(mapped))
        if terms.distance_HR is not None:
            assert terms.distance_HR.dtype == torch.float32 and terms.distance_HR.shape[0] == 4
        for pair, heads in ((terms.query, 4), (terms.key, 2)):
            if pair is not None:
                x_BTHD, e_RHD = pair
                assert x_BTHD.shape[:3] == (2, n_tokens, heads) and x_BTHD.dtype == e_RHD.dtype == dtype
                assert e_RHD.shape[1] in (1, 4) and e_RHD.shape[2] == x_BTHD.shape[3]
        if terms.value_RD is not None:
            assert (terms.value_RD.shape[1:], terms.value_RD.dtype) == ((16,), dtype)
        if hooked is not None:  # what stands for long sums and positions
            assert all(x.dtype == torch.float32 for x in _flat(tuple(hooked[1:])))
            assert all(x.shape[:2] in ((1, n_tokens), (2, n_tokens)) for x in (*hooked.queries, *hooked.keys))

    def test_positions_of_the_whole_batch_or_of_each_row(self, settings: Any) -> None:
        """(1, T) positions serve the batch; (B, T) rows may restart, as packed documents do."""
        scheme = parts.build(settings)

        def scores(x_BTC: Tensor, pos_BT: Tensor) -> Tensor:
            return parts.dense_scores(scheme, *_qkv(scheme, x_BTC, pos_BT)[:2], pos_BT, pos_BT, 6)

        x_BTC = _hidden(scheme, 6)
        shared = scores(x_BTC, parts.start(6))
        assert torch.allclose(scores(x_BTC, parts.start(6, batch=2)), shared, rtol=0, atol=1e-12)
        packed = scores(x_BTC, torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]]))
        # tables in float32 may be centred elsewhere when other positions are in hand
        assert torch.allclose(packed[0], shared[0], rtol=0, atol=1e-6)
        alone = scores(x_BTC[1:, 3:], parts.start(3))
        if not scheme.carries:  # a carry runs over what is seen, which is the documents' business
            assert torch.allclose(packed[1:, :, 3:, 3:], alone, rtol=0, atol=1e-6)

    def test_no_state_is_left_behind(self, settings: Any) -> None:
        """A call at 32k leaves no trace on a call at 512: same bits as a fresh scheme."""
        scheme = parts.build(settings)
        x_BTC, last = _hidden(scheme, 6, torch.float32), min(32768, _end(scheme))
        fresh = _attention(parts.build(scheme.settings), x_BTC, parts.start(6), 512)
        _attention(scheme, x_BTC, parts.start(6, last - 6), 32768)
        assert torch.equal(_attention(scheme, x_BTC, parts.start(6), 512), fresh)

    def test_half_precision_weights_do_not_touch_the_tables(self, settings: Any) -> None:
        """`model.bfloat16()` and a start on `meta` cannot reach slopes, frequencies or angles: there are no buffers."""
        scheme = parts.build(settings)
        assert not [*scheme.buffers(), *parts.layer_of(scheme).buffers()]
        pos = parts.start(2, min(32768, _end(scheme)) - 2)
        for table in _flat(scheme.bfloat16()(pos, pos, 32768)):
            assert not table.is_floating_point() or table.dtype in (torch.float32, torch.float64)

    def test_every_parameter_is_trained(self, settings: Any) -> None:
        """None is without gradient, and every gradient is finite. Distance 0 is among the pairs: log 0 would show."""
        scheme = parts.build(settings)
        layer = parts.layer_of(scheme)
        out = _attention(scheme, _hidden(scheme, 9).requires_grad_(), parts.start(9), 9, layer)
        out.square().sum().backward()
        for name, parameter in [*scheme.named_parameters(), *layer.named_parameters()]:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all() and parameter.grad.any(), name

    @torch.no_grad()
    def test_parameters_are_read_only_where_a_sharded_engine_lends_them(self, settings: Any) -> None:
        """ZeRO 3: shared ones while tables are made, a layer's own while it maps queries and keys. NaN elsewhere."""
        scheme, pos = parts.build(settings), parts.start(9)
        q, k, _ = _qkv(scheme, _hidden(scheme, 9), pos)
        exact = parts.mapped(scheme, q, k, pos, pos, 9)
        tables, layer = scheme(pos, pos, 9), parts.layer_of(scheme)
        for parameter in scheme.parameters():
            parameter.fill_(math.nan)
        tokens = parts.tokens(layer, k)
        mapped = layer(scheme, q, k, tables, parts.projections(scheme), tokens)
        for parameter in layer.parameters():
            parameter.fill_(math.nan)
        assert all(torch.equal(a, b) for a, b in zip(_flat(mapped), _flat(exact), strict=True))

    def test_positions_end_in_words(self, settings: Any) -> None:
        """A learned table of positions has a last row, and says so; all others have no end."""
        scheme = parts.build(settings)
        if scheme.max_positions is None:
            return
        _attention(scheme, _hidden(scheme, 2), parts.start(2, scheme.max_positions - 2), 2)
        try:
            _attention(scheme, _hidden(scheme, 1), parts.start(1, scheme.max_positions), 1)
        except UserError as error:
            message = str(error)
        else:
            message = f"position {scheme.max_positions} has no row, and no error says so"
        assert message.startswith("E-POS-04 ") and "position.max_len=" in message and " Fix: " in message, message

    # A model.

    @torch.no_grad()
    def test_a_model_is_causal_and_its_documents_are_strangers(self, settings: Any) -> None:
        """A token changes nothing before it; a packed document gives what it gives alone."""
        model, tokens = _model(settings), _text(settings)
        n_tokens, other = tokens.shape[1], tokens.clone()
        at, split = n_tokens * 2 // 3, n_tokens // 3
        other[:, at] = (other[:, at] + 1) % VOCAB
        before, after = (model.hidden(each, length=N_TEXT) for each in (tokens, other))
        assert torch.equal(before[:, :at], after[:, :at])
        assert not torch.allclose(before[:, at + 1 :], after[:, at + 1 :], atol=1e-6)
        pos, doc = parts.packed([split, n_tokens - split])
        packed = model.hidden(tokens, pos_BT=pos, doc_BT=doc, length=N_TEXT)
        torch.testing.assert_close(packed[:, split:], model.hidden(tokens[:, split:], length=N_TEXT))
        other = torch.cat(((tokens[:, :split] + 7) % VOCAB, tokens[:, split:]), 1)
        changed = model.hidden(other, pos_BT=pos, doc_BT=doc, length=N_TEXT)
        assert torch.equal(packed[:, split:], changed[:, split:])

    @torch.no_grad()
    def test_a_cache_is_the_whole_computation_also_forked(self, settings: Any) -> None:
        """Prompt, several tokens, one at a time; then a fork of it that goes on with other tokens."""
        model, tokens = _model(settings), _text(settings)
        n_tokens, first = tokens.shape[1], tokens[:1]
        cache = model.new_cache(n_tokens)
        pieces = [model.hidden(first[:, a:b], cache=cache, length=N_TEXT) for a, b in ((0, 9), (9, 12))]
        fork = cache.fork(2, n_tokens)
        pieces += [model.hidden(first[:, i : i + 1], cache=cache, length=N_TEXT) for i in range(12, n_tokens)]
        # xpos centres its float32 powers on the tokens in hand: other roundings at every length
        rtol, atol = (1e-3, 1e-5) if self.angles else (1e-7, 1e-9)
        torch.testing.assert_close(torch.cat(pieces, 1), model.hidden(first, length=N_TEXT), rtol=rtol, atol=atol)
        others = torch.cat((first[:, :12].expand(2, -1), tokens[:, 12:16]), 1)
        ways = [model.hidden(others[:, i : i + 1], cache=fork, length=N_TEXT) for i in range(12, 16)]
        torch.testing.assert_close(
            torch.cat(ways, 1), model.hidden(others, length=N_TEXT)[:, 12:], rtol=rtol, atol=atol
        )

    def test_a_model_is_certified_and_outlined(self, settings: Any) -> None:
        """What every run asks before its first step, on the CPU; and what plans ask: a pass on the meta device."""
        for dtype in (torch.float32, torch.bfloat16):
            certify(_model(settings).to(dtype), torch.device("cpu"), dtype)
        with torch.device("meta"):
            outline = Transformer(
                MODEL, positions.settings(settings), visibilities.settings(CAUSAL), vocab_size=VOCAB, max_seq_len=32
            )
        assert all(p.is_meta for p in outline.parameters())

    def test_a_model_trains_every_parameter(self, settings: Any) -> None:
        """Two steps from the declared start move all the scheme's parameters."""
        model = _model(settings).float().train()
        start = {n: p.detach().clone() for n, p in model.named_parameters() if "position" in n}
        optimizer, tokens = Adam(model.parameters(), lr=1e-3), _text(settings)
        for _ in range(2):
            optimizer.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            optimizer.step()
        still = [name for name, p in model.named_parameters() if name in start and torch.equal(p, start[name])]
        assert not still

    # Pieces.

    @staticmethod
    def _small_tiles(monkeypatch: Any) -> None:
        monkeypatch.setattr(kernels, "QUERY_BLOCK", 4)
        monkeypatch.setattr(online, "QUERY_TILE", 4)
        monkeypatch.setattr(online, "KEY_TILE", 3)

    @staticmethod
    def _refused(settings: Any, visibility: str) -> bool:
        return parts.refused(VISIBILITIES[visibility], parts.build(settings))

    def _layer(self, settings: Any, dtype: torch.dtype = torch.float64, heads: tuple[int, int] = (4, 2)) -> Layer:
        scheme = parts.build(settings, *heads).to(dtype)
        own = parts.layer_of(scheme).to(dtype)
        named = dict([*scheme.named_parameters(), *own.named_parameters()])
        for name, parameter in named.items():
            if name.rpartition(".")[2] in self.positive:
                parameter.data.abs_().add_(0.1)
        return Layer(scheme, own, [*parts.random_qkv(scheme, N_TOKENS, dtype=dtype), *named.values()], list(named))

    def _defined(
        self, settings: Any, visibility: str, layer: Layer, pos: Tensor, doc: Tensor | None, length: int = N_TOKENS
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """(output, gradients of all inputs, weights of the sum they are of), float64."""
        q, k, v, *values = wide = [x.detach().double().requires_grad_() for x in layer.inputs]
        rules = visibilities.build(visibilities.settings(VISIBILITIES[visibility]))
        seen, m, n = placed(rules.layouts(pos, pos, doc))
        named, project = dict(zip(layer.names, values, strict=True)), parts.projections(layer.scheme)
        given = problem(settings, q, k, pos, pos, length, parameters=named, project=project)
        given = replace(given, seen_BTS=seen, m_BTS=m, n_BTS=n)
        out = attention(self, given, v)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return out.detach(), _gradients(out, wide, weight), weight

    def _attend(
        self,
        kernel: str,
        layer: Layer,
        visibility: str,
        pos_BT: Tensor,
        pos_BS: Tensor,
        doc_BS: Tensor | None,
        rows: slice = EVERYTHING,
        keys: slice = slice(None),
        length: int = N_TOKENS,
        change: Callable[[Mapped], Mapped] = lambda mapped: mapped,
    ) -> Tensor:
        """What a model's attention does with one layer's q, k, v."""
        rules = visibilities.build(visibilities.settings(VISIBILITIES[visibility]))
        layouts = rules.layouts(pos_BT, pos_BS, doc_BS)
        pieces = [part_of(change(layer.mapped(layout, rows, keys, length)), layout) for layout in layouts]
        return KERNELS[kernel](pieces, layer.inputs[2][:, keys], layer.scheme.shape.head_dim**-0.5)


def _word(value: Any) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else str(value)


def _close(ours: Tensor, exact: Tensor, within: float, what: str, least: float = 0.0) -> None:
    """AssertionError where the largest difference is more than that share of the largest value."""
    ours, exact = ours.detach(), exact.detach()
    difference, bound = float((ours - exact).abs().max()), within * float(exact.abs().max()) + least
    assert difference <= bound, f"{what} differs from the definition by {difference:.2g}; {bound:.2g} is rounding"


def _gradients(out: Tensor, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    """Of one weighted sum; zero where an input has no part in it."""
    leaves = [x for x in inputs if x.requires_grad]
    grads = iter(torch.autograd.grad(out, leaves, weight.to(out.dtype), allow_unused=True))
    by_leaf = [next(grads) if x.requires_grad else None for x in inputs]
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, by_leaf, strict=True)]


def _end(scheme: Position) -> int:
    """Positions there are; without an end, more than any test here uses."""
    return scheme.max_positions or 2**20


def _odd() -> ModelConfig:
    """A width that few schemes can do with."""
    return replace(MODEL, d_model=60, head_dim=15)


def _hidden(scheme: Position, n_tokens: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random token embeddings, the same numbers for every dtype up to its rounding."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, n_tokens, scheme.shape.d_model, generator=generator, dtype=torch.float64).to(dtype)


def _qkv(scheme: Position, x_BTC: Tensor, pos_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What attention of the first layer makes of embeddings at these positions; v without positions."""
    project, embedded = parts.projections(scheme, x_BTC.dtype), scheme.embed(x_BTC, pos_BT)
    values = parts.projections(positions.build(positions.settings({"scheme": "nope"}), scheme.shape), x_BTC.dtype)
    return project.query(embedded), project.key(embedded), values.key(x_BTC)


def _attention(
    scheme: Position, x_BTC: Tensor, pos_BT: Tensor, length: int, layer: LayerPosition | None = None
) -> Tensor:
    """Causal attention of the first layer, (B, T, H, D)."""
    return parts.dense_attention(scheme, *_qkv(scheme, x_BTC, pos_BT), pos_BT, pos_BT, length, layer)


def _flat(tables: Any) -> list[Tensor]:
    """Every tensor in a nest of tuples."""
    if isinstance(tables, Tensor):
        return [tables]
    return [x for part in tables for x in _flat(part)] if isinstance(tables, tuple) else []


def _model(settings: Any) -> Transformer:
    """Two layers from the declared start, float64."""
    typed = positions.settings(settings)
    model = Transformer(MODEL, typed, visibilities.settings(CAUSAL), vocab_size=VOCAB, max_seq_len=32)
    init_weights(model, MODEL, seed=3)
    return model.double().eval()


def _text(settings: Any) -> Tensor:
    """Two rows of tokens, as many as there are positions for."""
    n_tokens = min(N_TEXT, parts.build(settings).max_positions or N_TEXT)
    return torch.randint(0, VOCAB, (2, n_tokens), generator=torch.Generator().manual_seed(5))
