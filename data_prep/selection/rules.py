"""Which documents of a source are kept (length, language, licence, stars, quality), and which of them are held out."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coca_train.runtime.errors import UserError
from data_prep.readers.base import Document, field
from data_prep.schema import CorpusConfig, CorpusSourceConfig, FilterConfig


class Rules:
    """The rules of one source, in the order they are asked: the first that refuses a document names why.

    A document without the field a rule looks at (missing, null or of another type) is left out as `<rule> unknown`:
    what is not known to be allowed is not used.
    """

    def __init__(self, filter: FilterConfig) -> None:
        """Raises UserError E-RAW-23 for values without the field they are compared with, 25 without datatrove."""
        self.filter = filter
        self.languages = frozenset(filter.languages) if _asked(filter, "languages", "language_field") else None
        self.licences = frozenset(filter.licences) if _asked(filter, "licences", "licence_field") else None
        self.stars = _asked(filter, "min_stars", "stars_field")
        self.quality: list[Callable[[str], str | None]] = []
        if filter.quality:
            from data_prep.selection.quality import quality_filters  # datatrove, an extra

            self.quality = quality_filters(filter.quality)

    def refuses(self, document: Document) -> str | None:
        """Name of the rule that leaves a document out; None = it is kept."""
        text = document.text
        if not text or text.isspace():
            return "empty"
        if len(text) < self.filter.min_chars:
            return "short"
        if self.filter.max_chars is not None and len(text) > self.filter.max_chars:
            return "long"
        refused = self._refuses_fields(document.fields)
        for ask in self.quality:
            if refused:
                break
            refused = ask(text)
        return refused

    def _refuses_fields(self, record: dict[str, Any]) -> str | None:
        if self.languages is not None:
            values = _names(record, self.filter.language_field)
            if not values:
                return "language unknown"
            if not self.languages.intersection(values):
                return "language"
        if self.licences is not None:
            values = _names(record, self.filter.licence_field)
            if not values:
                return "licence unknown"
            if not self.licences.issuperset(values):
                return "licence"
        if self.stars:
            stars = _value(record, self.filter.stars_field)
            if isinstance(stars, bool) or not isinstance(stars, int | float) or stars != stars:
                return "stars unknown"
            if stars < self.filter.min_stars:
                return "stars"
        return None


def _asked(filter: FilterConfig, values: str, name: str) -> bool:
    """Whether a rule is on: it has values and a field. Values without a field would silently keep everything."""
    if getattr(filter, values) and getattr(filter, name) is None:
        raise UserError(
            f"E-RAW-23 filter.{values}: is {getattr(filter, values)!r}, but filter.{name} is null; the field that "
            f"holds it is needed. Fix: set filter.{name}"
        )
    return bool(getattr(filter, values))


def _value(record: dict[str, Any], name: str | None) -> Any:
    """Value of a dotted field; None when there is none."""
    try:
        return None if name is None else field(record, name)
    except KeyError:
        return None


def _names(record: dict[str, Any], name: str | None) -> list[str]:
    """Text or a list of texts as a list; empty when it is neither."""
    value = _value(record, name)
    names = [value] if isinstance(value, str) else value
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else []


def digest_of(text: str) -> bytes:
    """BLAKE2b-128 of a text as UTF-8: what two documents with the same text share."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def split_of(digest: bytes, source: CorpusSourceConfig, valid_share: float) -> int:
    """0: trained on, 1: held out. Nothing but the text decides under hold_out=hash, so no document ever moves.

    digest: `digest_of` the text. A larger valid_share holds out all that a smaller one does, and more.
    """
    if source.hold_out != "hash":
        return int(source.hold_out == "all")
    return int(int.from_bytes(digest[:8], "big") < valid_share * 2.0**64)


class Piece(NamedTuple):
    """A document, or the part of a long text that becomes one. split: as `split_of` says."""

    text: str
    digest: bytes
    split: int


def pieces(text: str, source: CorpusSourceConfig, corpus: CorpusConfig) -> list[Piece]:
    """What a text becomes: itself, or where it is long its held-out stretches (corpus.valid_characters) and what lies
    between them, in order."""
    share = corpus.valid_share
    assert share is not None  # fitted
    parts: list[str] = []
    found: list[Piece] = []
    for stretch in stretches(text, source, corpus.valid_characters):
        digest = digest_of(stretch)
        if split_of(digest, source, share):
            found += [*_trained(parts), Piece(stretch, digest, 1)]
            parts = []
        else:
            parts.append(stretch)
    return [*found, *_trained(parts)]


def _trained(parts: list[str]) -> list[Piece]:
    text = "".join(parts)
    return [Piece(text, digest_of(text), 0)] if parts else []


def stretches(text: str, source: CorpusSourceConfig, length: int | None) -> Iterator[str]:
    """A text in parts of which each is held out or not: all of it, or of a long one stretches of about `length`
    characters, cut where a paragraph ends, a line or a word."""
    begin = 0
    if length is not None and source.hold_out == "hash":
        while len(text) - begin > 2 * length:
            end = _cut(text, begin + length, begin + length + length // 4)
            yield text[begin:end]
            begin = end
    yield text[begin:]


def _cut(text: str, first: int, last: int) -> int:
    for mark in ("\n\n", "\n", " "):
        if (at := text.find(mark, first, last)) >= 0:
            return at + len(mark)
    return first
