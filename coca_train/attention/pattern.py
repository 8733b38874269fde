"""Which keys a query sees, and at which positions: what attention needs from an attention pattern.

An attention pattern splits the visible pairs (query, key) into disjoint views. Each view has a rule over the positions
of the text, and may give the scheme other positions than those. Almost always there is one view, with the text's own
positions.

Shape legend: B batch (1 when all rows share their positions), T queries, S keys; the queries are the last T of the
keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.config.schema import PatternSettings
from coca_train.positions.base import Position, Problem
from coca_train.positions.token_positions import Positions


class Rule(NamedTuple):
    """Pairs of one document, key at or before query, with beyond <= distance < window and key position < first."""

    window: int | None = None
    beyond: int = 0
    first: int | None = None


CAUSAL = Rule()


class View(NamedTuple):
    """One disjoint part of the visible pairs, and the positions that the scheme sees for them."""

    rule: Rule = CAUSAL
    cap: int | None = None  # every pair has this distance: queries are at `cap`, keys at 0
    query_limit: int | None = None  # a query is at min(m, query_limit), keys at their own positions


class Keep(NamedTuple):
    """Keys that a later query may still see: those at positions < first, and the last `last` ones [tokens]."""

    first: int
    last: int


class Layout(NamedTuple):
    """A view of actual tokens."""

    rule: Rule
    text_queries: Positions  # positions in the text: for the rule
    text_keys: Positions
    queries: Positions  # positions that the scheme sees
    keys: Positions
    doc_BS: Tensor | None  # document of every key; None: one document
    as_text: bool  # the scheme sees the positions of the text
    per_forward: dict[str, object]  # what a kernel computes once for all layers of a forward

    @property
    def text_BT(self) -> Tensor:
        return self.text_queries.pos_BT

    @property
    def text_BS(self) -> Tensor:
        return self.text_keys.pos_BT

    @property
    def pos_BT(self) -> Tensor:
        return self.queries.pos_BT

    @property
    def pos_BS(self) -> Tensor:
        return self.keys.pos_BT

    @property
    def contiguous(self) -> bool:
        """Whether the distance of a pair, as the scheme sees it, is that of the indices."""
        return self.text_keys.contiguous and self.as_text


class AttentionPattern:
    """Base: plain causal attention. `settings` is that of the module in attention/patterns/; the base has none."""

    settings: PatternSettings
    trains = True  # False: for evaluation only

    def __init__(self, settings: PatternSettings | None) -> None:
        if settings is not None:
            self.settings = settings

    def views(self) -> tuple[View, ...]:
        """Return the views. They are disjoint, and together they are all visible pairs."""
        return (View(),)

    def keep(self) -> Keep | None:
        """Return the keys that a cache has to keep for later queries; None: all."""
        return None

    def length(self, length: int) -> int:
        """Return the length that dynamic frequencies adapt to in a text of this length [tokens]: smaller where
        positions are."""
        return length

    @property
    def caches_rotated_keys(self) -> bool:
        """Whether a key has one position in all views, and so for all queries."""
        return all(view.cap is None for view in self.views())

    def share(self, length: int) -> float:
        """Return the visible share of the causal pairs of a text of this length."""
        return sum(_n_pairs(rule, length) for rule, _, _ in self.views()) / _n_pairs(CAUSAL, length)

    def place(
        self, queries: Positions, keys: Positions, doc_BS: Tensor | None
    ) -> tuple[Positions, Positions, Tensor | None]:
        """Return the positions and documents that the pattern assigns; each depends on the token's own alone."""
        return queries, keys, doc_BS

    def problems(self, position: Position) -> list[Problem]:
        """Return why it cannot be combined with a scheme. position: an instance built from the scheme's settings."""
        return []

    def layouts(
        self, queries: Tensor | Positions, keys: Tensor | Positions, doc_BS: Tensor | None = None
    ) -> tuple[Layout, ...]:
        """Return the views of actual tokens. Positions that come as tensors are measured first."""
        measured_keys = Positions.of(keys, doc_BS)
        measured_queries = measured_keys if queries is keys else Positions.of(queries)
        text_queries, text_keys, doc_BS = self.place(measured_queries, measured_keys, doc_BS)
        layouts = []
        for rule, cap, query_limit in self.views():
            seen_queries, seen_keys = text_queries, text_keys
            if cap is not None:
                seen_queries = Positions(torch.full_like(text_queries.pos_BT, cap), cap, cap, False)
                seen_keys = Positions(torch.zeros_like(text_keys.pos_BT), 0, 0, False)
            elif query_limit is not None:
                first, last = (min(end, query_limit) for end in (text_queries.first, text_queries.last))
                seen_queries = Positions(text_queries.pos_BT.clamp(max=query_limit), first, last, False)
            as_text = cap is None and query_limit is None
            layouts.append(Layout(rule, text_queries, text_keys, seen_queries, seen_keys, doc_BS, as_text, {}))
        return tuple(layouts)


def _n_pairs(rule: Rule, length: int) -> int:
    """Count the pairs of a text of this length that a rule makes visible."""
    query_T = torch.arange(length, device="cpu")
    nearest_T = (query_T - rule.beyond).clamp(max=length if rule.first is None else rule.first - 1)
    farthest_T = torch.zeros_like(query_T) if rule.window is None else (query_T - rule.window + 1).clamp(min=0)
    return int((nearest_T - farthest_T + 1).clamp(min=0).sum())


def seen(layout: Layout, queries: slice, keys: slice) -> Tensor:
    """Return which pairs of these queries (indices among the T) and keys (among the S) are visible: bool (B, t, s)."""
    rule, device = layout.rule, layout.text_BS.device
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    query_t = torch.arange(n_queries, device=device)[queries] + (n_keys - n_queries)
    key_s = torch.arange(n_keys, device=device)[keys]
    visible_Bts = (key_s <= query_t[:, None])[None]
    if rule.window is not None or rule.beyond:
        distance_Bts = layout.text_BT[:, queries, None] - layout.text_BS[:, None, keys]
        if rule.window is not None:
            visible_Bts = visible_Bts & (distance_Bts < rule.window)
        if rule.beyond:
            visible_Bts = visible_Bts & (distance_Bts >= rule.beyond)
    if rule.first is not None:
        visible_Bts = visible_Bts & (layout.text_BS[:, None, keys] < rule.first)
    if layout.doc_BS is not None:
        doc_BT = layout.doc_BS[:, n_keys - n_queries :]
        visible_Bts = visible_Bts & (doc_BT[:, queries, None] == layout.doc_BS[:, None, keys])
    return visible_Bts


def may_see(layout: Layout, queries: slice, keys: slice) -> bool:
    """Whether any of these pairs may be visible, as far as indices alone can tell; cheap."""
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    first_query, last_query = (n_keys - n_queries + at for at in (queries.start, queries.stop - 1))
    if keys.start > last_query:
        return False
    if not layout.text_keys.contiguous:
        return True
    nearest, farthest = max(0, first_query - keys.stop + 1), last_query - keys.start
    if layout.rule.window is not None and nearest >= layout.rule.window:
        return False
    if farthest < layout.rule.beyond:
        return False
    if layout.rule.first is None or layout.doc_BS is not None:  # every document has its own first tokens
        return True
    return layout.text_keys.first + keys.start < layout.rule.first


def all_seen(layout: Layout, queries: slice, keys: slice) -> bool:
    """Whether all of these pairs are visible, as far as indices alone can tell; cheap."""
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    first_query, last_query = (n_keys - n_queries + at for at in (queries.start, queries.stop - 1))
    if not layout.text_keys.contiguous or layout.doc_BS is not None or keys.stop - 1 > first_query:
        return False
    nearest, farthest = first_query - keys.stop + 1, last_query - keys.start
    if layout.rule.window is not None and farthest >= layout.rule.window:
        return False
    if nearest < layout.rule.beyond:
        return False
    # The last key of the tile is no further than this, in any row.
    return layout.rule.first is None or layout.text_keys.last - (n_keys - keys.stop) < layout.rule.first
