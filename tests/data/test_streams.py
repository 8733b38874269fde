"""data.order=stream: row g of a batch goes on where row g of the batch before ended, at any world size."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.loader import Loader, Mixture
from coca_train.data.mixture import fingerprint_diff
from coca_train.data.sampling import share_rows
from coca_train.runtime.errors import DataError

T = 16
ROWS = 8  # 6 of text, 2 of code: 52 windows each of 312, 72 each of 144
TEXT_STEPS, CODE_STEPS = 52, 72


@pytest.fixture
def streams(data_config) -> Mixture:
    return Mixture(data_config(order="stream"), T, global_batch_size=ROWS)


def rows_of(mixture: Mixture, source: str, n_rows: int = ROWS) -> list[int]:
    return [row for row in range(n_rows) if mixture.provenance(row).source == source]


def test_every_token_of_a_stretch_once_and_in_order(streams: Mixture) -> None:
    """The data are their own positions: a row's inputs over the steps must be one run of consecutive numbers, and
    the rows of a source together its windows from the first token to the last, none twice."""
    steps = [streams.samples(step * ROWS, ROWS) for step in range(CODE_STEPS)]
    for name, length, offset in (("text", TEXT_STEPS, 0), ("code", CODE_STEPS, 10_000)):
        seen = []
        for row in rows_of(streams, name):
            inputs = torch.cat([batch.tokens_BT[row] for batch in steps[:length]])
            targets = torch.cat([batch.targets_BT[row] for batch in steps[:length]])
            assert inputs.diff().eq(1).all()
            assert torch.equal(targets, inputs + 1)
            seen += inputs.tolist()
        n_windows = {"text": 312, "code": 144}[name]
        assert seen == list(range(offset, offset + n_windows * T))


def test_a_row_says_when_it_continues(streams: Mixture) -> None:
    text, code = rows_of(streams, "text"), rows_of(streams, "code")
    assert (len(text), len(code)) == (6, 2)
    last = None
    for step in range(3 * CODE_STEPS):
        batch = streams.samples(step * ROWS, ROWS)
        assert batch.continues_B is not None and batch.continues_B.dtype == torch.bool
        assert batch.continues_B[text].tolist() == [step % TEXT_STEPS != 0] * 6
        assert batch.continues_B[code].tolist() == [step % CODE_STEPS != 0] * 2
        if last is not None:  # what it says is what the tokens show
            assert torch.equal(batch.continues_B, batch.tokens_BT[:, 0] == last + 1)
        last = batch.tokens_BT[:, -1]


def test_a_row_starts_its_own_stretch_again(streams: Mixture) -> None:
    for row in rows_of(streams, "text"):
        first, again = streams.provenance(row), streams.provenance(TEXT_STEPS * ROWS + row)
        assert (first.epoch, again.epoch) == (0, 1)
        assert (first.window, first.parts[0].token_start) == (again.window, again.parts[0].token_start)
        assert streams.provenance((TEXT_STEPS - 1) * ROWS + row).epoch == 0


def test_provenance_is_what_the_batch_holds(streams: Mixture) -> None:
    for step in (0, 1, 51, 52, 1000):
        batch = streams.samples(step * ROWS, ROWS)
        for row in range(ROWS):
            p = streams.provenance(step * ROWS + row)
            offset = 10_000 if p.source == "code" else 0
            assert batch.tokens_BT[row].tolist() == list(
                range(offset + p.parts[0].token_start, offset + p.parts[-1].token_stop - 1)
            )


def test_rows_are_shared_by_weight_and_epochs_counted(streams: Mixture) -> None:
    assert Counter(streams.provenance(i).source for i in range(40 * ROWS, 41 * ROWS)) == {"text": 6, "code": 2}
    assert streams.epochs(TEXT_STEPS * ROWS) == {"code": TEXT_STEPS / CODE_STEPS, "text": 1.0}
    for n in (0, 1, 3, 7, 8, 21, 1000):
        counted = Counter(streams.provenance(i).source for i in range(n))
        assert streams.epochs(n) == {"code": counted["code"] / 144, "text": counted["text"] / 312}


def test_uneven_stretches_cover_everything(data_config) -> None:
    """144 windows in 5 rows: stretches of 28 and 29."""
    mixture = Mixture(data_config({"code": 1.0}, order="stream"), T, global_batch_size=5)
    firsts = [mixture.provenance(row).window for row in range(5)]
    assert firsts == [0, 28, 57, 86, 115]
    seen = Counter(mixture.provenance(step * 5 + row).window for step in range(28) for row in range(5))
    assert set(seen.values()) == {1} and len(seen) == 140
    starts_again = [next(s for s in range(1, 99) if mixture.provenance(s * 5 + row).epoch) for row in range(5)]
    assert starts_again == [28, 29, 29, 29, 29]


def test_the_order_is_the_same_for_every_layout_and_resume(data_config) -> None:
    mixture = Mixture(data_config(order="stream"), T, global_batch_size=24)

    def rows(world: int, micro: int, start: int, prefetch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        loaders = [Loader(mixture, 24, micro, rank, world, start, prefetch) for rank in range(world)]
        out = []
        for _ in range(start, 40):
            batches = [batch for loader in loaders for batch in next(loader)]
            out.append((torch.cat([b.tokens_BT for b in batches]), torch.cat([b.continues_B for b in batches])))
        for loader in loaders:
            loader.close()
        return out

    reference = rows(1, 24, 0, 0)
    assert not any(continues.all() for _, continues in (reference[0], reference[17]))  # text: 18 rows of 17 or 18
    for world, micro, start, prefetch in ((1, 6, 0, 2), (2, 4, 0, 0), (3, 8, 11, 2), (24, 1, 39, 0)):
        for (tokens, continues), (a, b) in zip(rows(world, micro, start, prefetch), reference[start:], strict=True):
            assert torch.equal(tokens, a) and torch.equal(continues, b)


@pytest.mark.parametrize("prefetch_steps", [0, 2])
def test_stop_ends_the_run_with_its_shortest_row(data_config, prefetch_steps: int) -> None:
    mixture = Mixture(data_config(order="stream", on_exhausted="stop"), T, global_batch_size=ROWS)
    assert mixture.max_samples() == TEXT_STEPS * ROWS
    seen = [mixture.provenance(i) for i in range(TEXT_STEPS * ROWS)]
    assert len(set(seen)) == len(seen)
    with pytest.raises(DataError, match=r"E-MIX-01 data.sources.text: all 52 windows of row 2 .*Fix: lower"):
        mixture.provenance(TEXT_STEPS * ROWS + 2)
    with Loader(mixture, ROWS, 4, 0, 1, 0, prefetch_steps) as loader:
        assert loader.max_steps == TEXT_STEPS
        assert len(list(loader)) == TEXT_STEPS
    one = data_config({"text": 0.75}, order="stream", on_exhausted="stop")
    assert Mixture(one, T, global_batch_size=7).max_samples() == 312 // 7 * 7
    assert Mixture(data_config(order="stream"), T, global_batch_size=ROWS).max_samples() is None


def test_too_few_rows_or_windows_are_refused_in_words(data_config) -> None:
    with pytest.raises(DataError, match=r"E-MIX-02 data.sources.code.weight=0.1: .*=4 rows.*global_batch_size=10 or"):
        Mixture(data_config({"text": 0.9, "code": 0.1}, order="stream"), T, global_batch_size=4)
    Mixture(data_config({"text": 0.9, "code": 0.1}, order="stream"), T, global_batch_size=10)
    with pytest.raises(DataError, match=r"E-MIX-03 data.sources.code: 2 windows for 3 rows .*Fix: lower train.seq_len"):
        Mixture(data_config({"code": 1.0}, order="stream"), 1000, global_batch_size=3)


def test_fingerprint_knows_the_order(data_config) -> None:
    def fingerprint(order: str, rows: int) -> dict:
        return Mixture(data_config(order=order), T, global_batch_size=rows).fingerprint()

    assert fingerprint("shuffled", 8) == fingerprint("shuffled", 16)
    diff = fingerprint_diff(fingerprint("stream", 8), fingerprint("stream", 16))
    assert diff == "order.global_batch_size 8 -> 16"
    diff = str(fingerprint_diff(fingerprint("shuffled", 8), fingerprint("stream", 8)))
    assert "order.kind shuffled -> stream" in diff


def test_shuffled_rows_continue_nothing(mixture: Mixture) -> None:
    assert mixture.samples(0, 4).continues_B is None


def test_a_loader_of_another_batch_size_is_a_bug(streams: Mixture) -> None:
    with pytest.raises(AssertionError):
        Loader(streams, 2 * ROWS, ROWS, 0, 1, 0, 0)


@settings(max_examples=200, deadline=None)
@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=8), n_rows=st.integers(1, 300))
def test_rows_add_up_and_stay_within_one_of_their_share(weights: list[int], n_rows: int) -> None:
    rows = share_rows(weights, n_rows)
    assert sum(rows) == n_rows
    shares = [Fraction(n_rows * weight, sum(weights)) for weight in weights]
    assert all(abs(row - share) < 1 for row, share in zip(rows, shares, strict=True))
    extra = [share - int(share) for row, share in zip(rows, shares, strict=True) if row > share]
    without = [share - int(share) for row, share in zip(rows, shares, strict=True) if row < share]
    assert not extra or not without or min(extra) >= max(without)
    if n_rows >= -(-sum(weights) // min(weights)):  # what E-MIX-02 advises
        assert min(rows) >= 1


def test_document_masks_go_with_streams(data_config, tmp_path: Path, write_dataset) -> None:
    write_dataset(tmp_path / "code", [list(range(100)), list(range(100, 200))])
    mixture = Mixture(data_config({"code": 1.0}, order="stream", document_mask=True), 20, global_batch_size=1)
    batch = mixture.samples(4, 1)  # tokens 80 .. 99: the next one begins a document
    assert batch.targets_BT[0, -1] == -100 and batch.continues_B is not None and batch.continues_B.item()
