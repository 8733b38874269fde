"""The contract of every position scheme, as a class of tests: `class TestMine(SchemeContract)`, see docs/extending.md.

Each of its base classes tests one property, and says why: the definition (definition.py), what the class declares of
itself, its tensors, a whole model.

Shape legend: B batch, T queries, S keys, H query heads, D head_dim, C d_model.
"""

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Adam

from coca_train import positions
from coca_train.attention import patterns
from coca_train.config.schema import CheckedSettings
from coca_train.models.cache import split_by_position
from coca_train.models.certificate import certify
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.positions.base import Position, Terms, without_positions
from coca_train.runtime.errors import UserError
from coca_train.testing import parts
from coca_train.testing.contract import Case, Contract
from coca_train.testing.definition import CAUSAL, Defined
from coca_train.testing.parts import MODEL, VOCAB

N_TEXT = 33  # one more than the model's window [tokens]


class Declared(Contract):
    """No other code reads a scheme's name, so all that others know of it is what it declares; a wrong flag would accept
    an attention pattern that means something else, or a checkpoint whose names have moved."""

    scheme: ClassVar[str]
    shared: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    own: ClassVar[Mapping[str, tuple[int, ...]]] = {}

    def test_it_is_relative_if_it_says_so(self, settings: Case) -> None:
        """Moved by 1000, the output stays; else it moves."""
        scheme = parts.build(settings)
        x_BTC, shift = parts.hidden_states(scheme, 9), min(1000, parts.end(scheme) - 9)
        here, there = (parts.attention(scheme, x_BTC, parts.start(9, first), 2000) for first in (0, shift))
        # angles are float32: at position 1000 they are known to 6e-5
        assert torch.allclose(here, there, rtol=0, atol=2e-3) == scheme.relative
        assert shift == 1000 if scheme.relative else (here - there).abs().max() > 0.02

    def test_switching_it_off_changes_the_output(self, settings: Case) -> None:
        """All tokens at one place; or, where it sees no places, queries and keys as they are and no hook."""
        scheme = parts.build(settings)
        x_BTC, pos = parts.hidden_states(scheme, 9), parts.start(9)
        here, nowhere = (parts.attention(scheme, x_BTC, p, 9) for p in (pos, pos * 0))
        assert ((here - nowhere).abs().max() > 1e-3) == scheme.sees_positions
        if scheme.has_effect and not scheme.sees_positions:
            layer = parts.layer_of(scheme)
            layer.register_forward_hook(without_positions)
            assert (here - parts.attention(scheme, x_BTC, pos, 9, layer)).abs().max() > 1e-3

    def test_flags_of_hooks_and_embeddings(self, settings: Case) -> None:
        """A hook with a carry says so; what acts on the embeddings does not act by pairs."""
        scheme = parts.build(settings)
        q, k, _ = parts.random_qkv(scheme, 3)
        score_mod = parts.mapped(scheme, q, k, parts.start(3), parts.start(3), 3).score_mod
        assert scheme.carries or score_mod is None or not score_mod.by.carried
        assert not (scheme.embeds and scheme.by_pairs)

    def test_tokens_in_between_change_a_score_if_it_says_so(self, settings: Case) -> None:
        """Another token at 2: what 4 makes of 1 is another score, or the same to the last bit."""
        scheme, pos = parts.build(settings), parts.start(5)
        x_BTC, layer = parts.hidden_states(scheme, 5), parts.layer_of(scheme)
        other = x_BTC.clone()
        other[:, 2] = parts.hidden_states(scheme, 6)[:, 5]

        def score(x_BTC: Tensor) -> Tensor:
            q, k, _ = parts.qkv(scheme, x_BTC, pos)
            return parts.dense_scores(scheme, q, k, pos, pos, 5, layer)[:, :, 4, 1]

        assert torch.equal(score(x_BTC), score(other)) != scheme.carries

    def test_keys_are_settled_if_it_says_so(self, settings: Case) -> None:
        """k' of a few tokens is, bit for bit, what it is among all, and nothing but q'·k' makes a score; a table has
        a row for each position."""
        scheme = parts.build(settings).eval()
        if not scheme.caches_rotated_keys:
            return
        q, k, _ = parts.random_qkv(scheme, 9)
        whole = parts.mapped(scheme, q, k, parts.start(9), parts.start(9), 9)
        few = parts.mapped(scheme, q[:, 5:7], k[:, 5:7], parts.start(2, 5), parts.start(2, 5), 9)
        assert torch.equal(few.k_BSGE, whole.k_BSGE[:, 5:7]) and torch.equal(few.q_BTHE, whole.q_BTHE[:, 5:7])
        assert few.terms == whole.terms == Terms() and few.score_mod is whole.score_mod is None
        tables, layer = split_by_position(scheme(parts.start(9), parts.start(9), 9), 9), parts.layer_of(scheme)
        one = layer(scheme, q[:, 5:6], k[:, 5:6], tables[5], parts.projections(scheme, q.dtype))
        assert torch.equal(one.k_BSGE, whole.k_BSGE[:, 5:6]) and torch.equal(one.q_BTHE, whole.q_BTHE[:, 5:6])

    def test_parameters_keep_their_names(self, settings: Case) -> None:
        """What a checkpoint holds: `shared` and `own` say so for the first of the settings, cases[0]."""
        if settings != next(iter(self.settings().values())):
            return
        scheme = parts.build(settings)
        modules = (scheme, parts.layer_of(scheme))
        shapes = [{name: tuple(p.shape) for name, p in module.named_parameters()} for module in modules]
        assert shapes == [dict(self.shared), dict(self.own)]

    def test_parameters_start_as_declared(self) -> None:
        """Each entry of INITIAL names a parameter and fills it with finite numbers; all chance is the generator's."""
        initial = positions.scheme_class(self.scheme).INITIAL
        modules = [parts.build(each) for each in self.settings().values()]
        named = [pair for each in modules for m in (each, each.layer()) for pair in m.named_parameters()]
        shapes = {name.rpartition(".")[2]: parameter.shape for name, parameter in named}
        assert set(initial) <= set(shapes)
        for name, fill in initial.items():
            first, again = (torch.full(shapes[name], math.nan) for _ in range(2))
            for values in (first, again):
                fill(values, torch.Generator().manual_seed(3))
            assert torch.isfinite(first).all() and torch.equal(first, again), name

    def test_positions_end_in_words(self, settings: Case) -> None:
        """A learned table of positions has a last row, and says so; all others have no end."""
        scheme = parts.build(settings)
        if scheme.max_positions is None:
            return
        parts.attention(scheme, parts.hidden_states(scheme, 2), parts.start(2, scheme.max_positions - 2), 2)
        try:
            parts.attention(scheme, parts.hidden_states(scheme, 1), parts.start(1, scheme.max_positions), 1)
        except UserError as error:
            message = str(error)
        else:
            message = f"position {scheme.max_positions} has no row, and no error says so"
        assert message.startswith("E-POS-04 ") and "position.max_len=" in message and " Fix: " in message, message

    def problems(self, typed: CheckedSettings) -> Iterable[tuple[str, str, str]]:
        """Return the problems with a width that few schemes fit; there is none with the model of these tests."""
        assert not typed.problems(parts.MODEL)
        return typed.problems(replace(parts.MODEL, d_model=60, head_dim=15))


class Tensors(Contract):
    """What kernels and sharded engines rely on: the dtype that a fused kernel takes, float32 where bfloat16 would merge
    positions, no state between calls, no buffer that a cast or a start on `meta` could spoil."""

    def test_shapes_and_types(self, settings: Case) -> None:
        """In every dtype: what the dot product takes in that of q, biases in float32 (they grow with the distance)."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for n_tokens in (1, 5):
                scheme = parts.build(settings).to(dtype)
                self._shapes_and_types(scheme, n_tokens, dtype)

    def _shapes_and_types(self, scheme: Position, n_tokens: int, dtype: torch.dtype) -> None:
        pos, layer = parts.start(n_tokens), parts.layer_of(scheme).to(dtype)
        q, k, _ = parts.qkv(scheme, parts.hidden_states(scheme, n_tokens, dtype), pos)
        q_BTHE, k_BSGE, terms, score_mod, _ = mapped = parts.mapped(scheme, q, k, pos, pos, n_tokens, layer)
        assert q_BTHE.shape[:3] == (2, n_tokens, 4) and k_BSGE.shape[:3] == (2, n_tokens, 2)
        assert q_BTHE.shape[3] == k_BSGE.shape[3] >= scheme.shape.head_dim
        assert q_BTHE.dtype == k_BSGE.dtype == dtype
        assert all(torch.isfinite(x).all() for x in parts.flat(mapped))
        if terms.distance_HR is not None:
            assert terms.distance_HR.dtype == torch.float32 and terms.distance_HR.shape[0] == 4
        for pair, heads in ((terms.query, 4), (terms.key, 2)):
            if pair is not None:
                x_BTHD, e_RHD = pair
                assert x_BTHD.shape[:3] == (2, n_tokens, heads) and x_BTHD.dtype == e_RHD.dtype == dtype
                assert e_RHD.shape[1] in (1, 4) and e_RHD.shape[2] == x_BTHD.shape[3]
        if terms.value_RD is not None:
            assert (terms.value_RD.shape[1:], terms.value_RD.dtype) == ((16,), dtype)
        if score_mod is not None:  # it holds long sums and positions
            assert all(x.dtype == torch.float32 for x in parts.flat(tuple(score_mod[1:])))
            assert all(x.shape[:2] in ((1, n_tokens), (2, n_tokens)) for x in (*score_mod.queries, *score_mod.keys))

    def test_positions_of_the_whole_batch_or_of_each_row(self, settings: Case) -> None:
        """(1, T) positions serve the batch; (B, T) rows may restart, as packed documents do."""
        scheme = parts.build(settings)

        def scores(x_BTC: Tensor, pos_BT: Tensor) -> Tensor:
            return parts.dense_scores(scheme, *parts.qkv(scheme, x_BTC, pos_BT)[:2], pos_BT, pos_BT, 6)

        x_BTC = parts.hidden_states(scheme, 6)
        shared = scores(x_BTC, parts.start(6))
        assert torch.allclose(scores(x_BTC, parts.start(6, batch=2)), shared, rtol=0, atol=1e-12)
        packed = scores(x_BTC, torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2]]))
        # tables in float32 may be centred elsewhere when other positions are present
        assert torch.allclose(packed[0], shared[0], rtol=0, atol=1e-6)
        alone = scores(x_BTC[1:, 3:], parts.start(3))
        q, k, _ = parts.random_qkv(scheme, 3)
        hook = parts.mapped(scheme, q, k, parts.start(3), parts.start(3), 3).score_mod
        if hook is None or not hook.by.carried:  # a carry runs over what is seen, which is the documents' business
            assert torch.allclose(packed[1:, :, 3:, 3:], alone, rtol=0, atol=1e-6)

    def test_no_state_is_left_behind(self, settings: Case) -> None:
        """A call at 32k leaves no trace on a call at 512: same bits as a fresh scheme."""
        scheme = parts.build(settings)
        x_BTC, last = parts.hidden_states(scheme, 6, torch.float32), min(32768, parts.end(scheme))
        fresh = parts.attention(parts.build(asdict(scheme.settings)), x_BTC, parts.start(6), 512)
        parts.attention(scheme, x_BTC, parts.start(6, last - 6), 32768)
        assert torch.equal(parts.attention(scheme, x_BTC, parts.start(6), 512), fresh)

    def test_half_precision_weights_do_not_touch_the_tables(self, settings: Case) -> None:
        """`model.bfloat16()` and a start on `meta` cannot reach slopes, frequencies or angles: there are no buffers."""
        scheme = parts.build(settings)
        assert not [*scheme.buffers(), *parts.layer_of(scheme).buffers()]
        pos = parts.start(2, min(32768, parts.end(scheme)) - 2)
        for table in parts.flat(scheme.bfloat16()(pos, pos, 32768)):
            assert not table.is_floating_point() or table.dtype in (torch.float32, torch.float64)

    def test_far_out_half_precision_tells_neighbours_apart(self, settings: Case) -> None:
        """At 32k bfloat16 has one number for 128 positions: scores are as in float32 where angles and distances are."""
        scheme, narrow = parts.build(settings), parts.build(settings).bfloat16()
        pos = parts.start(9, min(32768, parts.end(scheme)) - 9)
        x_BTC, layer = parts.hidden_states(scheme, 9).bfloat16(), parts.layer_of(scheme)
        exact = parts.attention(scheme, x_BTC.double(), pos, 32768, layer)
        rounded = parts.attention(narrow, x_BTC, pos, 32768, copy.deepcopy(layer).bfloat16())
        assert (rounded.double() - exact).abs().max() < 0.1 * exact.abs().max()

    def test_every_parameter_is_trained(self, settings: Case) -> None:
        """None is without gradient, and every gradient is finite. Distance 0 is among the pairs: log 0 would show."""
        scheme = parts.build(settings)
        layer = parts.layer_of(scheme)
        out = parts.attention(scheme, parts.hidden_states(scheme, 9).requires_grad_(), parts.start(9), 9, layer)
        out.square().sum().backward()
        for name, parameter in [*scheme.named_parameters(), *layer.named_parameters()]:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all() and parameter.grad.any(), name

    @torch.no_grad()
    def test_parameters_are_read_only_where_a_sharded_engine_lends_them(self, settings: Case) -> None:
        """ZeRO 3: shared ones while tables are made, a layer's own while it maps queries and keys. NaN elsewhere."""
        scheme, pos = parts.build(settings), parts.start(9)
        q, k, _ = parts.qkv(scheme, parts.hidden_states(scheme, 9), pos)
        exact = parts.mapped(scheme, q, k, pos, pos, 9)
        tables, layer = scheme(pos, pos, 9), parts.layer_of(scheme)
        for parameter in scheme.parameters():
            parameter.fill_(math.nan)
        tokens = parts.tokens(layer, k)
        mapped = layer(scheme, q, k, tables, parts.projections(scheme), tokens)
        for parameter in layer.parameters():
            parameter.fill_(math.nan)
        assert all(torch.equal(a, b) for a, b in zip(parts.flat(mapped), parts.flat(exact), strict=True))


class InAModel(Contract):
    """The requirements of a run, a cache and a plan, tested on two small layers from the declared start."""

    angles: ClassVar[bool]

    @torch.no_grad()
    def test_a_model_is_causal_and_its_documents_are_strangers(self, settings: Case) -> None:
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
    def test_a_cache_is_the_whole_computation_also_forked(self, settings: Case) -> None:
        """Prompt, several tokens, one at a time; then a fork of it that goes on with other tokens."""
        model, tokens = _model(settings), _text(settings)
        n_tokens, first = tokens.shape[1], tokens[:1]
        cache = model.new_cache(n_tokens)
        pieces = [model.hidden(first[:, a:b], cache=cache, length=N_TEXT) for a, b in ((0, 9), (9, 12))]
        fork = cache.fork(2, n_tokens)
        pieces += [model.hidden(first[:, i : i + 1], cache=cache, length=N_TEXT) for i in range(12, n_tokens)]
        # xpos centres its float32 powers on the tokens present: other roundings at every length
        rtol, atol = (1e-3, 1e-5) if self.angles else (1e-7, 1e-9)
        torch.testing.assert_close(torch.cat(pieces, 1), model.hidden(first, length=N_TEXT), rtol=rtol, atol=atol)
        others = torch.cat((first[:, :12].expand(2, -1), tokens[:, 12:16]), 1)
        ways = [model.hidden(others[:, i : i + 1], cache=fork, length=N_TEXT) for i in range(12, 16)]
        torch.testing.assert_close(
            torch.cat(ways, 1), model.hidden(others, length=N_TEXT)[:, 12:], rtol=rtol, atol=atol
        )

    def test_a_model_is_certified_and_outlined(self, settings: Case) -> None:
        """What every run asks before its first step, on the CPU; and what plans ask: a pass on the meta device."""
        for dtype in (torch.float32, torch.bfloat16):
            certify(_model(settings).to(dtype), torch.device("cpu"), dtype)
        with torch.device("meta"):
            outline = Transformer(
                MODEL, positions.settings(settings), patterns.settings(CAUSAL), vocab_size=VOCAB, max_seq_len=32
            )
        assert all(p.is_meta for p in outline.parameters())

    def test_a_model_trains_every_parameter(self, settings: Case) -> None:
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


class SchemeContract(Defined, Declared, Tensors, InAModel):
    """The tests of one scheme. A subclass gives its name, its definition and what its parameters are called.

    cases: settings to test besides those of the yamls in configs/position/ that name the scheme, without the key
    `scheme`; small ones, so that tables end and counts run out within 17 tokens. shared, own: shapes of the scheme's
    and of a layer's parameters under cases[0], or under the first yaml where there are none, at 4 heads, 2 of keys,
    head_dim 16, d_model 24.
    angles: it computes with float32 angles. rounding: what float32 may differ by. positive: parameters that are
    drawn above 0.1.
    """


def _model(settings: Case) -> Transformer:
    """Build a model of two layers from the declared start, float64."""
    typed = positions.settings(settings)
    model = Transformer(MODEL, typed, patterns.settings(CAUSAL), vocab_size=VOCAB, max_seq_len=32)
    init_weights(model, MODEL, seed=3)
    return model.double().eval()


def _text(settings: Case) -> Tensor:
    """Return two rows of tokens, as many as there are positions for."""
    n_tokens = min(N_TEXT, parts.build(settings).max_positions or N_TEXT)
    return torch.randint(0, VOCAB, (2, n_tokens), generator=torch.Generator().manual_seed(5))
