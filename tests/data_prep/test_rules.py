"""Which documents are kept, and under which name the others are counted."""

from dataclasses import replace
from typing import Any

import pytest

from coca_train.data.readers.base import Document
from coca_train.runtime.errors import UserError
from data_prep.selection import Rules
from tests.data_prep.reading import FILTER


def refused(text: str = "some text", fields: dict[str, Any] | None = None, **rules: Any) -> str | None:
    return Rules(replace(FILTER, **rules)).refuses(Document(1, text, None, fields or {}))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "empty"),
        (" \n\t\u3000", "empty"),
        ("abc", "short"),
        ("abcd", None),
        ("abcdef", None),
        ("abcdefg", "long"),
        ("éééé", None),
    ],
)
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

    def quality_filters(names: list[str]) -> list[Any]:
        def ask(name: str, text: str) -> str | None:
            calls.append(name)
            return name if "bad" in text else None

        return [lambda text, name=name: ask(name, text) for name in names]

    monkeypatch.setattr("data_prep.selection.quality_filters", quality_filters)
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
