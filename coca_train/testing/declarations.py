"""A scheme held to what it says of itself: flags that visibilities, caches and plans go by, parameters, an end."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from coca_train import positions
from coca_train.models.cache import split_by_position
from coca_train.positions.base import Terms
from coca_train.runtime.errors import UserError
from coca_train.testing import parts
from coca_train.testing.contract import Contract


class Declared(Contract):
    """Nobody asks which scheme is active, so all that others know of it is what it declares; a wrong flag would let
    through a visibility that means something else, or a checkpoint whose names have moved."""

    scheme: ClassVar[str]
    shared: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    own: ClassVar[Mapping[str, tuple[int, ...]]] = {}

    def test_it_is_relative_if_it_says_so(self, settings: Any) -> None:
        """Moved by 1000, the output stays; else it moves."""
        scheme = parts.build(settings)
        x_BTC, shift = parts.hidden_states(scheme, 9), min(1000, parts.end(scheme) - 9)
        here, there = (parts.attention(scheme, x_BTC, parts.start(9, first), 2000) for first in (0, shift))
        # angles are float32: at position 1000 they are known to 6e-5
        assert torch.allclose(here, there, rtol=0, atol=2e-3) == scheme.relative
        assert shift == 1000 if scheme.relative else (here - there).abs().max() > 0.02

    def test_switching_it_off_changes_the_output(self, settings: Any) -> None:
        """All tokens at one place; or, where it sees no places, without its hook."""
        scheme = parts.build(settings)
        x_BTC, pos = parts.hidden_states(scheme, 9), parts.start(9)
        here, nowhere = (parts.attention(scheme, x_BTC, p, 9) for p in (pos, pos * 0))
        assert ((here - nowhere).abs().max() > 1e-3) == scheme.sees_positions
        if scheme.has_effect and not scheme.sees_positions:
            layer = parts.layer_of(scheme)
            layer.register_forward_hook(lambda _, given, mapped: mapped._replace(score_mod=None))
            assert (here - parts.attention(scheme, x_BTC, pos, 9, layer)).abs().max() > 1e-3

    def test_flags_of_hooks_and_embeddings(self, settings: Any) -> None:
        """`carries` is what its hook does; what acts on the embeddings does not act by pairs."""
        scheme = parts.build(settings)
        q, k, _ = parts.random_qkv(scheme, 3)
        score_mod = parts.mapped(scheme, q, k, parts.start(3), parts.start(3), 3).score_mod
        assert scheme.carries == (score_mod is not None and score_mod.by.carried > 0)
        assert not (scheme.embeds and scheme.by_pairs)

    def test_keys_are_settled_if_it_says_so(self, settings: Any) -> None:
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

    def test_parameters_keep_their_names(self, settings: Any) -> None:
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

    def test_positions_end_in_words(self, settings: Any) -> None:
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

    def problems(self, typed: Any) -> Iterable[tuple[str, str, str]]:
        """Of a width that few schemes can do with; there is none with the model of these tests."""
        assert not typed.problems(parts.MODEL)
        return typed.problems(replace(parts.MODEL, d_model=60, head_dim=15))
