"""Which documents of a source are kept (length, language, licence, stars, quality), which are joined, and which of them
are held out."""

import hashlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from coca_train.config.corpus_schema import CorpusConfig, CorpusSourceConfig, FilterConfig
from coca_train.data.readers.base import Document, Reject, field, no_field
from coca_train.runtime.errors import UserError

JOINED = "joined"  # to the document before: counted among what is no document of its own


class Rules:
    """The rules of one source, applied in order: the first that refuses a document names why.

    A document without the field of a rule (missing, null or of another type) is left out as `<rule> unknown`: what is
    not known to be allowed is not used.
    """

    def __init__(self, filter: FilterConfig) -> None:
        """Raises UserError E-RAW-23 for values without the field they are compared with, 25 without datatrove."""
        for values, name in (
            ("languages", "language_field"),
            ("licences", "licence_field"),
            ("min_stars", "stars_field"),
        ):
            if (wanted := getattr(filter, values)) and getattr(filter, name) is None:  # would silently keep everything
                raise UserError(
                    f"E-RAW-23 filter.{values}: is {wanted!r}, but filter.{name} is null; the field that holds it is "
                    f"needed. Fix: set filter.{name}"
                )
        self.filter = filter
        self.languages, self.licences = frozenset(filter.languages), frozenset(filter.licences)
        self.quality = [quality_filter(name) for name in filter.quality]

    def refuses(self, document: Document) -> str | None:
        """Return the name of the rule that leaves a document out; None: it is kept."""
        text = document.text
        if not text or text.isspace():
            return "empty"
        if len(text) < self.filter.min_chars:
            return "short"
        if self.filter.max_chars is not None and len(text) > self.filter.max_chars:
            return "long"
        refused = self._refuses_fields(document.fields)
        return refused or next((name for judge in self.quality if (name := judge(text))), None)

    def _refuses_fields(self, record: Mapping[str, object]) -> str | None:
        if self.languages:
            values = _texts(record, self.filter.language_field)
            if not values:
                return "language unknown"
            if not self.languages.intersection(values):
                return "language"
        if self.licences:
            values = _texts(record, self.filter.licence_field)
            if not values:
                return "licence unknown"
            if not self.licences.issuperset(values):
                return "licence"
        if self.filter.min_stars:
            stars = _value(record, self.filter.stars_field)
            if isinstance(stars, bool) or not isinstance(stars, int | float) or stars != stars:
                return "stars unknown"
            if stars < self.filter.min_stars:
                return "stars"
        return None


def _value(record: Mapping[str, object], name: str | None) -> object:
    """Return the value of a dotted field; None when there is none."""
    try:
        return None if name is None else field(record, name)
    except KeyError:
        return None


def _texts(record: Mapping[str, object], name: str | None) -> list[str]:
    """Return a text or a list of texts as a list; empty when it is neither."""
    value = _value(record, name)
    names = value if isinstance(value, list) else [value]
    texts = [name for name in names if isinstance(name, str)]
    return texts if len(texts) == len(names) else []


def selected(
    items: Iterable[Document | Reject], source: CorpusSourceConfig, rules: Rules
) -> Iterator[Document | Reject | str]:
    """Yield the documents that are kept, those with one value of join_field as one document; rejects; and for each that
    is no document of its own why: the rule that leaves it out, or JOINED."""
    held: list[Document] = []
    value: object = None
    for item in items:
        if isinstance(item, Reject):
            yield item
        elif (rule := rules.refuses(item)) is not None:
            yield rule
        elif source.join_field is None:
            yield item
        else:
            try:
                before, value = value, field(item.fields, source.join_field)
            except KeyError as error:
                yield no_field(item.line, None, error, source.join_field)
                value = None
                continue
            if held and value is not None and value == before:
                yield JOINED
            else:
                yield from _joined(held)
                held = []
            held.append(item)
    yield from _joined(held)


def _joined(documents: Sequence[Document]) -> Iterator[Document]:
    """Yield documents as one: the first one's place and id."""
    if documents:
        texts = (each.text if each.text.endswith("\n") else f"{each.text}\n" for each in documents)
        yield documents[0]._replace(text="\n".join(texts)) if len(documents) > 1 else documents[0]


def digest_of(text: str) -> bytes:
    """Return BLAKE2b-128 of a text as UTF-8: what two documents with the same text share."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def split_of(digest: bytes, source: CorpusSourceConfig, valid_share: float) -> int:
    """Return 0 (trained on) or 1 (held out). Under hold_out=hash the text alone decides, so no document ever moves.

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
    """Split a text: itself, or if it is long its held-out stretches (corpus.valid_characters) and what lies
    between them, in order."""
    assert corpus.valid_share is not None  # fitted
    parts: list[tuple[list[str], int]] = []
    for stretch in stretches(text, source, corpus.valid_characters):
        split = split_of(digest_of(stretch), source, corpus.valid_share)
        if parts and not split and not parts[-1][1]:  # neighbours that are trained on are one document
            parts[-1][0].append(stretch)
        else:
            parts.append(([stretch], split))
    texts = (("".join(part), split) for part, split in parts)
    return [Piece(text, digest_of(text), split) for text, split in texts]


def stretches(text: str, source: CorpusSourceConfig, length: int | None) -> Iterator[str]:
    """Cut a text into parts of which each is held out or not: all of it, or if it is long stretches of about `length`
    characters, cut where a paragraph ends, a line or a word."""
    begin = 0
    if length is not None and source.hold_out == "hash":
        while len(text) - begin > 2 * length:
            end = first = begin + length
            for mark in ("\n\n", "\n", " "):
                if (at := text.find(mark, first, first + length // 4)) >= 0:
                    end = at + len(mark)
                    break
            yield text[begin:end]
            begin = end
    yield text[begin:]


# Quality filters by name, as datatrove has them: https://github.com/huggingface/datatrove (Apache-2.0). They are for
# running English text. spaCy only splits words and sentences (a blank pipeline: no model is downloaded). Its other
# filters are not offered: they download lists or models, or do not judge a text.

FILTERS = {
    "c4_paragraph": "C4ParagraphFilter",  # at least three lines of 200 characters (mC4, 2010.11934); no spaCy
    "c4_quality": "C4QualityFilter",  # sentences, curly brackets, lorem ipsum (C4, arXiv 1910.10683)
    "gopher_quality": "GopherQualityFilter",  # words, symbols, stop words (Gopher, arXiv 2112.11446, table A1)
    "gopher_repetition": "GopherRepetitionFilter",  # repeated lines, paragraphs and n-grams (the same table)
    "fineweb_quality": "FineWebQualityFilter",  # short and repeated lines, line ends (FineWeb, arXiv 2406.17557)
}


def _datatrove(module: str, needed_for: str) -> ModuleType:
    """Import a module of datatrove, and keep its log quiet. Raises UserError E-RAW-25 where it cannot be imported."""
    try:
        importlib.import_module("datatrove")
        importlib.import_module("loguru").logger.disable("datatrove")
        return importlib.import_module(f"datatrove.{module}")
    except ImportError as error:
        raise UserError(
            f"E-RAW-25 {needed_for}: datatrove cannot be imported ({error}); it does this work. "
            "Fix: pip install 'coca-train[quality]'"
        ) from error


def _check_word_splitter(needed_for: str) -> None:
    """Cut English words with datatrove. Raises UserError E-RAW-25, naming the missing package."""
    try:
        words = _datatrove("utils.word_tokenizers", needed_for)
        words.load_word_tokenizer("en").word_tokenize("one word")  # which imports its library only now
    except ImportError as error:
        quoted = str(error).split("`")  # datatrove writes the missing package as `name`, Python keeps it in .name
        package = quoted[1] if len(quoted) > 2 else (error.name or "spacy").split(".")[0]
        raise UserError(
            f"E-RAW-25 {needed_for}: the package {package} is not installed; datatrove cuts words with it. "
            f"Fix: pip install {package}"
        ) from error


def quality_filter(name: str) -> Callable[[str], str | None]:
    """Return the filter of this name: it takes a text and returns its own name to leave the text out, else None.

    Raises UserError E-RAW-29 no such filter, E-RAW-25 a package it needs is not installed.
    """
    where = f"filter.quality={name}"
    if name not in FILTERS:
        raise UserError(f"E-RAW-29 {where}: no such filter; known are {', '.join(FILTERS)}. Fix: choose one of them")
    judge = getattr(_datatrove("pipeline.filters", where), FILTERS[name])()
    if name != "c4_paragraph":  # the only one that needs no words
        _check_word_splitter(where)
    document = _datatrove("data", where).Document

    def refuses(text: str) -> str | None:
        verdict = judge.filter(document(text=text, id=""))  # a new object each time: c4_quality writes into it
        kept = verdict[0] if isinstance(verdict, tuple) else verdict
        return None if kept else name

    return refuses
