"""Sample numbers to tokens: every window once an epoch, the same for everybody, told when it is not the same data."""

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from coca_train.data.dataset import HEADER, MAGIC
from coca_train.data.mixture import Mixture, fingerprint_diff
from coca_train.runtime.errors import DataError

T = 16
SIZES = {"text": 5000, "code": 2311}


def test_every_window_once_an_epoch_and_every_epoch_in_another_order(mixture: Mixture) -> None:
    seen: dict[tuple[str, int], list[int]] = {}
    for i in range(4000):
        p = mixture.provenance(i)
        assert (p.parts[0].token_start, p.parts[-1].token_stop) == (p.window * T, p.window * T + T + 1)
        assert p.parts[-1].token_stop <= SIZES[p.source]
        seen.setdefault((p.source, p.epoch), []).append(p.window)
    n_windows = {name: (size - 1) // T for name, size in SIZES.items()}
    complete = {key: order for key, order in seen.items() if (key[0], key[1] + 1) in seen}
    assert len(complete) >= 14
    for (name, _), order in complete.items():
        assert sorted(order) == list(range(n_windows[name]))
    assert len({tuple(order) for order in complete.values()}) == len(complete)
    assert all(order != sorted(order) for order in complete.values())


def test_a_batch_holds_the_tokens_its_provenance_names(mixture: Mixture) -> None:
    batch = mixture.samples(0, 50)
    assert batch.tokens_BT.shape == batch.targets_BT.shape == (50, T)
    assert batch.doc_BT is None
    for row in range(50):
        p = mixture.provenance(row)
        offset = 10_000 if p.source == "code" else 0
        assert batch.tokens_BT[row].tolist() == list(
            range(offset + p.parts[0].token_start, offset + p.parts[-1].token_stop - 1)
        )
        assert batch.targets_BT[row].tolist() == list(
            range(offset + p.parts[0].token_start + 1, offset + p.parts[-1].token_stop)
        )
        assert batch.pos_BT[row].tolist() == list(range(T))


def test_proportions_are_exact_in_every_stretch(mixture: Mixture) -> None:
    for begin in (0, 123, 4567):
        counts = Counter(mixture.provenance(i).source for i in range(begin, begin + 400))
        assert abs(counts["text"] - 300) <= 1
    epochs = mixture.epochs(4000)
    assert epochs["text"] == pytest.approx(3000 / 312)
    assert epochs["code"] == pytest.approx(1000 / 144)


@pytest.mark.parametrize("order", ["shuffled", "stream"])
def test_places_at_once_are_places_one_by_one(data_config, order: str) -> None:
    mixture = Mixture(data_config(order=order), T, global_batch_size=8)
    for first, n in ((0, 1), (0, 400), (123, 256), (3999, 700), (10**12, 300)):  # 700: more epochs than are kept
        assert mixture.places(first, n) == [mixture.places(i, 1)[0] for i in range(first, first + n)]
    assert mixture.places(5, 0) == []


def test_order_depends_on_the_seed_and_on_nothing_else(data_config) -> None:
    def order(**changes) -> list:
        mixture = Mixture(data_config(**changes), T)
        return [mixture.provenance(i) for i in range(300)]

    expected = order()
    assert expected == order() == order(document_mask=True) == order(prefetch_steps=0)
    assert expected == order(weights={"code": 0.25, "text": 0.75})  # the order of the yaml
    assert expected != order(seed=2)


def test_stop_ends_before_the_first_window_is_repeated(data_config) -> None:
    mixture = Mixture(data_config(on_exhausted="stop"), T)
    end = mixture.max_samples()
    assert end == 416  # 312 windows of text at 3 in 4
    seen = [mixture.provenance(i) for i in range(end)]
    assert len(set(seen)) == len(seen)
    for ask in (lambda: mixture.provenance(end), lambda: mixture.places(end - 30, 60)):
        with pytest.raises(DataError, match=r"E-MIX-01 data.sources.text: .*312 windows"):
            ask()
    assert len(mixture.places(end - 30, 30)) == 30
    assert Mixture(data_config(), T).max_samples() is None


def test_a_source_shorter_than_a_window_is_refused(data_config) -> None:
    assert Mixture(data_config(), 2310).sources[0].n_windows == 1  # 2 311 tokens: exactly one
    with pytest.raises(DataError, match=r"E-TOK-12 .*code.* 2311 tokens.* 2312"):
        Mixture(data_config(), 2311)


def test_ids_beyond_the_vocabulary_are_named(data_config) -> None:
    Mixture(data_config(), T, vocab_size=12_305).samples(0, 600)  # token 2 304 is the last of the last window
    mixture = Mixture(data_config(), T, vocab_size=12_304)
    with pytest.raises(DataError, match=r"E-TOK-09 .*code.bin document \d+, token 2304: id 12304.*12304 ids") as caught:
        mixture.samples(0, 600)
    document = int(str(caught.value).split("document ")[1].split(",")[0])
    bounds = mixture.sources[0].dataset.document_bounds()
    assert bounds[document] <= 2304 < bounds[document + 1]


def test_fingerprint_knows_the_data_not_its_place(data_config, tmp_path: Path) -> None:
    before = Mixture(data_config(), T).fingerprint()
    assert fingerprint_diff(before, Mixture(data_config(prefetch_steps=0), T).fingerprint()) is None

    changed = Mixture(data_config(seed=9), T).fingerprint()
    assert fingerprint_diff(before, changed) == "order.seed 1 -> 9"
    fewer = Mixture(data_config(weights={"text": 1.0}), T).fingerprint()
    assert "sources.code.tokens 2311 -> absent" in str(fingerprint_diff(before, fewer))

    with open(tmp_path / "code.bin", "r+b") as file:  # one bit
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 4]))
    diff = str(fingerprint_diff(before, Mixture(data_config(), T).fingerprint()))
    assert diff.startswith("sources.code.bin.sha256 ")
    assert ";" not in diff

    (tmp_path / "tokenizer.model").write_bytes(b"another")
    assert "tokenizer.sha256" in str(fingerprint_diff(before, Mixture(data_config(), T).fingerprint()))


def test_a_tokenizer_that_is_not_the_datas_is_refused(data_config, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"kind": "corpus", "tokenizer": {"sha256": "' + "ab" * 32 + '"}}')
    with pytest.raises(
        DataError, match=r"E-TOK-11 data.sources.code.path: .*abababababababab.*tokenizer.model is [0-9a-f]{16}"
    ):
        Mixture(data_config(), T)


def test_a_missing_tokenizer_is_named(data_config, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").unlink()
    with pytest.raises(DataError, match="E-TKN-01"):
        Mixture(data_config(), T).fingerprint()


def sparse(prefix: Path, n_tokens: int) -> None:
    """A dataset of any size that takes no room on disk: all zeros, documents of a million tokens."""
    sizes = np.full(n_tokens // 10**6, 10**6, np.int32)
    with open(f"{prefix}.idx", "wb") as file:
        file.write(HEADER.pack(MAGIC, 1, 8, len(sizes), len(sizes) + 1))
        file.write(sizes.tobytes())
        file.write((np.arange(len(sizes), dtype=np.int64) * 2 * 10**6).tobytes())
        file.write(np.arange(len(sizes) + 1, dtype=np.int64).tobytes())
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * 10**6 * len(sizes))


def test_fifty_billion_tokens_in_thirty_sources(data_config, tmp_path: Path) -> None:
    names = [f"s{j}" for j in range(30)]
    for name in names:
        sparse(tmp_path / name, 50 * 10**9 // 30)
    tracemalloc.start()
    mixture = Mixture(data_config(weights={name: 1.0 + j for j, name in enumerate(names)}), 2048)
    fingerprint = mixture.fingerprint()
    for step in range(50_000, 50_020):
        mixture.places(step * 256, 256)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert fingerprint["sources"]["s3"]["bin"]["of"] == "64 blocks of 65536 bytes"
    assert sum(record["tokens"] for record in fingerprint["sources"].values()) == 49_980_000_000


def test_a_large_file_is_sampled_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coca_train.data import storage

    monkeypatch.setattr(storage, "FULL_DIGEST_BYTES", 1000)
    monkeypatch.setattr(storage, "SAMPLE_BYTES", 10)
    path = tmp_path / "x"
    path.write_bytes(bytes(2000))
    before = storage.digest(path)["sha256"]
    for place in (0, 1999):
        changed = bytearray(2000)
        changed[place] = 1
        path.write_bytes(changed)
        assert storage.digest(path)["sha256"] != before


def test_empty_documents_cost_nothing(tmp_path: Path, data_config, write_dataset) -> None:
    write_dataset(tmp_path / "code", [[], list(range(100)), [], [], list(range(100, 200)), []])
    mixture = Mixture(data_config(document_mask=True), T)
    source = mixture.sources[0]
    assert (source.dataset.n_documents, source.dataset.n_tokens, source.n_windows) == (6, 200, 12)
