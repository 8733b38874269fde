"""No packing loses or repeats a token, cuts a document it should not, or scores what cannot be known."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.batch import Batch, collate
from coca_train.data.dataset import IndexedDataset, IndexedWriter
from coca_train.data.mixture import Mixture
from coca_train.data.packing import Documents, Edges, Packing, Rows, Segments, Upsampling, Windows
from coca_train.runtime import IGNORE
from coca_train.runtime.errors import DataError
from tests import fixes

EDGES = Edges(bos=1, eos=2)
FIRST = 10  # token k of a dataset has the id FIRST + k, so a batch tells where it came from
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=25)
UPSAMPLING = st.one_of(st.none(), st.builds(Upsampling, st.integers(1, 45), st.integers(2, 4)))


def dataset(folder: Path, lengths: list[int]) -> IndexedDataset:
    at = FIRST
    with IndexedWriter(folder / "x", np.int32) as writer:
        for length in lengths:
            writer.add_document(range(at, at + length))
            at += length
    return IndexedDataset(folder / "x")


def epoch(packing: Packing) -> Batch:
    return collate([packing.row(window) for window in range(packing.n_windows)])


def copies(lengths: list[int], upsampling: Upsampling | None) -> list[int]:
    """How often an epoch should hold each document."""
    return [upsampling.factor if upsampling and n >= upsampling.from_tokens else 1 for n in lengths]


def documents(lengths: list[int]) -> list[list[int]]:
    ends = np.cumsum([0, *lengths]) + FIRST
    return [list(range(a, b)) for a, b in pairwise(ends.tolist())]


def check_spans(packing: Packing, lengths: list[int]) -> None:
    """Spans are exactly where the ids of a row come from; what no span holds was added."""
    texts = documents(lengths)
    for window in range(packing.n_windows):
        ids, seen = packing.row(window).ids.tolist(), set()
        for span in packing.spans(window):
            tokens = list(range(FIRST + span.start, FIRST + span.stop))
            assert ids[span.at : span.at + len(tokens)] == tokens
            assert set(tokens) <= set(texts[span.document])
            seen |= set(range(span.at, span.at + len(tokens)))
        assert all((token >= FIRST) == (t in seen) for t, token in enumerate(ids))


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, seq_len=st.integers(1, 30))
def test_windows_hold_every_token_once(tmp_path_factory, lengths: list[int], seq_len: int) -> None:
    data = dataset(tmp_path_factory.mktemp("w"), lengths)
    if data.n_tokens <= seq_len:
        with pytest.raises(DataError, match=f"E-TOK-12 .*x.bin .mine.: {data.n_tokens} tokens.* = {seq_len + 1}"):
            Windows(data, "mine", seq_len, with_starts=False)
        return
    packing = Windows(data, "mine", seq_len, with_starts=True)
    inputs = epoch(packing).tokens_BT.flatten().tolist()
    assert inputs == list(range(FIRST, FIRST + len(inputs)))
    assert 0 < data.n_tokens - len(inputs) <= seq_len  # never seen: at most one window
    check_spans(packing, lengths)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, seq_len=st.integers(3, 30), upsampling=UPSAMPLING, mask=st.booleans())
def test_segments_hold_the_stream_between_bos_and_eos(
    tmp_path_factory, lengths: list[int], seq_len: int, upsampling: Upsampling | None, mask: bool
) -> None:
    data = dataset(tmp_path_factory.mktemp("s"), lengths)
    texts = documents(lengths)
    rounds = max(copies(lengths, upsampling))
    stream = [
        (document, t)
        for turn in range(rounds)
        for document, n in enumerate(copies(lengths, upsampling))
        if turn < n
        for t in texts[document]
    ]
    if len(stream) < seq_len - 2:
        with pytest.raises(DataError, match=f"E-TOK-12 .*seq_len - 2 = {seq_len - 2}"):
            Segments(data, "mine", seq_len, mask, EDGES, upsampling)
        return
    packing = Segments(data, "mine", seq_len, mask, EDGES, upsampling)
    batch = epoch(packing)
    assert batch.tokens_BT[:, 0].unique().tolist() == [1] and batch.tokens_BT[:, -1].unique().tolist() == [2]
    inputs = batch.tokens_BT[:, 1:-1].flatten().tolist()
    assert inputs == [t for _, t in stream[: len(inputs)]]
    assert 0 <= len(stream) - len(inputs) < seq_len - 2  # never seen: less than one segment
    assert batch.targets_BT[:, -1].unique().tolist() == [IGNORE]
    check_spans(packing, lengths)
    if not mask:
        assert batch.doc_BT is None
        assert batch.targets_BT[:, :-1].tolist() == batch.tokens_BT[:, 1:].tolist()
        return
    assert batch.doc_BT is not None
    rows = zip(
        *(part.tolist() for part in (batch.doc_BT, batch.pos_BT, batch.targets_BT, batch.tokens_BT)), strict=True
    )
    for row, (doc, pos, targets, tokens) in enumerate(rows):
        inside = stream[row * (seq_len - 2) : (row + 1) * (seq_len - 2)]
        for t in range(seq_len - 1):  # BOS, the tokens and EOS: a new document where the text does not go on
            parts = 0 < t < seq_len - 2 and (inside[t][0] != inside[t - 1][0] or inside[t][1] != inside[t - 1][1] + 1)
            assert doc[t + 1] - doc[t] == parts
            assert pos[t + 1] == (0 if parts else pos[t] + 1)
            assert targets[t] == (IGNORE if parts else tokens[t + 1])


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, seq_len=st.integers(1, 30), upsampling=UPSAMPLING)
def test_documents_stay_whole(
    tmp_path_factory, lengths: list[int], seq_len: int, upsampling: Upsampling | None
) -> None:
    data = dataset(tmp_path_factory.mktemp("d"), lengths)
    if not any(lengths):
        with pytest.raises(DataError, match="E-TOK-12"):
            Documents(data, "mine", seq_len, EDGES, upsampling)
        return
    packing = Documents(data, "mine", seq_len, EDGES, upsampling)
    batch = epoch(packing)
    assert batch.doc_BT is not None
    times = list(zip(documents(lengths), copies(lengths, upsampling), strict=True))
    inputs, predictions = Counter(batch.tokens_BT.flatten().tolist()), Counter()
    del inputs[EDGES.eos]
    assert inputs == Counter({t: n for text, n in times for t in text})
    for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
        predictions.update(pair for pair in zip(tokens, targets, strict=True) if pair[1] != IGNORE)
    assert predictions == Counter({pair: n for text, n in times for pair in pairwise(text)})  # each once, no other
    whole = Counter()
    for row in zip(batch.doc_BT.tolist(), batch.tokens_BT.tolist(), batch.pos_BT.tolist(), strict=True):
        places = list(zip(*row, strict=True))
        for number in set(row[0]):
            ids = [token for document, token, _ in places if document == number]
            assert [pos for document, _, pos in places if document == number] == list(range(len(ids)))
            whole[tuple(ids)] += ids[0] != EDGES.eos
            assert ids[0] != EDGES.eos or set(ids) == {EDGES.eos}
    cut = ((tuple(text[at : at + seq_len]), n) for text, n in times for at in range(0, len(text), seq_len))
    assert +whole == sum((Counter({piece: n}) for piece, n in cut), Counter())
    assert packing.fill * packing.n_windows * seq_len == pytest.approx(batch.n_targets)
    check_spans(packing, lengths)


def test_documents_by_hand(tmp_path: Path) -> None:
    """Lengths 5, 2, 3, 4 in rows of 4: 4 + 1 of the first; 4; then 3 with 1, and 2."""
    batch = epoch(Documents(dataset(tmp_path, [5, 2, 3, 4]), "mine", 4, EDGES, None))
    rows = {tuple(row) for row in batch.tokens_BT.tolist()}
    assert rows == {(10, 11, 12, 13), (20, 21, 22, 23), (17, 18, 19, 14), (15, 16, 2, 2)}
    of = {tuple(row): i for i, row in enumerate(batch.tokens_BT.tolist())}
    assert batch.targets_BT[of[10, 11, 12, 13]].tolist() == [11, 12, 13, 14]  # the piece goes on in another window
    assert batch.targets_BT[of[20, 21, 22, 23]].tolist() == [21, 22, 23, IGNORE]
    assert batch.targets_BT[of[17, 18, 19, 14]].tolist() == [18, 19, IGNORE, IGNORE]
    assert batch.targets_BT[of[15, 16, 2, 2]].tolist() == [16, IGNORE, IGNORE, IGNORE]
    assert batch.doc_BT is not None and batch.doc_BT[of[15, 16, 2, 2]].tolist() == [0, 0, 1, 1]


def naive_best_fit(lengths: list[int], capacity: int) -> list[int]:
    """Room left in each row, piece by piece."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - length)
    return sorted(rooms)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), capacity=st.integers(1, 40))
def test_rows_are_those_of_best_fit_decreasing(data: st.DataObject, capacity: int) -> None:
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=80))
    rows = Rows(np.bincount(np.array(lengths, int), minlength=capacity + 1), capacity)
    by_length = sorted(lengths, reverse=True)
    pieces = [rows.pieces(row) for row in range(rows.n_rows)]
    assert sorted(piece for row in pieces for piece in row) == list(range(len(lengths)))
    assert all(row == sorted(row) for row in pieces)
    assert sorted(capacity - sum(by_length[p] for p in row) for row in pieces) == naive_best_fit(lengths, capacity)


@pytest.mark.parametrize(("mean", "seq_len"), [(6.3, 2048), (7.5, 8192), (11.3, 65_536)])
def test_realistic_lengths_fill_nine_tenths(mean: float, seq_len: int) -> None:
    lengths = np.random.default_rng(0).lognormal(mean, 1.0, 20_000).astype(np.int64) + 1
    rest = lengths[lengths % seq_len > 0] % seq_len  # what the whole pieces leave
    rows = Rows(np.bincount(rest, minlength=seq_len + 1), seq_len)
    assert rest.sum() / (rows.n_rows * seq_len) > 0.98


@pytest.fixture
def config(data_config):
    def build(packing: str, **changes):
        return data_config(packing=packing, document_mask=packing == "documents", **changes)

    return build


@pytest.mark.parametrize("packing", ["segments", "documents"])
def test_a_mixture_of_packed_sources(config, packing: str) -> None:
    """Every epoch of a source holds all its windows once, and the sources' epochs are counted in windows."""
    mixture = Mixture(config(packing), 16, edges=EDGES)
    windows: dict[tuple[str, int], list[int]] = {}
    for i in range(2500):
        p = mixture.provenance(i)
        windows.setdefault((p.source, p.epoch), []).append(p.window)
    for source in mixture.sources:
        assert sorted(windows[source.name, 0]) == list(range(source.n_windows))
        assert windows[source.name, 0] != windows[source.name, 1][: source.n_windows]
    batch = mixture.samples(0, 40)
    assert batch.tokens_BT.shape == (40, 16)
    assert (batch.doc_BT is None) == (packing == "segments")
    for row in range(40):
        for part in mixture.provenance(row).parts:
            ids = batch.tokens_BT[row, part.at : part.at + part.token_stop - part.token_start].tolist()
            offset = 10_000 if mixture.provenance(row).source == "code" else 0
            assert ids == list(range(offset + part.token_start, offset + part.token_start + len(ids)))
            assert part.document_start <= part.token_start < part.token_stop <= part.document_stop


def test_fingerprint_knows_the_packing(config) -> None:
    def order(*args, **changes) -> dict:
        return Mixture(config(*args, **changes), 16, edges=EDGES).fingerprint()["order"]

    assert order("windows")["packing"] == "windows"
    plain, more = order("segments"), order("segments", upsample_from_tokens=30, upsample_factor=5)
    assert plain["packing"] == "segments" and plain["edges"] == {"bos": 1, "eos": 2}
    assert plain != more and more["upsample"] == {"from_tokens": 30, "factor": 5}
    assert order("documents")["packing"] == "documents"


def test_long_documents_are_seen_more_often(config) -> None:
    once, often = (
        Mixture(config("documents", upsample_from_tokens=n, upsample_factor=f), 64, edges=EDGES)
        for n, f in ((None, 1), (30, 5))
    )
    for plain, upsampled in zip(once.sources, often.sources, strict=True):
        lengths = np.diff(plain.dataset.document_bounds())
        inputs = sum(
            int((collate([upsampled.packing.row(w)]).tokens_BT != EDGES.eos).sum()) for w in range(upsampled.n_windows)
        )
        ends = 1 if plain.name == "text" else 0  # of `text`, token 2 is the id of EOS
        assert inputs == lengths.sum() + 4 * lengths[lengths >= 30].sum() - ends * (5 if lengths[0] >= 30 else 1)


def test_a_tokenizer_without_a_beginning_is_refused(config) -> None:
    with pytest.raises(DataError, match=r"^E-MIX-04 ") as raised:
        Mixture(config("segments"), 16, edges=Edges(None, 2))
    (word,) = fixes.first(fixes.fix_of(raised.value))
    for packing in ("documents", word.removeprefix("data.packing=")):
        Mixture(config(packing), 16, edges=Edges(None, 2))


@pytest.mark.parametrize("packing", ["windows", "segments", "documents"])
def test_an_id_beyond_the_vocabulary_is_named_by_document(config, packing: str) -> None:
    mixture = Mixture(config(packing, weights={"code": 1.0}), 16, vocab_size=12_000, edges=EDGES)
    with pytest.raises(DataError, match=r"E-TOK-09 .*code.bin document \d+, token \d+: id \d+, but") as caught:
        mixture.samples(0, mixture.sources[0].n_windows)
    words = str(caught.value).replace(",", " ").replace(":", " ").split()
    document, token, id_ = (int(words[words.index(what) + 1]) for what in ("document", "token", "id"))
    bounds = mixture.sources[0].dataset.document_bounds()
    assert id_ == token + 10_000 >= 12_000 and bounds[document] <= token < bounds[document + 1]


def test_weights_are_shares_of_scored_tokens(config, tmp_path: Path, write_dataset) -> None:
    """A window with a document of 10 tokens has 9 targets, one with 16 has 15; the shares stay the weights."""
    write_dataset(tmp_path / "text", [[7] * 10] * 400)
    write_dataset(tmp_path / "code", [[8] * 16] * 400)
    mixture = Mixture(config("documents", weights={"text": 0.3, "code": 0.7}), 16, edges=EDGES)
    for first in (0, 12_345):
        counted = Counter()
        places = mixture.places(first, 4000)
        targets = {j: collate([s.packing.row(0)]).n_targets for j, s in enumerate(mixture.sources)}
        for place in places:
            counted[mixture.sources[place.source].name] += targets[place.source]
        assert counted["text"] / sum(counted.values()) == pytest.approx(0.3, abs=0.001)
