"""Word by word gives the ids of the whole text, wherever that is done; and it is not done where it would differ."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data import tokenizer_backends
from coca_train.data.tokenizer import Tokenizer
from coca_train.data.tokenizer_backends import SIGNS, ModelFacts, SentencePiece, WordCache, fields, word_pattern
from tests.data.vocabularies import TEXT, sentencepiece_model

ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)  # control characters, NUL and U+2581 among them
SPACED = [
    "\n",
    "\n\n\n\n",
    " ",
    " " * 9,
    "\t",
    "\r\n",
    "\0",
    "\u2581",
    " the",
    "the\n",
    "\x0b",
    "\x85",
    "\u2028",
    "    return",
]
PIECES = ["quick", ";", "13", "“often”", "é", "漢", "\u0301", "</s>", "<s>", "<unk>", "<0x0A>", "def", "_", "("]
HARD = st.sampled_from(SPACED + PIECES)
TEXTS = st.lists(st.one_of(HARD, ANY), max_size=40).map("".join)
SPLIT = {"split_by_unicode_script": False}
# name -> (settings, whether words are encoded alone)
MODELS: dict[str, tuple[dict[str, Any], bool]] = {
    "as trained here": ({}, True),
    "mixed scripts": (SPLIT | {"vocab_size": 600}, True),
    "newline is a byte": ({"user_defined_symbols": []}, True),
    "own symbols": ({"user_defined_symbols": ["\n", "\t", "quick;", "<x>"]}, True),
    "unigram": ({"model_type": "unigram"}, False),
    "character": ({"model_type": "char"}, False),
    "no bytes": ({"byte_fallback": False}, False),
    "space in front": ({"add_dummy_prefix": True}, False),
    "spaces removed": ({"remove_extra_whitespaces": True}, False),
    "normalised": ({"normalization_rule_name": "nmt_nfkc"}, False),
    "pieces over spaces": ({"split_by_whitespace": False}, False),
    "spaces behind": ({"treat_whitespace_as_suffix": True}, False),
    "symbol over lines": ({"user_defined_symbols": ["\n", "a\nb"]}, False),
    "symbol over words": ({"user_defined_symbols": ["\n", "a b"]}, False),
    "lines in pairs": ({"user_defined_symbols": ["\n", "\n\n"]}, False),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any, bool]:
    """Our tokenizer, the bare library, and whether words are to be encoded alone."""
    settings, by_words = MODELS[request.param]
    path = sentencepiece_model(tmp_path_factory.mktemp("model") / "x.model", **settings)
    return Tokenizer(path), sentencepiece.SentencePieceProcessor(model_file=str(path)), by_words


def by_the_library(case: tuple[Tokenizer, Any, bool], text: str) -> list[int]:
    """What the library says. It takes U+2581 for a space; where no text is to be lost, its three bytes stand for it."""
    ours, library, _ = case
    if not ours.lossless:
        return library.encode(text)
    first, *others = text.split("\u2581")
    bar = [library.piece_to_id(piece) for piece in ("<0xE2>", "<0x96>", "<0x81>")]
    return sum((bar + library.encode(part) for part in others), library.encode(first))


def test_where_words_are_encoded_alone(case: tuple[Tokenizer, Any, bool]) -> None:
    backend = case[0]._backend
    assert isinstance(backend, SentencePiece)
    assert (backend.words is not None) == case[2]


@settings(max_examples=60, deadline=None)  # of each of the models
@given(TEXTS)
def test_the_ids_are_those_of_the_library(case: tuple[Tokenizer, Any, bool], text: str) -> None:
    ours, expected = case[0], by_the_library(case, text)
    assert ours.encode(text) == expected
    assert ours.encode_array(text).tolist() == expected
    assert ours.encode_batch([text, text], num_threads=1) == [expected, expected]


@pytest.mark.parametrize(
    "text", ["", "\n" * 999, " " * 999, "\u2581 \u2581", TEXT * 9, "x" * 5000, "\n \n" * 500, "\0" * 9]
)
def test_long_and_odd_texts(case: tuple[Tokenizer, Any, bool], text: str) -> None:
    assert case[0].encode(text) == by_the_library(case, text)


def test_what_is_forgotten_changes_nothing(case: tuple[Tokenizer, Any, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, library, by_words = case
    monkeypatch.setattr(tokenizer_backends, "MOST_KEPT", 5)
    monkeypatch.setattr(tokenizer_backends, "LONGEST_KEPT", 6)
    monkeypatch.setattr(tokenizer_backends, "LONG_TEXT", 50)
    monkeypatch.setattr(tokenizer_backends, "WORDS_AT_A_TIME", 7)
    assert ours.encode(TEXT) == library.encode(TEXT)
    if by_words:
        assert isinstance(ours._backend, SentencePiece) and ours._backend.words is not None
        ours._backend.words.clear()
        ours.encode(TEXT)
        assert 0 < len(ours._backend.words) <= 5
        assert max(map(len, ours._backend.words)) <= 6


def test_a_word_is_encoded_once() -> None:
    calls = []
    pattern = word_pattern(["the"])
    assert pattern is not None
    kept = WordCache(lambda word: calls.append(word) or [len(word)], pattern, tokenizer_backends.np.dtype("uint16"))  # type: ignore[func-returns-value]
    assert kept.encode_text("the fox, the fox\n the fox").tolist() == [3, 4, 1, 4, 4, 1, 4, 4]
    assert calls == ["the", " fox", ",", " the", "\n"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab1;é \u2581\n", min_size=1, max_size=4), max_size=6), st.text("ab1;é \u2581\n", max_size=30))
def test_no_piece_reaches_over_a_border(pieces: list[str], text: str) -> None:
    """Whatever the vocabulary: a piece that occurs in a text lies within one word, and no character is lost."""
    pattern = word_pattern(pieces)
    if pattern is None:
        return
    words = pattern.findall(text)
    assert "".join(words) == text and all(words)
    borders = {sum(map(len, words[:i])) for i in range(1, len(words))}
    for piece in pieces:
        for match in re.finditer(f"(?={re.escape(piece)})", text):
            assert not any(match.start() < border < match.start() + len(piece) for border in borders), piece


@pytest.mark.parametrize("piece", ["a b", "a\u2581b", "a\u2581", "\nb", "b\n", "\n\n", "\n\u2581", " \n"])
def test_pieces_that_join_words(piece: str) -> None:
    assert word_pattern(["a", piece]) is None


def test_signs_are_what_pieces_join_to_signs() -> None:
    pattern = word_pattern(["€(", "€£", "the", "\u2581\u2581the"])
    assert pattern is not None
    assert pattern.findall("a€£b§c") == ["a", "€£", "b§c"]
    assert SIGNS.isdisjoint("aZ é\n ")


def test_memory_of_a_long_text_is_not_that_of_its_words(tmp_path: Path) -> None:
    """Words as texts and in a list to be joined would take 140 bytes each; the ids take 2 or 4."""
    tokenizer = Tokenizer(sentencepiece_model(tmp_path / "x.model"))
    text = "the fox; " * 150_000
    tokenizer.encode_array(text)
    tracemalloc.start()
    tokenizer.encode_array(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(text)


def test_facts_are_what_the_library_wrote(case: tuple[Tokenizer, Any, bool]) -> None:
    """Held against the generated protobuf classes, where protobuf is installed."""
    pytest.importorskip("google.protobuf")
    from sentencepiece import sentencepiece_model_pb2

    library = case[1]
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(library.serialized_model_proto())
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    untouched = not (
        normalizer.add_dummy_prefix or normalizer.remove_extra_whitespaces or normalizer.precompiled_charsmap
    )
    assert ModelFacts.of(library.serialized_model_proto()) == ModelFacts(
        trainer.model_type, trainer.byte_fallback, untouched
    )


def test_fields_of_every_wire_type() -> None:
    message = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + b"\x98\x02\x01"
    assert list(fields(message)) == [(1, 150), (2, b"hi"), (3, bytes(8)), (4, bytes(4)), (35, 1)]


@pytest.mark.parametrize("section", [b"", b"\x12\x00\x1a\x00", b"\x12\x02\x18\x02\x1a\x02\x18\x00"])
def test_what_is_not_said_is_not_taken_for_granted(section: bytes) -> None:
    """Defaults of the format: unigram, no bytes, a space in front, extra spaces removed."""
    facts = ModelFacts.of(section)
    assert not facts.byte_fallback and not facts.changes_nothing
    assert facts.algorithm == (2 if b"\x18\x02" in section else 1)


def test_a_text_changed_when_decoded_is_a_change() -> None:
    untouched = b"\x1a\x04\x18\x00\x20\x00"
    assert ModelFacts.of(untouched).changes_nothing
    assert not ModelFacts.of(untouched + b"\x2a\x03\x12\x01x").changes_nothing
    assert not ModelFacts.of(b"\x1a\x07\x12\x01x\x18\x00\x20\x00").changes_nothing
