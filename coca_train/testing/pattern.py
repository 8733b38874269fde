"""The contract of every attention pattern, as a class of tests: `class TestMine(PatternContract)`.

Shape legend: B batch, T queries, S keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from coca_train.attention import ATTENTION_PATTERNS, patterns
from coca_train.attention.pattern import AttentionPattern, Keep, may_see, seen
from coca_train.attention.scores import part_of
from coca_train.positions.base import AttentionShape, Position
from coca_train.testing import parts
from coca_train.testing.contract import Case, Contract
from coca_train.testing.problem import placed

if TYPE_CHECKING:
    import pytest

ROWS = ([7, 1, 15], [12, 10, 1], [23])  # documents of three rows


@dataclass(frozen=True)
class _Named:
    scheme: str = "mine"


class _Absolute(Position):
    """Sees more than distances."""

    relative = False


class PatternContract(Contract):
    """The tests of one file of attention/patterns/. A subclass gives its name and its definition.

    cases: settings without the key `name`; small ones, so that they show within 23 tokens.
    """

    kind, registry, shipped = "attention_pattern", ATTENTION_PATTERNS, ""  # those of the yamls are too large
    attention_pattern: ClassVar[str]

    def place(self, settings: Case, m: int, n: int) -> tuple[int, int] | None:
        """Return the positions that the scheme sees for query m and key n of a document, n <= m unless the pattern is
        bidirectional; None: the pair is masked."""
        raise NotImplementedError(
            f"{type(self).__name__}.place: write which pairs (m, n) are seen, and where they stand"
        )

    @classmethod
    def products(cls) -> dict[str, tuple[Mapping[str, object], int]]:
        """Return schemes, under the first settings alone: the views test the differences between the others."""
        return {"scheme": (dict(parts.shipped()), 1)}

    def test_the_views_equal_the_definition(self, settings: Case) -> None:
        """Each pair at most once, at its distance, and no other; rows of documents, and the last queries of a cache."""
        rules = self._rules(settings)
        exactly = not rules.problems(_Absolute(_Named(), AttentionShape(2, 2, 4, 8, 64)))
        one = [(parts.start(n), None) for n in (1, 2, 5, 23)]
        for pos, doc in (*one, *(parts.packed(row) for row in ROWS), parts.packed(*ROWS)):
            for n_queries in {1, pos.shape[1]}:
                wanted = self.defined(settings, pos[:, -n_queries:], pos, doc)
                _equal(placed(rules.layouts(pos[:, -n_queries:], pos, doc)), wanted, exactly)

    def test_every_query_sees_itself(self, settings: Case) -> None:
        """No softmax is over nothing."""
        pos, doc = parts.packed(*ROWS)
        visible, m, n = placed(self._rules(settings).layouts(pos, pos, doc))
        assert visible.diagonal(0, 1, 2).all() and torch.equal(m.diagonal(0, 1, 2), n.diagonal(0, 1, 2))

    def test_what_a_cache_keeps_is_all_that_later_queries_see(self, settings: Case) -> None:
        """Keys at positions below `first`, and the last `last` ones. All are kept only where all are seen again."""
        keep = self._rules(settings).keep()
        if self._rules(settings).bidirectional:
            return  # nothing can be cached
        visible = self.defined(settings, parts.start(40), parts.start(40), None)[0][0]
        assert keep is not None or visible[20:, :20].any(0).all()
        keep = keep or Keep(first=41, last=0)
        for now in range(39):
            later = visible[now + 1 :, : now + 1].any(0).nonzero()[:, 0]
            assert all(key < keep.first or key > now - keep.last for key in later.tolist())

    def test_keys_stay_where_they_are_if_it_says_so(self, settings: Case) -> None:
        """At one place in all views, whatever comes after them: a cache may hold them rotated."""
        rules, pos = self._rules(settings), parts.start(40)
        placed_BS = [layout.pos_BS for layout in rules.layouts(pos, pos)]
        assert rules.caches_rotated_keys == all(torch.equal(each, placed_BS[0]) for each in placed_BS)
        for layout in rules.layouts(pos[:, 8:9], pos[:, :9]) if rules.caches_rotated_keys else ():
            assert torch.equal(layout.pos_BS, placed_BS[0][:, :9])
            assert torch.equal(layout.new_keys.pos_BT, placed_BS[0][:, 8:9])

    def test_its_share_counts_the_pairs(self, settings: Case) -> None:
        """Of those that causality leaves: what plans and MFU go by."""
        for length in (1, 5, 40):
            visible = self.defined(settings, parts.start(length), parts.start(length), None)[0]
            assert abs(self._rules(settings).share(length) - int(visible.sum()) / (length * (length + 1) / 2)) < 1e-12

    def test_tiles_that_are_skipped_hold_nothing(self, settings: Case) -> None:
        """And of a long text hardly more tiles are visited than hold a pair."""
        rules, pos, doc = self._rules(settings), *parts.packed([300, 212])
        pieces = [slice(at, at + 32) for at in range(0, 512, 32)]
        for layouts in (rules.layouts(pos, pos, doc), rules.layouts(parts.start(512), parts.start(512))):
            for layout in layouts:
                hold = [[bool(seen(layout, q, k).any()) for k in pieces] for q in pieces]
                visited = [[may_see(layout, q, k) for k in pieces] for q in pieces]
                assert all(
                    v or not h for hs, vs in zip(hold, visited, strict=True) for h, v in zip(hs, vs, strict=True)
                )
                if layout.doc_BS is None and layout.text_keys.contiguous:
                    assert sum(map(sum, visited)) <= sum(map(sum, hold)) + len(pieces)

    def test_kernels_agree_under_every_scheme(
        self, settings: Case, scheme: Case, monkeypatch: "pytest.MonkeyPatch"
    ) -> None:
        """Or the pair is refused in words. Values and gradients, packed documents, and steps with cached keys."""
        parts.small_tiles(monkeypatch)
        rules = self._rules(settings)
        if problems := rules.problems(parts.build(scheme)):
            for key, text, fix in problems:
                assert key.startswith(("attention_pattern.", "position.")), key
                assert scheme["scheme"] in text and fix.startswith("write "), (text, fix)
            return
        built = parts.build(scheme, bidirectional=rules.bidirectional)
        pos, doc = parts.packed(*ROWS[:2])
        q, k, v = parts.random_qkv(built, pos.shape[1])
        own = parts.layer_of(built)

        def attend(kernel: str, last: int, documents: bool) -> Tensor:
            at, keys = (pos, doc) if documents else (parts.start(pos.shape[1]), None)
            pieces = []
            for layout in rules.layouts(at[:, last:], at, keys):
                tables = built(layout.pos_BT, layout.pos_BS, rules.length(pos.shape[1]))
                of_layer = own(built, q[:, last:], k, tables, parts.projections(built), parts.tokens(own, k))
                pieces.append(part_of(of_layer, layout))
            return parts.KERNELS[kernel](pieces, v, built.shape.head_dim**-0.5)

        for documents in (True, False):
            whole = attend("eager", 0, documents)
            exact = torch.autograd.grad(whole.square().sum(), (q, k, v), allow_unused=True)
            for kernel in ("blocked", "tiled"):
                out = attend(kernel, 0, documents)
                grads = torch.autograd.grad(out.square().sum(), (q, k, v), allow_unused=True)
                torch.testing.assert_close(out, whole, rtol=1e-9, atol=1e-9)
                for a, b in zip(grads, exact, strict=True):
                    assert a is b is None or torch.allclose(a, b, rtol=1e-7, atol=1e-8)
        close = 1e-5 if scheme["scheme"] == "xpos" else 1e-9  # its float32 powers are centred on the tokens present
        torch.testing.assert_close(attend("blocked", 22, False), whole[:, 22:], rtol=close, atol=close)

    def _rules(self, settings: Case) -> AttentionPattern:
        return patterns.build(ATTENTION_PATTERNS.settings(settings))

    def defined(
        self, settings: Case, pos_BT: Tensor, pos_BS: Tensor, doc_BS: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (seen, m, n), each (B, T, S), computed pair by pair."""
        n_rows, n_queries, n_keys = pos_BS.shape[0], pos_BT.shape[1], pos_BS.shape[1]
        visible = torch.zeros(n_rows, n_queries, n_keys, dtype=torch.bool)
        placed_at = torch.zeros(2, n_rows, n_queries, n_keys, dtype=torch.int64)
        for row in range(n_rows):
            for query in range(n_queries):
                at = n_keys - n_queries + query
                for key in range(n_keys if self._rules(settings).bidirectional else at + 1):
                    if doc_BS is not None and doc_BS[row, at] != doc_BS[row, key]:
                        continue
                    pair = self.place(settings, int(pos_BS[row, at]), int(pos_BS[row, key]))
                    if pair is not None:
                        visible[row, query, key] = True
                        placed_at[:, row, query, key] = torch.tensor(pair)
        return visible, placed_at[0], placed_at[1]


def _equal(views: tuple[Tensor, ...], wanted: tuple[Tensor, ...], exactly: bool) -> None:
    visible = wanted[0]
    assert torch.equal(views[0].expand_as(visible), visible)
    assert torch.equal((views[1] - views[2]).expand_as(visible)[visible], (wanted[1] - wanted[2])[visible])
    if exactly:  # a scheme that sees more than distances may go with it
        assert all(
            torch.equal(a.expand_as(visible)[visible], b[visible]) for a, b in zip(views[1:], wanted[1:], strict=True)
        )
