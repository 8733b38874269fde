"""Which keys a query sees, and at which distance: readers that take one token after another, as the papers tell it."""

import random

import pytest
import torch

from coca_train.positions import visibilities
from coca_train.positions.visibility import is_contiguous, may_see, seen
from coca_train.settings import load
from tests.positions import support

CASES = [
    {"name": "causal"},
    {"name": "sliding_window", "window": 5},
    {"name": "sliding_window", "window": 1},
    {"name": "sinks", "n_sink": 2, "window": 5},
    {"name": "sinks", "n_sink": 6, "window": 1},
    {"name": "lambda_mask", "n_global": 3, "window": 5, "max_distance": 5},
    {"name": "lambda_mask", "n_global": 3, "window": 4, "max_distance": 9},
    {"name": "lambda_mask", "n_global": 3, "window": 9, "max_distance": 4},
    {"name": "rerope", "window": 5},
    {"name": "rerope", "window": 1},
    {"name": "segments", "length": 5},
    {"name": "segments", "length": 1},
]
SHIFTABLE = ("causal", "sliding_window", "rerope")  # no token is the first one
cases = pytest.mark.parametrize("settings", CASES, ids=lambda s: "-".join(str(v) for v in s.values()))


def rules(settings):
    return visibilities.build(visibilities.settings(settings))


def streaming(n_sink, window, texts):
    """StreamingLLM: a cache as a list, the oldest that is no sink leaves it; distances between slots of the list."""
    cache, found = [], []
    for token in texts:
        cache.append(token)
        if len(cache) > n_sink + window:
            del cache[n_sink]
        found.append({key: len(cache) - 1 - slot for slot, key in enumerate(cache)})
    return found


def infinite(n_global, window, max_distance, texts):
    """LM-Infinite: the first and the last tokens, walked through one by one."""
    found = []
    for query in range(len(texts)):
        near = {key: min(query - key, max_distance) for key in texts[max(0, query + 1 - window) : query + 1]}
        found.append({key: min(query - key, max_distance) for key in texts[: min(n_global, query + 1)]} | near)
    return found


def read(settings, n_tokens):
    """For each token of a document: {token seen: distance}."""
    texts = list(range(n_tokens))
    values = {key: value for key, value in settings.items() if key != "name"}
    if settings["name"] == "sinks":
        return streaming(**values, texts=texts)
    if settings["name"] == "lambda_mask":
        return infinite(**values, texts=texts)
    found = []
    for query in texts:
        back = {key: query - key for key in reversed(texts[: query + 1])}
        if settings["name"] == "sliding_window":
            back = dict(list(back.items())[: values["window"]])
        elif settings["name"] == "rerope":
            back = {
                key: distance if distance < values["window"] else values["window"] for key, distance in back.items()
            }
        elif settings["name"] == "segments":
            start = max(chunk for chunk in range(0, n_tokens, values["length"]) if chunk <= query)
            back = {key: distance for key, distance in back.items() if key >= start}
        found.append(back)
    return found


def defined(settings, lengths):
    """distance[m][n] over a row of documents with these lengths, -1 where n is not seen."""
    table = torch.full((sum(lengths), sum(lengths)), -1)
    start = 0
    for length in lengths:
        for query, keys in enumerate(read(settings, length)):
            for key, distance in keys.items():
                table[start + query, start + key] = distance
        start += length
    return table


def packed(rows, first=0):
    """Positions and documents (B, S) of rows of documents with these lengths."""
    pos = torch.stack([torch.cat([torch.arange(first, first + n) for n in lengths]) for lengths in rows])
    doc = torch.stack([torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]) for lengths in rows])
    return pos, doc


def found(layouts):
    """The same table from layouts, (B, T, S); fails when two views show one pair."""
    table = None
    for layout in layouts:
        shown = whole(layout)
        distance = (layout.pos_BT[:, :, None] - layout.pos_BS[:, None, :]).expand_as(shown)
        table = torch.full_like(distance, -1) if table is None else table.expand(shown.shape)
        assert not (shown & (table >= 0)).any(), "views overlap"
        assert (distance[shown] >= 0).all()
        table = torch.where(shown, distance, table)
    assert table is not None
    return table


def whole(layout):
    everything = slice(0, layout.text_BT.shape[1]), slice(0, layout.text_BS.shape[1])
    return seen(layout, *everything)


@cases
@pytest.mark.parametrize("n_tokens", [1, 2, 5, 6, 11, 23])
def test_one_document(settings, n_tokens):
    pos, _ = packed([[n_tokens]])
    expected = defined(settings, [n_tokens])
    for n_queries in {1, 2, n_tokens} - ({2} if n_tokens == 1 else set()):
        layouts = rules(settings).layouts(pos[:, n_tokens - n_queries :], pos)
        assert torch.equal(found(layouts)[0], expected[n_tokens - n_queries :])


@cases
def test_documents_in_a_row(settings):
    rows = [[7, 1, 15], [12, 10, 1], [23], [1] * 23]
    for lengths in rows:
        pos, doc = packed([lengths])
        assert torch.equal(found(rules(settings).layouts(pos, pos, doc))[0], defined(settings, lengths))
    pos, doc = packed(rows[:3])
    together = found(rules(settings).layouts(pos, pos, doc))
    assert torch.equal(together, torch.stack([defined(settings, lengths) for lengths in rows[:3]]))


@cases
def test_positions_that_start_later(settings):
    """Without first tokens nothing changes; those whose sinks have gone see the others as before."""
    pos, doc = packed([[7, 16], [23]], first=1000)
    table = found(rules(settings).layouts(pos, pos, doc))
    expected = torch.stack([defined(settings, [7, 16]), defined(settings, [23])])
    if settings["name"] in SHIFTABLE or settings["name"] == "segments":  # 1000 is a multiple of these lengths
        assert torch.equal(table, expected)
    else:
        near = {"name": "lambda_mask", "n_global": 1, "window": settings["window"], "max_distance": 10**6}
        expected = torch.stack([defined(near, [7, 16]), defined(near, [23])])
        distance = pos[:, :, None] - pos[:, None, :]
        expected[distance >= settings["window"]] = -1
        assert torch.equal(table, expected.clamp(max=settings.get("max_distance", 10**6)))


def test_segments_follow_the_position():
    pos = torch.arange(1003, 1014)[None]
    table = found(rules({"name": "segments", "length": 5}).layouts(pos, pos))[0]
    assert torch.equal(table, defined({"name": "sliding_window", "window": 99}, [2, 5, 4]))


@cases
def test_where_pairs_stand(settings):
    """Near pairs where the text has them; far ones at the cap and 0; segments begin at 0."""
    pos = torch.arange(20)[None]
    layouts = rules(settings).layouts(pos, pos)
    if settings["name"] == "segments":
        assert torch.equal(layouts[0].pos_BS, pos % settings["length"])
        return
    for layout in layouts:
        cap = settings.get("max_distance", settings.get("window"))
        if layout.as_text:
            assert torch.equal(layout.pos_BT, pos) and torch.equal(layout.pos_BS, pos)
        elif settings["name"] == "sinks":
            assert torch.equal(layout.pos_BT, pos.clamp(max=settings["n_sink"] + settings["window"] - 1))
            assert torch.equal(layout.pos_BS, pos)
        else:
            assert (layout.pos_BT == cap).all() and (layout.pos_BS == 0).all()
    assert layouts[0].as_text and layouts[0].contiguous


@cases
def test_every_query_sees_itself(settings):
    """No softmax is over nothing."""
    pos, doc = packed([[7, 1, 15], [12, 10, 1]])
    table = found(rules(settings).layouts(pos, pos, doc))
    assert (table.diagonal(0, 1, 2) == 0).all()


@cases
def test_what_is_kept_is_all_that_is_seen_later(settings):
    keep = rules(settings).keep()
    table = defined(settings, [40])
    assert (keep is None) == (settings["name"] in ("causal", "rerope"))
    if keep is None:
        return
    for now in range(39):
        later = (table[now + 1 :, : now + 1] >= 0).any(0).nonzero()[:, 0]
        assert all(key < keep.first or key > now - keep.last for key in later.tolist())
    assert keep.first + keep.last <= sum(v for k, v in settings.items() if k not in ("name", "max_distance"))


def layouts_of_all_kinds():
    """Rows as in training, with positions later in the text, evicted caches, documents that come back."""
    generator = random.Random(0)
    for settings in CASES:
        for _ in range(6):
            lengths = [generator.randint(1, 30) for _ in range(4)]
            pos, doc = packed([lengths, lengths[::-1]], first=generator.choice([0, 0, 3]))
            n_keys = pos.shape[1]
            held = torch.tensor(sorted(generator.sample(range(n_keys), generator.randint(1, n_keys))))
            again = doc[:, torch.randperm(n_keys, generator=torch.Generator().manual_seed(n_keys))]
            one = torch.arange(n_keys)[None]
            for keys, documents in ((one, None), (one[:, held], None), (pos, doc), (pos, again)):
                n_queries = generator.randint(1, keys.shape[1])
                yield from rules(settings).layouts(keys[:, -n_queries:], keys, documents)


def test_tiles_that_are_skipped_hold_nothing():
    generator, skipped = random.Random(1), 0
    for layout in layouts_of_all_kinds():
        n_queries, n_keys = layout.text_BT.shape[1], layout.text_BS.shape[1]
        for _ in range(8):
            starts = generator.randrange(n_queries), generator.randrange(n_keys)
            queries = slice(starts[0], generator.randint(starts[0] + 1, n_queries))
            keys = slice(starts[1], generator.randint(starts[1] + 1, n_keys))
            if not may_see(layout, queries, keys):
                assert not seen(layout, queries, keys).any()
                skipped += 1
    assert skipped > 500


@cases
def test_few_tiles_of_a_window_are_visited(settings):
    """Of a long text hardly more tiles than hold a pair: O(T·window) where there is a window."""
    pos, tile, n_rows = torch.arange(512)[None], 32, 512 // 32
    for layout in rules(settings).layouts(pos, pos):
        shown = whole(layout)[0].unfold(0, tile, tile).unfold(1, tile, tile).flatten(2).any(-1)
        parts = [slice(start, start + tile) for start in range(0, 512, tile)]
        visited = torch.tensor([[may_see(layout, queries, keys) for keys in parts] for queries in parts])
        assert visited.sum() <= shown.sum() + n_rows
        if rules(settings).keep() is not None:
            assert visited.sum() <= 2 * n_rows


def test_indices_tell_distances_only_where_positions_rise():
    pos, doc = packed([[4, 3], [2, 5]])
    assert is_contiguous(pos, doc)
    assert is_contiguous(torch.arange(5, 12)[None], None)
    assert not is_contiguous(torch.tensor([[0, 1, 5, 6]]), None)  # an evicted cache
    assert not is_contiguous(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 0]]))  # a document comes back
    assert not is_contiguous(torch.tensor([[0, 1, 0, 2]]), torch.tensor([[0, 0, 1, 1]]))


# Scheme file -> visibilities it cannot go with, and why in short.
IMPOSSIBLE = {
    "learned": {"sinks", "rerope", "lambda_mask"},  # positions are in the embeddings
    "sinusoidal": {"sinks", "rerope", "lambda_mask"},
    "nope": {"rerope"},  # no distances to limit
    "coca": {"sinks"},  # slack sees more than distances
    "tupe": {"sinks", "rerope", "lambda_mask"},  # so does it; and no row for a distance of its whole table
    "fire": {"sinks"},  # so does it
    "fox": {"sinks", "rerope", "lambda_mask"},  # sums along the keys
    "cope": {"sinks", "rerope", "lambda_mask"},
}


@pytest.mark.parametrize("scheme", [name for name, _ in support.shipped()])
def test_pairs_that_make_no_sense_are_refused(scheme):
    words = ["data.order=stream"] if scheme == "transformer_xl" else []
    config = load([f"position={scheme}", *words]).config
    long = {"window": 128, "n_sink": 4, "n_global": 4, "max_distance": 128, "length": 128}
    refused = set()
    for name in visibilities.visibility_names():
        fields = visibilities.visibility_module(name).Settings.__pydantic_fields__
        settings = visibilities.settings({key: name if key == "name" else long[key] for key in fields})
        problems = visibilities.problems(settings, config.position, config.model)
        refused |= {name} if problems else set()
        for key, text, fix in problems:
            assert key.startswith("visibility.") and config.position.scheme in text and fix.startswith("write ")
    assert refused == IMPOSSIBLE.get(scheme, set())


def test_tupe_takes_distances_its_table_has():
    config = load(["position=tupe"]).config
    assert not visibilities.problems(
        visibilities.settings({"name": "rerope", "window": 127}), config.position, config.model
    )


def test_segments_alone_are_not_for_training():
    for name in visibilities.visibility_names():
        assert visibilities.visibility_module(name).Rules.trains == (name != "segments")
