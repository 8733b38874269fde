"""Quality filters by name, as datatrove has them: https://github.com/huggingface/datatrove (Apache-2.0).

c4_paragraph       at least three lines of 200 characters (mC4, arXiv 2010.11934); needs datatrove alone
c4_quality         sentences, curly brackets, lorem ipsum (C4, arXiv 1910.10683); needs spaCy
gopher_quality     words, symbols, stop words (Gopher, arXiv 2112.11446, table A1); needs spaCy
gopher_repetition  repeated lines, paragraphs and n-grams (the same table); needs spaCy
fineweb_quality    short and repeated lines, line ends (FineWeb, arXiv 2406.17557); needs spaCy

They are for running English text. spaCy only cuts words and sentences (a blank pipeline: no model is downloaded).
datatrove's other filters are not offered: they download lists or models, or are no judges of a text.
"""

import importlib
from collections.abc import Callable
from typing import Any

from coca_train.runtime.errors import UserError

FILTERS = {
    "c4_paragraph": "C4ParagraphFilter",
    "c4_quality": "C4QualityFilter",
    "gopher_quality": "GopherQualityFilter",
    "gopher_repetition": "GopherRepetitionFilter",
    "fineweb_quality": "FineWebQualityFilter",
}
NEEDS_NO_WORDS = ("c4_paragraph",)


def datatrove(module: str, needed_for: str) -> Any:
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


def word_splitter(language: str, needed_for: str) -> Any:
    """datatrove's word splitter of a language (en, zh, ...). Raises UserError E-RAW-25, naming the missing
    package, and E-RAW-29 for a language that datatrove does not know."""
    words = datatrove("utils.word_tokenizers", needed_for)
    try:
        splitter = words.load_word_tokenizer(language)
        splitter.word_tokenize("one word")  # some import their library only now
    except ValueError as error:
        raise UserError(
            f"E-RAW-29 {needed_for}: datatrove has no word splitter for {language!r}; known are ISO codes such as en, "
            "de, zh. Fix: choose one of them"
        ) from error
    except ImportError as error:
        package = _package(error)
        raise UserError(
            f"E-RAW-25 {needed_for}: the package {package} is not installed; datatrove cuts words of {language!r} with "
            f"it. Fix: pip install {package}"
        ) from error
    return splitter


def _package(error: ImportError) -> str:
    """The package that is missing: datatrove writes it as `name`, Python keeps it in .name."""
    quoted = str(error).split("`")
    return quoted[1] if len(quoted) > 2 else (error.name or "spacy").split(".")[0]


def quality_filters(names: list[str]) -> list[Callable[[str], str | None]]:
    """The filters of these names. Each takes a text and gives its own name where the text is to be left out, else None.

    Raises UserError E-RAW-29 no such filter, E-RAW-25 a package it needs is not installed.
    """
    return [_filter(name) for name in names]


def _filter(name: str) -> Callable[[str], str | None]:
    where = f"filter.quality={name}"
    if name not in FILTERS:
        raise UserError(f"E-RAW-29 {where}: no such filter; known are {', '.join(FILTERS)}. Fix: choose one of them")
    judge = getattr(datatrove("pipeline.filters", where), FILTERS[name])()
    if name not in NEEDS_NO_WORDS:
        word_splitter("en", where)
    document = datatrove("data", where).Document

    def refuses(text: str) -> str | None:
        verdict = judge.filter(document(text=text, id=""))  # a new object each time: c4_quality writes into it
        kept = verdict[0] if isinstance(verdict, tuple) else verdict
        return None if kept else name

    return refuses
