"""Overlap in runs of words: equal to plain Python's sets of tuples, for any text, any stretches and any workers."""

import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from coca_train.data.dataset import IndexedDataset, IndexedWriter
from coca_train.data.tokenizer import Tokenizer
from data_prep import overlap
from data_prep.__main__ import main
from data_prep.overlap import Overlap, document_ngrams, ngrams_of_texts, ngrams_of_tokens, pieces, stretches
from tests.data.vocabularies import trained
from tests.data_prep.support_corpus import Made, make, write_dataset

# Few words, so that runs of them meet again; cases, marks, digits and punctuation of several scripts
WORD = st.sampled_from(
    ["the", "The", "THE", "of", "don't", "naïve", "NAI\u0308VE", "a_b", "ΟΔΟΣ", "x2", "日本", "हिन्दी", "İ"]
)
GAP = st.sampled_from([" ", "\n", ", ", " — ", "\u00a0", "“", "_", "\t\r\n", "\u200b", "$"])
TEXT = st.lists(st.tuples(WORD, GAP), max_size=12).map(lambda pairs: "".join(word + gap for word, gap in pairs))
ANY_TEXT = TEXT | st.text(max_size=40)


def plain_words(text: str) -> list[str]:
    spaced = "".join(c if unicodedata.category(c)[0] in "LNM" else " " for c in text.lower())
    return spaced.split(" ") if not spaced.strip(" ") else [word for word in spaced.split(" ") if word]


def plain_ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    words = [word for word in plain_words(text) if word]
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


@settings(deadline=None)
@given(st.lists(ANY_TEXT, max_size=6), st.integers(1, 5))
def test_numbers_are_as_different_as_the_runs(texts: list[str], n: int) -> None:
    numbers, documents = ngrams_of_texts(texts, n)
    expected = [(run, i) for i, text in enumerate(texts) for run in plain_ngrams(text, n)]
    assert documents.tolist() == [i for _, i in expected]
    meaning: dict[int, tuple[str, ...]] = {}
    for number, (run, _) in zip(numbers.tolist(), expected, strict=True):
        assert meaning.setdefault(number, run) == run
    assert len(meaning) == len({run for run, _ in expected})


def test_words_that_differ_little() -> None:
    """Anagrams, prefixes, repeated letters, and words in another order are other runs."""
    words = ["ab", "ba", "aab", "aba", "a", "aa", "aaa", "b" * 500, "b" * 501, "\U0001d400", "ac"]
    numbers, _ = ngrams_of_texts(words, 1)
    assert len(set(numbers.tolist())) == len(words)
    orders = ["a b c", "a c b", "b a c", "ab c a", "a bc a", "c b a"]
    assert len(set(ngrams_of_texts(orders, 3)[0].tolist())) == len(orders)
    assert ngrams_of_texts(["A-B (c)!", "a\tb_c"], 3)[0].tolist() == [ngrams_of_texts(["a b c"], 3)[0][0]] * 2


def test_the_numbers_fill_64_bits() -> None:
    """The sieve looks at the leading bits only; they must not be a few."""
    numbers, _ = ngrams_of_texts([" ".join(f"w{i}" for i in range(20_000))], 13)
    heads = numbers >> np.uint64(48)
    assert len(np.unique(heads)) > 0.8 * 65536 * (1 - np.exp(-20_000 / 65536))
    for bit in range(64):
        assert 0.47 < ((numbers >> np.uint64(bit)) & np.uint64(1)).mean() < 0.53


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(TEXT.map(lambda text: text * 3), st.integers(0, 20), st.integers(1, 4))
def test_long_documents_in_pieces(model: Path, text: str, more: int, n: int) -> None:
    """Pieces of as many tokens as the longest word has, and a few more."""
    t = Tokenizer(model)
    ids = np.array([*t.encode(text), t.eod])
    pieces_of = SentencePieceProcessor(model_file=str(model))
    breaks = [i for i, token in enumerate(ids) if pieces_of.id_to_piece(int(token))[0] in "\u2581\n\t"]
    piece = int(np.diff([0, *breaks, len(ids)]).max()) + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "PIECE", piece)
        parts = list(pieces(ids, t))
        assert "".join(parts) == text
        assert ngrams_of_tokens(ids, t, n).tolist() == ngrams_of_texts([text], n)[0].tolist()
    assert all(part[:1].isspace() for part in parts[1:])
    assert len(parts) > 1 or len(ids) <= piece


def test_a_piece_without_white_space_is_cut_anyway(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = Tokenizer(model)
    monkeypatch.setattr(overlap, "PIECE", 8)
    ids = np.array(t.encode("x9q7z" * 30))
    assert "".join(pieces(ids, t)) == "x9q7z" * 30
    assert len(list(pieces(ids, t))) == -(-len(ids) // 8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    st.lists(TEXT | st.sampled_from(["the of", "x2", ""]), min_size=1, max_size=12),
    st.integers(1, 60) | st.integers(200, 2000),
    st.integers(1, 60),
    st.integers(1, 3),
)
def test_documents_in_batches(
    tmp_path_factory: pytest.TempPathFactory, model: Path, texts: list[str], size: int, piece: int, n: int
) -> None:
    folder = tmp_path_factory.mktemp("batches")
    t = Tokenizer(model)
    write_dataset(folder / "a", texts, t)
    data = IndexedDataset(folder / "a")
    batches = list(stretches(data, size))
    assert [i for first, stop in batches for i in range(first, stop)] == list(range(len(texts)))
    bounds = data.document_bounds()
    assert all(bounds[stop - 1] // size == bounds[first] // size for first, stop in batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "TOGETHER", piece)  # how much goes together; pieces of one document stay whole
        parts = [part for pair in batches for part in document_ngrams(data, *pair, t, n)]
    expected = ngrams_of_texts(texts, n)
    for k in (0, 1):
        assert np.concatenate([part[k] for part in parts]).tolist() == expected[k].tolist()


def report(tmp_path: Path, sources: dict[str, Made], *words: str) -> dict[str, Any]:
    make(tmp_path, sources)
    arguments = ["--config-dir", str(tmp_path / "choices"), "corpus=tiny", *words]
    assert main(["leakage", *arguments]) == 0
    return json.loads((tmp_path / "tiny" / "report" / "leakage.json").read_text())


def plain_overlap(train: list[str], valid: list[str], n: int, max_share: float) -> dict[str, Any]:
    """The definition: which runs of each held-out document are in the set of all runs of the training documents."""
    known = {run for text in train for run in plain_ngrams(text, n)}
    runs = [plain_ngrams(text, n) for text in valid]
    hit_counts = [sum(run in known for run in document) for document in runs]
    shares = [hits / len(document) if document else 0.0 for hits, document in zip(hit_counts, runs, strict=True)]
    order = sorted(range(len(valid)), key=lambda i: (-shares[i], i))
    worst = [(i, len(runs[i]), shares[i]) for i in order if hit_counts[i]][: overlap.WORST]
    total = sum(map(len, runs))
    return {
        "documents": len(valid),
        "short": sum(not document for document in runs),
        "ngrams": total,
        "found": sum(hit_counts),
        "share": sum(hit_counts) / total if total else 0.0,
        "above": sum(share > max_share for share in shares),
        "worst": worst,
    }


class Bar:
    """Counts what a progress bar would show."""

    done = 0

    def update(self, n: int) -> None:
        self.done += n


def measured(folder: Path, model: Path, sources: dict[str, list[str]], n: int, max_share: float) -> list[Overlap]:
    """Sources named <x>_valid are held out, the others are trained on."""
    t, bar = Tokenizer(model), Bar()
    for name, texts in sources.items():
        write_dataset(folder / name, texts, t)
    data = {name: IndexedDataset(folder / name) for name in sources}
    trained = {name: one for name, one in data.items() if not name.endswith("_valid")}
    held_out = {name: one for name, one in data.items() if name.endswith("_valid")}
    results = overlap.overlaps(trained, held_out, t, n, max_share, folder, 1, bar)
    assert bar.done == sum(one.n_tokens for one in trained.values())
    return results


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    *(st.lists(TEXT.filter(bool), min_size=1, max_size=5) for _ in range(4)),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_against_sets_of_tuples(
    tmp_path_factory: pytest.TempPathFactory,
    model: Path,
    a: list[str],
    b: list[str],
    a_valid: list[str],
    c_valid: list[str],
    n: int,
    max_share: float,
) -> None:
    held_out = {"a_valid": a_valid, "c_valid": c_valid}
    assume(any(plain_ngrams(text, n) for text in a_valid + c_valid))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "STRETCH", 40)
        patch.setattr(overlap, "TOGETHER", 25)
        patch.setattr(overlap, "WORST", 3)
        patch.setattr(overlap, "SIEVE_BITS", 1)  # nearly nothing is sieved out: the search must tell
        results = measured(tmp_path_factory.mktemp("sets"), model, {"a": a, "b": b} | held_out, n, max_share)
        trained = {"a": a, "b": b, None: a + b}
        assert [(one.source, one.held_out) for one in results] == [(s, h) for s in trained for h in held_out]
        for one in results:
            texts, held = trained[one.source], held_out[one.held_out]
            expected = plain_overlap(texts, held, n, max_share)
            worst = expected.pop("worst")
            assert {key: getattr(one, key) for key in expected} == expected
            assert [(w.document, w.ngrams, w.share) for w in one.worst] == worst
            first = {run: i for i in reversed(range(len(texts))) for run in plain_ngrams(texts[i], n)}
            for w in one.worst:
                counts = Counter(first[run] for run in plain_ngrams(held[w.document], n) if run in first)
                most = min(i for i in counts if counts[i] == max(counts.values()))
                assert w.most == (None if one.source is None else most)


LONG = "it was the best of times it was the worst of times it was the age of wisdom it was the age of foolishness"


def test_a_leaked_document_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = " ".join(f"word{i}" for i in range(60))
    train = [other, "nothing", f"Chapter 1. {LONG.upper()}!", LONG]
    half = " ".join(other.split()[:20]) + " x" * 30
    sources = {"books": Made(train, ["too short", half]), "set": Made([], ["short", f"“{LONG}”"])}
    record = report(tmp_path, sources)
    assert (record["ngram"], record["max_share"]) == (13, 0.3)
    by_set = {one["held_out"]: one for one in record["overlaps"] if one["source"] == "books"}
    assert (by_set["books_valid"]["found"], by_set["books_valid"]["short"], by_set["books_valid"]["above"]) == (8, 1, 0)
    runs = len(LONG.split()) - 12
    assert [by_set["set_valid"][key] for key in ("found", "ngrams", "above")] == [runs, runs, 1]
    assert by_set["set_valid"]["worst"] == [{"document": 1, "ngrams": runs, "share": 1.0, "most": 2}]
    out = capsys.readouterr().out
    first = r"set_valid 1 \(b\.jsonl\.gz:2\) +100\.00 % +\d+ +books_train 2 \(a\.jsonl:3\)"
    assert re.search(first + r"\nbooks_valid 1 \(b\.jsonl\.gz:2\) +21\.05 % ", out)
    assert re.search(r"set_valid +2 +1 +\d+ +100\.00 % +1 +books 100\.00 %", out)
    assert max(map(len, out.partition("All of it")[0].splitlines())) <= 120
    folder = tmp_path / "tiny" / "report"
    assert "books_train 2 (a.jsonl:3)" in (folder / "leakage.md").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["leakage.json", "leakage.md"]


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(["a", "b", "c"], 40)) for _ in range(30)]
    sources = {"a": Made(texts[:14], texts[20:25]), "b": Made(texts[14:20], texts[25:] + texts[:1])}
    words = ("leakage.ngram=6",)
    alone = report(tmp_path / "1", sources, *words)
    assert report(tmp_path / "2", sources, *words, "work.workers=2") == alone
    assert any(0 < one["share"] < 1 for one in alone["overlaps"])


def test_further_sets(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t = Tokenizer(model)
    for folder in ("x" * 90, "y" * 90):
        (tmp_path / folder).mkdir()
        write_dataset(tmp_path / folder / "exam", [LONG, LONG], t)
    prefixes = [str(tmp_path / folder / "exam") for folder in ("x" * 90, "y" * 90)]
    record = report(tmp_path, {"a": Made([LONG])}, f"leakage.against={json.dumps(prefixes)}")
    assert [(one["source"], one["held_out"], one["above"]) for one in record["overlaps"][:2]] == [
        ("a", "exam", 2),
        ("a", prefixes[1], 2),
    ]
    assert re.search(r"\nexam 0 +100\.00 % .* a_train 0 \(a\.jsonl:1\)", capsys.readouterr().out)


def test_what_cannot_be_compared_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(sources: dict[str, Made], *words: str) -> str:
        make(tmp_path, sources)
        arguments = ["leakage", "--config-dir", str(tmp_path / "choices"), "corpus=tiny", *words]
        assert main(arguments) == 3
        assert not list((tmp_path / "tiny").glob("report/.*"))
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    assert error({"a": Made([LONG])}).startswith("E-TOK-24")
    (tmp_path / "tiny" / "a_train.bin").unlink()
    assert error({"a": Made([], [LONG])}).startswith("E-TOK-24")
    assert re.match("E-TOK-17 a_valid: .* 13 ", error({"a": Made([LONG], ["too short"])}))
    both = {"a": Made([LONG], [LONG])}
    assert error(both, f"leakage.against=[{tmp_path / 'none'}]").startswith("E-TOK-01")
    other = Tokenizer(trained(tmp_path / "other" / "tokenizer.model", 700))
    write_dataset(tmp_path / "other" / "set", [LONG + " \ueeee"], other)
    against = f"leakage.against=[{tmp_path / 'other' / 'set'}]"
    (tmp_path / "other" / "manifest.json").write_text(
        json.dumps({"kind": "corpus", "tokenizer": {"sha256": other.digest}})
    )
    assert re.match(rf"E-TOK-11 .*other/set .*{other.digest[:16]}", error(both, against))
    (tmp_path / "other" / "manifest.json").unlink()
    with IndexedWriter(tmp_path / "other" / "set", np.uint16) as writer:
        writer.add_document([5] * (1 << 20))
        writer.add_document([699, 2])
    assert re.match("E-TOK-09 .*699.* 600", error(both, against))
    (tmp_path / "tiny" / "manifest.json").unlink()
    assert main(["leakage", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]) == 3
    assert re.match(r"E-TOK-23 .* python -m data_prep tokenize", capsys.readouterr().err)
