"""The text a vocabulary is trained on, and its training."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.config.corpus_schema import GroupConfig, PrepareConfig
from coca_train.data.corpus_config import load
from coca_train.data.tokenizer import Tokenizer
from coca_train.data.tokenizer_backends import SentencePiece
from coca_train.runtime.errors import DataError
from data_prep.selection import digest_of
from data_prep.tokenizer_files import MAX_LINE_BYTES, lines, short_lines, train, train_tokenizer
from data_prep.verbs import tokenizer as sample
from data_prep.verbs.tokenizer import LowestPriorities, draw, shares
from tests.data.vocabularies import TEXT

WORDS = "the quick brown fox jumps over thirteen lazy dogs and never looks back at what it has left behind".split(" ")  # noqa: SIM905


def text_of(number: int, n_words: int = 30) -> str:
    return f"{number}: " + " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(n_words))


def corpus(folder: Path, sources: dict[str, dict[str, Any]], n_bytes: int = 10_000, **work: Any) -> PrepareConfig:
    """A configuration of sources below folder/raw; `sources`: what differs from the defaults, by name."""
    base = load(["corpus.sources.text.files=[x.jsonl]"])
    template = base.corpus.sources["text"]
    source_configs = {
        name: replace(template, files=[str(folder / "raw" / f"{name}-*.jsonl")], hold_out="none", **changes)
        if "hold_out" not in changes
        else replace(template, files=[str(folder / "raw" / f"{name}-*.jsonl")], **changes)
        for name, changes in sources.items()
    }
    groups = {source.group for source in source_configs.values()}
    return replace(
        base,
        corpus=replace(base.corpus, name="tiny", dir=str(folder / "corpus"), sources=source_configs, valid_share=0.3),
        tokenizer=replace(base.tokenizer, path=str(folder / "tokenizer.model"), sample_bytes=n_bytes, vocab_size=512),
        work=replace(base.work, progress_bar=False, chunk_bytes=4096, **work),
        mix=replace(base.mix, groups={group: GroupConfig(share=1.0) for group in groups}),
    )


def write(folder: Path, name: str, texts: Iterable[str], number: int = 0) -> None:
    path = folder / "raw" / f"{name}-{number:03d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def drawn_texts(config: PrepareConfig) -> dict[str, list[str]]:
    return {one.source: list(one.kept.texts()) for one in draw(config)}


def test_shares_are_those_of_the_mixture(tmp_path: Path) -> None:
    sources: dict[str, dict[str, Any]] = {
        "books": {"group": "text", "weight": 3.0},
        "web": {"group": "text", "weight": 1.0},
        "python": {"group": "code"},
        "c": {"group": "code"},
        "test": {"group": "code", "hold_out": "all"},
    }
    config = corpus(tmp_path, sources, 40_000)
    groups = {"text": GroupConfig(share=3.0), "code": GroupConfig(share=1.0)}
    config = replace(config, mix=replace(config.mix, groups=groups))
    expected = {"books": 0.5625, "web": 0.1875, "python": 0.125, "c": 0.125}
    assert shares(config) == pytest.approx(expected)
    for name in sources:
        write(tmp_path, name, [f"{name} {text_of(i)}" for i in range(400)])
    by_source = {one.source: one for one in draw(config)}
    assert list(by_source) == sorted(expected)
    for name, one in by_source.items():
        assert one.kept.target_bytes == round(expected[name] * 40_000)
        assert one.kept.target_bytes <= one.kept.n_bytes < one.kept.target_bytes + 300
        assert one.kept.n_bytes == sum(len(text.encode()) for text in one.kept.texts())
        assert all(text.startswith(name) for text in one.kept.texts())
        assert one.n_documents == 400 and one.n_bytes == sum(len(f"{name} {text_of(i)}") for i in range(400))


def test_the_same_documents_give_the_same_sample(tmp_path: Path) -> None:
    """In whatever order, files and chunks they stand, and however often."""
    texts = [text_of(i) for i in range(300)]
    write(tmp_path / "a", "x", texts)
    for number in range(3):
        write(tmp_path / "b", "x", [*texts[::-1][number::3], *texts[:40]], number)
    first = drawn_texts(corpus(tmp_path / "a", {"x": {}}))
    assert first == drawn_texts(corpus(tmp_path / "b", {"x": {}}))
    assert len(set(first["x"])) == len(first["x"]) > 40
    assert first["x"] != sorted(first["x"], key=texts.index)


def test_what_is_drawn_is_spread(tmp_path: Path) -> None:
    """Not the beginning of the source: each third gives about a third."""
    write(tmp_path, "x", [text_of(i) for i in range(1200)])
    numbers = [int(text.split(":")[0]) for text in drawn_texts(corpus(tmp_path, {"x": {}}, 60_000))["x"]]
    counts = [sum(low <= n < low + 400 for n in numbers) for low in (0, 400, 800)]
    assert min(counts) > 0.25 * len(numbers), counts


def test_held_out_documents_are_not_in_it(tmp_path: Path) -> None:
    texts = [text_of(i) for i in range(200)]
    write(tmp_path, "x", texts)
    write(tmp_path, "eval", texts[:50])
    config = corpus(tmp_path, {"x": {"hold_out": "hash"}, "eval": {"hold_out": "all"}}, 10**6)
    (source_sample,) = draw(config)
    held_out = {t for t in texts if int.from_bytes(digest_of(t)[:8], "big") / 2**64 < 0.3} | set(texts[:50])
    assert 50 < len(held_out) < 150
    assert set(source_sample.kept.texts()) == set(texts) - held_out
    assert source_sample.left_out == {"held out": len(held_out)}


def test_rules_apply(tmp_path: Path) -> None:
    write(tmp_path, "x", ["", "  ", "short", *[text_of(i) for i in range(20)]])
    config = corpus(tmp_path, {"x": {}})
    source = config.corpus.sources["x"]
    source = replace(source, filter=replace(source.filter, min_chars=20))
    (source_sample,) = draw(replace(config, corpus=replace(config.corpus, sources={"x": source})))
    assert source_sample.left_out == {"empty": 2, "short": 1}
    assert (source_sample.n_documents, len(list(source_sample.kept.texts()))) == (20, 20)


def test_bad_documents(tmp_path: Path) -> None:
    for name in ("x", "eval"):
        write(tmp_path, name, [text_of(i) for i in range(20)])
        with open(tmp_path / "raw" / f"{name}-000.jsonl", "a", encoding="utf-8") as file:
            file.write("{broken\n")
    only = {"x": {}}
    with pytest.raises(DataError, match=r"E-RAW-04 .*x-000\.jsonl:21"):
        draw(corpus(tmp_path, only))
    (source_sample,) = draw(corpus(tmp_path, only, on_error="skip"))
    assert source_sample.left_out == {"rejected": 1}
    both = {"y": {}, "eval": {"hold_out": "all"}}
    write(tmp_path, "y", [text_of(30)])
    with pytest.raises(DataError, match=r"E-RAW-04 .*eval-000\.jsonl:21"):
        draw(corpus(tmp_path, both))
    assert draw(corpus(tmp_path, both, on_error="skip"))[0].n_documents == 1


def test_no_text_at_all(tmp_path: Path) -> None:
    write(tmp_path, "x", [" "])
    with pytest.raises(DataError, match=r"E-TKN-07 .*\(x\) hold no text"):
        draw(corpus(tmp_path, {"x": {}}))


def test_a_long_document_is_drawn_in_stretches(tmp_path: Path) -> None:
    """A single book does not fill the sample as a whole, and all of it is there when there is room."""
    book = "\n".join(text_of(i) for i in range(3000))
    write(tmp_path, "x", [book])
    (source_sample,) = draw(corpus(tmp_path, {"x": {}}, 40_000))
    assert 40_000 <= source_sample.kept.n_bytes < 40_000 + sample.STRETCH
    stretches = list(source_sample.kept.texts())
    assert all(len(text) <= sample.STRETCH and text in book for text in stretches)
    (whole,) = draw(corpus(tmp_path, {"x": {}}, 10**6))
    assert sorted(map(len, whole.kept.texts()))[-1] == sample.STRETCH
    assert whole.kept.n_bytes == len(book)


def test_a_large_source_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every input the beginning, READ_FACTOR times what is needed in all; on and on where a rule leaves much out."""
    monkeypatch.setattr(sample, "READ_FACTOR", 3)
    for number in range(4):
        write(tmp_path, "x", [f"file {number} {text_of(i)}" for i in range(1000)], number)
    (source_sample,) = draw(corpus(tmp_path, {"x": {}}, 20_000))
    assert 60_000 <= source_sample.n_read < 60_000 + 4 * 8192
    assert {text.split()[1] for text in source_sample.kept.texts()} == {"0", "1", "2", "3"}
    config = corpus(tmp_path, {"x": {}}, 20_000)
    source = config.corpus.sources["x"]
    source = replace(source, filter=replace(source.filter, min_chars=185))
    (source_sample,) = draw(replace(config, corpus=replace(config.corpus, sources={"x": source})))
    assert source_sample.left_out["short"] > 3 * source_sample.n_documents
    assert source_sample.n_read > 80_000 and source_sample.kept.n_bytes >= 20_000


def test_inputs_beyond_the_spread_are_read_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SPREAD", 2)
    monkeypatch.setattr(sample, "READ_FACTOR", 1)
    for number in range(6):
        write(tmp_path, "x", [f"file {number} {text_of(i)}" for i in range(20)], number)
    (source_sample,) = draw(corpus(tmp_path, {"x": {}}, 10_000))
    assert source_sample.kept.n_bytes >= 10_000
    assert 10_000 < source_sample.n_read < 20_000
    for number in range(6):
        write(tmp_path, "y", [f"file {number} {text_of(i)}" for i in range(100)], number)
    (source_sample,) = draw(corpus(tmp_path, {"y": {}}, 10_000))
    assert len({text.split()[1] for text in source_sample.kept.texts()}) == 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=60), st.integers(1, 60))
def test_the_lowest_are_kept(offers: list[tuple[int, int]], wanted: int) -> None:
    """Against sorting everything. A priority always comes with the same text."""
    sizes = dict(offers)
    kept, total, expected = LowestPriorities(wanted), 0, []
    for priority, _ in offers:
        kept.offer(priority, "x" * sizes[priority])
    for priority in sorted(sizes):
        if total >= wanted:
            break
        expected.append("x" * sizes[priority])
        total += sizes[priority]
    assert list(kept.texts()) == expected
    assert kept.n_bytes == total
    assert len(kept._priorities) == len(expected), "what is dropped is forgotten"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["word ", "漢" * 700, "x" * 3000, "\n", " ", "🙂" * 999, "é"]), max_size=20))
def test_short_lines_lose_no_character_and_fit_the_trainer(parts: list[str]) -> None:
    text = "".join(parts)
    cut = list(short_lines([text]))
    assert "".join(cut) == text.replace("\n", "")
    assert all(len(line.encode()) <= MAX_LINE_BYTES for line in cut)
    assert list(lines(cut)) == [line for line in cut if line.strip()]


def test_lines_are_cut_before_spaces() -> None:
    assert set(map(len, " ".join(short_lines(["word " * 2000])).split())) == {4}


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_training_is_the_same_every_time(model_type: str) -> None:
    models = [train([TEXT], "x", 512, model_type, threads=16) for _ in range(2)]
    assert models[0] == models[1]


def test_merges_do_not_depend_on_threads(tmp_path: Path) -> None:
    """Only the number itself is written into the model; so a fixed one gives the same bytes on every machine."""
    vocabularies = []
    for threads in (1, 3, 16):
        model = sentencepiece.SentencePieceProcessor(model_proto=train([TEXT], "x", 512, threads=threads))
        vocabularies.append([(model.id_to_piece(i), model.get_score(i)) for i in range(512)])
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [True, False])
def test_settings_of_the_trainer(tmp_path: Path, model_type: str, byte_fallback: bool) -> None:
    path = tmp_path / "x.model"
    size = 600 if byte_fallback else 512
    path.write_bytes(
        train([TEXT, Path(__file__).read_text(encoding="utf-8")], "x", size, model_type, 1.0, byte_fallback)
    )
    tokenizer = Tokenizer(path)
    assert (tokenizer.vocab_size, tokenizer.lossless) == (size, byte_fallback)
    facts = SentencePiece(path.read_bytes()).facts
    assert facts.algorithm == {"unigram": 1, "bpe": 2}[model_type]
    assert (tokenizer.decode(tokenizer.encode(TEXT + "\u0378")) == TEXT + "\u0378") == byte_fallback


def test_coverage(tmp_path: Path) -> None:
    """Characters beyond the coverage have no pieces of their own."""
    text = "abc\n" * 3000 + "§" + TEXT

    def pieces(coverage: float) -> set[str]:
        model = sentencepiece.SentencePieceProcessor(model_proto=train([text], "x", 512, character_coverage=coverage))
        return {model.id_to_piece(i) for i in range(model.get_piece_size())}

    assert "§" in pieces(1.0)
    assert "§" not in pieces(0.99)


def test_the_quickstarts_vocabulary_is_the_same_as_before(tmp_path: Path) -> None:
    train_tokenizer([TEXT], tmp_path / "x.model", 512)
    assert (tmp_path / "x.model").read_bytes() == train([TEXT], "x", 512, "bpe", 0.9995, True, 1)
