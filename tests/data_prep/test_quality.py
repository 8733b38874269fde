"""Quality filters: which there are, what each says, and what is told when a package is missing."""

import sys

import pytest

from coca_train.runtime.errors import UserError
from data_prep.selection import FILTERS, quality_filters, word_splitter

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
    (refuses,) = quality_filters(["c4_paragraph"])
    assert refuses("one short line") == "c4_paragraph"
    assert refuses("\n".join([PARAGRAPH] * 2)) == "c4_paragraph"
    assert refuses("\n".join([PARAGRAPH] * 3)) is None


def test_no_filters_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datatrove", None)
    assert quality_filters([]) == []


def test_an_unknown_filter_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"^E-RAW-29 filter.quality=gopher: no such filter; .*gopher_quality.* Fix:"):
        quality_filters(["gopher"])


@pytest.mark.parametrize("missing", ["datatrove", "loguru"])
def test_a_missing_library_is_told_in_words(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=rf"^E-RAW-25 filter.quality=c4_paragraph: .*{missing}.*\[quality\]"):
        quality_filters(["c4_paragraph"])


@pytest.mark.parametrize("name", sorted(set(FILTERS) - {"c4_paragraph"}))
def test_a_missing_word_splitter_is_told_before_any_document(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    words = pytest.importorskip("datatrove.utils.word_tokenizers")

    def not_there(*_: object) -> None:
        raise ImportError("Please install `spacy` to use en word tokenizer (`pip install spacy`).")

    monkeypatch.setattr(words, "load_word_tokenizer", not_there)
    with pytest.raises(
        UserError, match=rf"^E-RAW-25 filter.quality={name}: the package spacy .* Fix: pip install spacy"
    ):
        quality_filters([name])


def test_a_language_nobody_knows() -> None:
    pytest.importorskip("datatrove")
    with pytest.raises(UserError, match=r"^E-RAW-29 here: datatrove has no word splitter for 'english'; .*Fix:"):
        word_splitter("english", "here")


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
    (refuses,) = quality_filters([name])
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
        quality_filters(["c4_paragraph"])
        log_pipeline([])
        assert len(messages) == 1
    finally:
        logger.remove(handler)
