"""Which documents are kept, under which name the others are counted, and which are held out."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coca_train.data.readers.base import Document
from coca_train.runtime.errors import UserError
from coca_train.statistics import answers
from data_prep import fitting
from data_prep.selection import FILTERS, Rules, digest_of, quality_filter, split_of
from tests.data_prep.reading import FILTER, SOURCE


def refused(text: str = "some text", fields: dict[str, Any] | None = None, **rules: Any) -> str | None:
    return Rules(replace(FILTER, **rules)).refuses(Document(1, text, None, fields or {}))


LENGTHS = {
    "": "empty",
    " \n\t\u3000": "empty",
    "abc": "short",
    "abcd": None,
    "abcdef": None,
    "abcdefg": "long",
    "éééé": None,
}


@pytest.mark.parametrize(("text", "name"), LENGTHS.items())
def test_length_in_characters(text: str, name: str | None) -> None:
    assert refused(text, min_chars=4, max_chars=6) == name


def test_without_rules() -> None:
    assert refused("x") is None and refused("x" * 10**6) is None and refused(" ") == "empty"


@pytest.mark.parametrize(
    ("language", "name"),
    [
        ("en", None),
        ("de", None),
        ("fr", "language"),
        ("EN", "language"),
        ("", "language"),
        (["fr", "de"], None),
        (["fr"], "language"),
        ([], "language unknown"),
        (None, "language unknown"),
        (3, "language unknown"),
        (["en", None], "language unknown"),
        ({"en": 1}, "language unknown"),
    ],
)
def test_language(language: Any, name: str | None) -> None:
    """Any language of a list counts."""
    rules = {"language_field": "meta.lang", "languages": ["en", "de"]}
    assert refused(fields={"meta": {"lang": language}}, **rules) == name
    for fields in ({}, {"meta": None}, {"meta": "en"}, {"meta.lang": "en"}):
        assert refused(fields=fields, **rules) == "language unknown"


@pytest.mark.parametrize(
    ("licence", "name"),
    [
        ("MIT", None),
        ("GPL-3.0", "licence"),
        (["MIT", "BSD"], None),
        (["MIT", "GPL-3.0"], "licence"),
        ([], "licence unknown"),
        (None, "licence unknown"),
        (["MIT", 3], "licence unknown"),
    ],
)
def test_licence(licence: Any, name: str | None) -> None:
    """All licences of a list must be allowed."""
    assert refused(fields={"licence": licence}, licence_field="licence", licences=["MIT", "BSD"]) == name
    assert refused(fields={}, licence_field="licence", licences=["MIT"]) == "licence unknown"


@pytest.mark.parametrize(
    ("stars", "name"),
    [
        (1, None),
        (1.5, None),
        (0, "stars"),
        (-1, "stars"),
        (float("inf"), None),
        (float("nan"), "stars unknown"),
        (None, "stars unknown"),
        (True, "stars unknown"),
        ("7", "stars unknown"),
    ],
)
def test_stars(stars: Any, name: str | None) -> None:
    assert refused(fields={"stars": stars}, stars_field="stars", min_stars=1) == name
    assert refused(fields={}, stars_field="stars", min_stars=1) == "stars unknown"


def test_fields_that_are_not_looked_at() -> None:
    """A field without values keeps everything."""
    assert refused(fields={"stars": -5}, language_field="l", licence_field="l", stars_field="stars") is None


@pytest.mark.parametrize("rules", [{"languages": ["en"]}, {"licences": ["MIT"]}, {"min_stars": 1}])
def test_values_without_a_field(rules: dict[str, Any]) -> None:
    """They would silently keep everything."""
    with pytest.raises(
        UserError, match=rf"E-RAW-23 filter.{next(iter(rules))}: is .* is null; .* Fix: set filter\.\w+_field"
    ):
        Rules(replace(FILTER, **rules))


def test_the_first_rule_gives_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order: empty, short, long, language, licence, stars, quality; quality is not asked in vain."""
    calls: list[str] = []

    def quality_filter(name: str) -> Callable[[str], str | None]:
        def ask(text: str) -> str | None:
            calls.append(name)
            return name if "bad" in text else None

        return ask

    monkeypatch.setattr("data_prep.selection.quality_filter", quality_filter)
    rules: dict[str, Any] = {"min_chars": 3, "max_chars": 20, "quality": ["a", "b"]}
    rules |= {"language_field": "l", "languages": ["en"], "licence_field": "c", "licences": ["MIT"]}
    rules |= {"stars_field": "s", "min_stars": 1}
    fields: dict[str, Any] = {}
    seen = []
    for text, more in [(" ", {}), ("x", {}), ("x" * 21, {}), ("bad", {}), ("bad", {"l": "fr"}), ("bad", {"l": "en"})]:
        fields |= more
        seen.append(refused(text, fields, **rules))
    for more in ({"c": "GPL"}, {"c": "MIT"}, {"s": 0}):
        seen.append(refused("bad", fields := fields | more, **rules))
    assert seen == [
        *("empty", "short", "long", "language unknown", "language"),
        *("licence unknown", "licence", "stars unknown", "stars"),
    ]
    assert calls == []
    assert refused("bad", fields | {"s": 1}, **rules) == "a" and calls == ["a"]
    assert refused("good", fields | {"s": 1}, **rules) is None and calls == ["a", "a", "b"]


PARAGRAPH = "A line of running text that goes on for a while, so that it counts as a paragraph. " * 3
PROSE = """The house stood at the end of the road, behind two old lime trees that nobody had cut back for years.
On Monday a woman from the council came to look at it, and she wrote down everything that was broken.
There were nine windows, she said, and only four of them could still be opened without help.
Her brother had more hope: with a new roof and some paint, the place would be worth a good deal.
They argued about it until the bus came, and then they agreed that somebody else should decide.
In spring the garden was full of birds, which have never cared who owns a house or what it costs.
"""
LINE = "This line is said again and again, to be sure.\n"


def test_a_filter_gives_its_name_or_nothing() -> None:
    pytest.importorskip("datatrove")
    refuses = quality_filter("c4_paragraph")
    assert refuses("one short line") == "c4_paragraph"
    assert refuses("\n".join([PARAGRAPH] * 2)) == "c4_paragraph"
    assert refuses("\n".join([PARAGRAPH] * 3)) is None


def test_no_filters_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datatrove", None)
    assert Rules(FILTER).quality == []


def test_an_unknown_filter_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"^E-RAW-29 filter.quality=gopher: .*gopher_quality.* Fix:"):
        quality_filter("gopher")


@pytest.mark.parametrize("missing", ["datatrove", "loguru"])
def test_a_missing_library_is_reported_in_words(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=rf"^E-RAW-25 filter.quality=c4_paragraph: .*{missing}.*\[quality\]"):
        quality_filter("c4_paragraph")


@pytest.mark.parametrize("name", sorted(set(FILTERS) - {"c4_paragraph"}))
def test_a_missing_word_splitter_is_reported_before_any_document(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words = pytest.importorskip("datatrove.utils.word_tokenizers")

    def not_there(*_: object) -> None:
        raise ImportError("Please install `spacy` to use en word tokenizer (`pip install spacy`).")

    monkeypatch.setattr(words, "load_word_tokenizer", not_there)
    with pytest.raises(UserError, match=rf"^E-RAW-25 filter.quality={name}: .*pip install spacy"):
        quality_filter(name)


SPOILT = {
    "c4_quality": f"{PROSE}lorem ipsum stands here, in the middle of a page.",
    "gopher_quality": "# " * 400,
    "gopher_repetition": LINE * 9,
    "fineweb_quality": "no end of line\n" * 9,
}


@pytest.mark.parametrize("name", SPOILT)
def test_filters_that_need_spacy(name: str) -> None:
    pytest.importorskip("datatrove")
    pytest.importorskip("spacy")
    refuses = quality_filter(name)
    assert refuses(PROSE) is None
    assert refuses(SPOILT[name]) == name
    assert refuses(PROSE) is None  # nothing is remembered from text to text


def test_datatrove_keeps_quiet() -> None:
    pytest.importorskip("datatrove")
    from datatrove.utils.logging import log_pipeline, logger

    messages: list[str] = []
    handler = logger.add(messages.append)
    try:
        logger.enable("datatrove")
        log_pipeline([])
        assert len(messages) == 1
        quality_filter("c4_paragraph")
        log_pipeline([])
        assert len(messages) == 1
    finally:
        logger.remove(handler)


HASHED = replace(SOURCE, hold_out="hash")


def test_the_split_is_written_down():
    """These must never change: corpora that exist were split like this."""
    assert digest_of("a").hex() == "27c35e6e9373877f29e562464e46497e"
    assert digest_of("é").hex() == "d4b1b0202b21bb84e60a3d272ecab0db"
    place = 0x27C35E6E9373877F / 2**64
    assert split_of(digest_of("a"), HASHED, place - 1e-15) == 0
    assert split_of(digest_of("a"), HASHED, place + 1e-15) == 1


@pytest.mark.parametrize(("hold_out", "split"), [("none", 0), ("all", 1)])
def test_sources_that_are_not_split(hold_out, split):
    source = replace(SOURCE, hold_out=hold_out)
    assert {split_of(digest_of(str(i)), source, 0.5) for i in range(50)} == {split}


def test_the_share_is_kept():
    held_out = sum(split_of(digest_of(f"document {i}"), HASHED, 0.05) for i in range(20_000))
    assert abs(held_out - 1000) < 4 * (20_000 * 0.05 * 0.95) ** 0.5


@given(st.text(), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_larger_share_holds_out_more_never_others(text, one, other):
    digest = digest_of(text.encode(errors="replace").decode())
    small, large = sorted((one, other))
    assert split_of(digest, HASHED, small) <= split_of(digest, HASHED, large)
    assert split_of(digest, HASHED, 0.0) == 0


def test_at_least_as_many_documents_are_held_out_as_an_answer_needs() -> None:
    assert fitting.LEAST == answers.LEAST
