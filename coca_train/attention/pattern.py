"""Which keys a query sees, and at which positions: what attention needs from an attention pattern.

An attention pattern splits the visible pairs (query, key) into disjoint views. Each view has a rule over the positions
of the text, and may give the scheme other positions than those. Almost always there is one view, with the text's own
positions.

Shape legend: B batch (1 when all rows share their positions), T queries, S keys; the queries are the last T of the
keys.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coca_train.config.schema import PatternSettings
from coca_train.positions.base import Position, Problem
from coca_train.positions.token_positions import Positions

TensorOrInt = TypeVar("TensorOrInt", Tensor, int)


class Chunks(NamedTuple):
    """Pairs by the chunks of `size` tokens that their text positions lie in: least <= query's - key's <= most. The
    first chunk is `ahead` tokens shorter."""

    size: int
    least: int
    most: int | None = None
    ahead: int = 0

    def number(self, text: TensorOrInt) -> TensorOrInt:
        """Return the number of the chunk that a position in the text lies in."""
        return (text + self.ahead) // self.size

    def apart(self, text_BT: Tensor, text_BS: Tensor) -> Tensor:
        """Return how many chunks queries are after keys; shapes that broadcast."""
        return self.number(text_BT) - self.number(text_BS)

    def has(self, apart: Tensor) -> Tensor:
        """Return which of these distances in chunks belong."""
        return apart >= self.least if self.most is None else (apart >= self.least) & (apart <= self.most)

    def between(self, nearest: int, farthest: int) -> tuple[bool, bool]:
        """Return whether any, and whether all, of the pairs belong that are so many chunks apart."""
        most = farthest if self.most is None else self.most
        return farthest >= self.least and nearest <= most, nearest >= self.least and farthest <= most


class Rule(NamedTuple):
    """Pairs of one document, key at or before query, with beyond <= distance < window, a distance that `every` divides,
    after <= key position < first, and as their chunks say.

    bidirectional: keys after the query are seen too, and the window reaches to both sides.
    """

    window: int | None = None
    beyond: int = 0
    first: int | None = None
    chunks: Chunks | None = None
    every: int = 1
    after: int = 0
    bidirectional: bool = False

    def zero_row(self, n_rows: int) -> int:
        """Return the row of distance 0 in a scheme's table by distance: the first, or the middle one where keys may
        come later."""
        return n_rows // 2 if self.bidirectional else 0


CAUSAL, BIDIRECTIONAL = Rule(), Rule(bidirectional=True)


class Place(NamedTuple):
    """The place of a token whose position in the text is m: max(0, min((m mod modulo) div divide, most) + add)."""

    modulo: int | None = None
    divide: int = 1
    most: int | None = None
    add: int = 0

    def of(self, text: Positions) -> Positions:
        """Return the positions of tokens."""
        pos_BT = text.pos_BT
        first, last = (text.first, text.last) if self.modulo is None else (0, self.modulo - 1)
        if self.modulo is not None:
            pos_BT = pos_BT % self.modulo
        if self.divide > 1:
            pos_BT = pos_BT // self.divide
        if self.most is not None:
            pos_BT = pos_BT.clamp(max=self.most)
        if self.add:
            pos_BT = (pos_BT + self.add).clamp(min=0)
        return Positions(pos_BT, self._end(first), self._end(last), False)

    def _end(self, position: int) -> int:
        position //= self.divide
        return max(0, (position if self.most is None else min(position, self.most)) + self.add)


def at(position: int) -> Place:
    """Return the place of tokens that all stand at one position."""
    return Place(most=0, add=position)


class View(NamedTuple):
    """One disjoint part of the visible pairs, and where the scheme sees their queries and keys; None: at their
    positions in the text."""

    rule: Rule = CAUSAL
    queries: Place | None = None
    keys: Place | None = None


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
    new_keys: Positions  # of the queries' own tokens, as keys
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
    bidirectional = False  # whether a query sees keys that come later, in all views

    def __init__(self, settings: PatternSettings | None) -> None:
        if settings is not None:
            self.settings = settings

    def views(self) -> tuple[View, ...]:
        """Return the views. They are disjoint, and together they are all visible pairs."""
        return (View(),)

    def keep(self) -> Keep | None:
        """Return the keys that a cache has to keep for later queries; None: all."""
        return None

    def in_training(self) -> tuple[Rule, ...]:
        """Return what equal groups of heads, in their order, see in training alone, at the positions of the text; ():
        what the views say, as elsewhere."""
        return ()

    def most_seen(self, training: bool) -> int | None:
        """Return how many keys a query sees at most; None: all before it."""
        if training and (chunks := [rule.chunks.size for rule in self.in_training() if rule.chunks is not None]):
            return max(chunks)
        keep = self.keep()
        return None if keep is None else keep.first + keep.last

    def length(self, length: int) -> int:
        """Return the length that dynamic frequencies adapt to in a text of this length [tokens]: smaller where
        positions are."""
        return length

    @property
    def caches_rotated_keys(self) -> bool:
        """Whether a key has one position in all views, and so for all queries."""
        return len({view.keys for view in self.views()}) == 1

    def share(self, length: int) -> float:
        """Return the visible pairs of a text of this length, in training, as a share of the causal ones; almost 2 where
        all are seen."""
        rules = self.in_training()
        seen = sum(_n_pairs(rule, length) for rule in rules or [view.rule for view in self.views()])
        return seen / (len(rules) or 1) / _n_pairs(CAUSAL, length)

    def place(
        self, queries: Positions, keys: Positions, doc_BS: Tensor | None
    ) -> tuple[Positions, Positions, Tensor | None]:
        """Return the positions and documents that the pattern assigns; each depends on the token's own alone."""
        return queries, keys, doc_BS

    def problems(self, position: Position) -> list[Problem]:
        """Return why it cannot be combined with a scheme. position: an instance built from the scheme's settings."""
        if self.bidirectional:
            return position.bidirectional_problems()
        return [] if self.views() == (View(),) else not_linear(self.settings, position)

    def layouts(
        self, queries: Tensor | Positions, keys: Tensor | Positions, doc_BS: Tensor | None = None
    ) -> tuple[Layout, ...]:
        """Return the views of actual tokens. Positions that come as tensors are measured first."""
        measured_keys = Positions.of(keys, doc_BS)
        measured_queries = measured_keys if queries is keys else Positions.of(queries)
        text_queries, text_keys, doc_BS = self.place(measured_queries, measured_keys, doc_BS)
        layouts = []
        for rule, place, key_place in self.views():
            seen_queries = text_queries if place is None else place.of(text_queries)
            seen_keys = text_keys if key_place is None else key_place.of(text_keys)
            new_keys = text_queries if key_place is None else key_place.of(text_queries)
            placed = seen_queries, seen_keys, new_keys
            as_text = place is None and key_place is None
            layouts.append(Layout(rule, text_queries, text_keys, *placed, doc_BS, as_text, {}))
        return tuple(layouts)


def not_linear(settings: PatternSettings, position: Position) -> list[Problem]:
    """Refuse linear schemes, whose state drops no token, where a query does not see all tokens before it."""
    if not position.linear:
        return []
    wrong = f"{settings.name} hides or moves tokens, and the state of {position.settings.scheme} sums up all of them"
    fix = "write attention_pattern=causal, or choose a scheme with a softmax"
    return [("attention_pattern.name", f"{wrong}; a scheme with a softmax is needed", fix)]


def layouts_of_heads(layouts: Sequence[Layout], rules: Sequence[Rule]) -> list[Layout]:
    """Return the layouts of equal groups of heads that `in_training` gives these rules."""
    return [layouts[0]._replace(rule=rule, per_forward={}) for rule in rules]


def _n_pairs(rule: Rule, length: int) -> int:
    """Count the pairs of a text of this length that a rule makes visible."""
    if rule.bidirectional:
        return 2 * _n_pairs(rule._replace(bidirectional=False), length) - length
    query_T = torch.arange(length, device="cpu")
    nearest_T = (query_T - rule.beyond).clamp(max=length if rule.first is None else rule.first - 1)
    farthest_T = torch.zeros_like(query_T) if rule.window is None else (query_T - rule.window + 1).clamp(min=0)
    farthest_T = farthest_T.clamp(min=rule.after)
    if rule.chunks is not None:
        size, least, most, ahead = rule.chunks
        chunk_T = rule.chunks.number(query_T)
        nearest_T = torch.minimum(nearest_T, (chunk_T - least + 1) * size - 1 - ahead)
        farthest_T = farthest_T if most is None else torch.maximum(farthest_T, (chunk_T - most) * size - ahead)
    # Of the distances between both, those that `every` divides.
    smallest_T = -(-(query_T - nearest_T) // rule.every)
    return int(((query_T - farthest_T) // rule.every - smallest_T + 1).clamp(min=0).sum())


def seen(layout: Layout, queries: slice, keys: slice) -> Tensor:
    """Return which pairs of these queries (indices among the T) and keys (among the S) are visible: bool (B, t, s)."""
    rule, device = layout.rule, layout.text_BS.device
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    query_t = torch.arange(n_queries, device=device)[queries] + (n_keys - n_queries)
    key_s = torch.arange(n_keys, device=device)[keys]
    visible_Bts = (key_s <= query_t[:, None])[None]
    if rule.bidirectional:
        visible_Bts = torch.ones_like(visible_Bts)
    if rule.window is not None or rule.beyond or rule.every > 1:
        distance_Bts = layout.text_BT[:, queries, None] - layout.text_BS[:, None, keys]
        if rule.bidirectional:
            distance_Bts = distance_Bts.abs()
        if rule.window is not None:
            visible_Bts = visible_Bts & (distance_Bts < rule.window)
        if rule.beyond:
            visible_Bts = visible_Bts & (distance_Bts >= rule.beyond)
        if rule.every > 1:
            visible_Bts = visible_Bts & (distance_Bts % rule.every == 0)
    if rule.first is not None:
        visible_Bts = visible_Bts & (layout.text_BS[:, None, keys] < rule.first)
    if rule.after:
        visible_Bts = visible_Bts & (layout.text_BS[:, None, keys] >= rule.after)
    if rule.chunks is not None:
        apart_Bts = rule.chunks.apart(layout.text_BT[:, queries, None], layout.text_BS[:, None, keys])
        visible_Bts = visible_Bts & rule.chunks.has(apart_Bts)
    if layout.doc_BS is not None:
        doc_BT = layout.doc_BS[:, n_keys - n_queries :]
        visible_Bts = visible_Bts & (doc_BT[:, queries, None] == layout.doc_BS[:, None, keys])
    return visible_Bts


def may_see(layout: Layout, queries: slice, keys: slice) -> bool:
    """Whether any of these pairs may be visible, as far as indices alone can tell; cheap."""
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    first_query, last_query = (n_keys - n_queries + at for at in (queries.start, queries.stop - 1))
    if keys.start > last_query and not layout.rule.bidirectional:
        return False
    if not layout.text_keys.contiguous:
        return True
    nearest, farthest = max(0, first_query - keys.stop + 1), last_query - keys.start
    if layout.rule.bidirectional:
        nearest, farthest = max(nearest, keys.start - last_query), max(farthest, keys.stop - 1 - first_query)
    if layout.rule.window is not None and nearest >= layout.rule.window:
        return False
    if farthest < layout.rule.beyond:
        return False
    if layout.doc_BS is not None:  # every document has its own first tokens, and chunks
        return True
    if layout.rule.chunks is not None and not _by_chunks(layout, queries, keys)[0]:
        return False
    # The last key of the tile is no further than this, in any row.
    if layout.text_keys.last - (n_keys - keys.stop) < layout.rule.after:
        return False
    if layout.rule.first is None:
        return True
    return layout.text_keys.first + keys.start < layout.rule.first


def all_seen(layout: Layout, queries: slice, keys: slice) -> bool:
    """Whether all of these pairs are visible, as far as indices alone can tell; cheap."""
    n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
    first_query, last_query = (n_keys - n_queries + at for at in (queries.start, queries.stop - 1))
    if not layout.text_keys.contiguous or layout.doc_BS is not None:
        return False
    if keys.stop - 1 > first_query and not layout.rule.bidirectional:
        return False
    nearest, farthest = first_query - keys.stop + 1, last_query - keys.start
    if layout.rule.bidirectional:
        nearest, farthest = max(0, nearest, keys.start - last_query), max(farthest, keys.stop - 1 - first_query)
    if layout.rule.window is not None and farthest >= layout.rule.window:
        return False
    if nearest < layout.rule.beyond:
        return False
    if layout.rule.chunks is not None and not _by_chunks(layout, queries, keys)[1]:
        return False
    if layout.rule.every > 1 or layout.text_keys.first + keys.start < layout.rule.after:
        return False
    # The last key of the tile is no further than this, in any row.
    return layout.rule.first is None or layout.text_keys.last - (n_keys - keys.stop) < layout.rule.first


def _by_chunks(layout: Layout, queries: slice, keys: slice) -> tuple[bool, bool]:
    """Return whether any, and whether all, of these pairs may belong to the rule's chunks. One contiguous document in
    every row; where rows begin at different positions nothing is known of all."""
    chunks, n_keys = layout.rule.chunks, layout.text_BS.shape[1]
    assert chunks is not None
    starts = layout.text_keys.first, layout.text_keys.last - (n_keys - 1)  # of the first key, in any row
    before = n_keys - layout.text_BT.shape[1]
    found = [
        chunks.between(
            chunks.number(start + before + queries.start) - chunks.number(start + keys.stop - 1),
            chunks.number(start + before + queries.stop - 1) - chunks.number(start + keys.start),
        )
        for start in starts
    ]
    if starts[0] != starts[1]:
        return True, False
    return found[0]
