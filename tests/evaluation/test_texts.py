"""Where the text comes from, and which documents of it are read."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest

from coca_train.evaluation.configuration import TextConfig
from coca_train.evaluation.texts import Library, digest, read_once
from coca_train.runtime.errors import DataError

NOTHING = {"begin": "auto", "files": [], "text_field": "text", "corpus": None, "sources": [], "max_documents": 100}


def store(**changes):
    return read_once(TextConfig(**(NOTHING | changes)), [])


class Letters:
    """A token a letter; 1 begins a text."""

    bos = 1

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i != self.bos)


def setup_of(texts, max_documents=100, token_files=None, enough=False):
    return SimpleNamespace(
        texts=lambda: texts,
        max_documents=max_documents,
        token_files=token_files or {},
        lengths_from="an.option",
        enough=enough,
    )


def library(texts, kind="run", **options) -> Library:
    subject = SimpleNamespace(tokenizer=Letters(), begin=(1,) if kind == "huggingface" else ())
    return Library(subject, setup_of(texts, **options))  # type: ignore[arg-type]


def test_files_of_every_kind_are_sources_by_name(tmp_path):
    (tmp_path / "a.txt").write_text("plain text")
    parts = {"books-00000-of-00002.jsonl": "one", "books-00001-of-00002.jsonl": "two"}
    for name, text in parts.items():
        (tmp_path / name).write_text(json.dumps({"inner": {"text": text}}) + "\n")
    by_source = store(files=[f"{tmp_path}/books-*.jsonl", f"{tmp_path}/a.txt"], text_field="inner.text")()
    assert by_source == {"books": ["one", "two"], "a": ["plain text"]}


def test_a_corpus_gives_what_it_holds_out_and_nothing_it_trains_on(tmp_path, monkeypatch):
    monkeypatch.setenv("COCA_TRAIN_RAW", str(tmp_path))
    for name in ("books_train-0", "books_valid", "wiki_valid", "code_valid"):
        record = {"text": f"text of {name}", "meta": {"id": name}}
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(json.dumps(record).encode() + b"\n"))
    by_source = store(corpus="paper_miniature", sources=["books_eval", "code_eval"])()
    assert by_source == {"books_eval": ["text of books_valid"], "code_eval": ["text of code_valid"]}
    with pytest.raises(DataError, match=r"E-EVAL-04 text.sources.*paper_miniature .* not books"):
        store(corpus="paper_miniature", sources=["books"])()


def test_documents_are_chosen_evenly_among_those_long_enough():
    texts = {"a": ["x" * n for n in (5, 30, 31, 32, 33)], "b": ["y" * 9]}
    choice = library(texts, max_documents=2).choose(30)
    assert {name: [len(d) for d in documents] for name, documents in choice.documents.items()} == {"a": [30, 32]}
    with pytest.raises(DataError, match=r"E-EVAL-05 .*34 .* 33.* an.option, or text"):
        library(texts).choose(34)


def test_only_imported_models_get_the_token_that_begins_a_text():
    texts = {"a": ["xyz"]}
    own, imported = (library(texts, kind=kind).choose(1) for kind in ("run", "huggingface"))
    assert own.documents["a"][0].tolist() == [120, 121, 122]
    assert imported.documents["a"][0].tolist() == [1, 120, 121, 122]
    assert imported.n_bytes(imported.documents["a"][0][1:]) == 3


def test_a_training_reads_its_own_token_files_as_they_are_and_only_what_it_chooses(tmp_path, monkeypatch):
    from coca_train.data.dataset import IndexedDataset
    from tests.data.conftest import write

    write(tmp_path / "held", [range(5), range(70), range(100, 171), range(200, 290), range(300, 375)])
    files = {"a": IndexedDataset(tmp_path / "held")}
    read, document = [], IndexedDataset.document
    monkeypatch.setattr(IndexedDataset, "document", lambda self, i: read.append(i) or document(self, i))
    own = Library(SimpleNamespace(tokenizer=Letters()), setup_of({}, 2, files))  # type: ignore[arg-type]
    assert own.longest == 90
    assert [tokens.tolist() for tokens in own.choose(71).documents["a"]] == [
        list(range(100, 171)),
        list(range(200, 290)),
    ]
    assert read == [2, 3]
    with pytest.raises(DataError, match=r"E-EVAL-05 .*91 .* an.option, or longer"):
        own.choose(91)


def test_the_digest_is_of_sources_borders_and_tokens():
    def of(**documents):
        return digest({name: [np.array(d) for d in ds] for name, ds in documents.items()})

    first = of(a=[[1, 2], [3]])
    assert first == of(a=[[1, 2], [3]])
    assert len({first, of(b=[[1, 2], [3]]), of(a=[[1], [2, 3]]), of(a=[[1, 2], [4]]), of(a=[[1, 2]], b=[[3]])}) == 5


def test_windows_that_too_few_documents_fill_are_left_out_where_enough_fill_shorter_ones():
    """As documents are cut to the longest window, it would leave few to all others."""
    texts = {"text": ["x" * 300] * 15 + ["x" * 600], "code": ["x" * 300] * 10}
    windows = [128, 256, 512, 1024]
    assert library(texts, enough=True, max_documents=24).filled(windows) == [128, 256]
    assert library(texts, enough=True, max_documents=1).filled(windows) == [128, 256, 512]  # no answer is wanted
    assert library(texts, enough=True).filled(windows[2:]) == [512]  # there is none
    assert library(texts).filled(windows) == [128, 256, 512]  # it was asked for by its number
