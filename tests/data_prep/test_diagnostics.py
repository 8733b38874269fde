"""The corpus of the diagnostics: whole or not there, the same every time, nothing of the test in it."""

import hashlib
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from coca_train.data.dataset import IndexedDataset
from coca_train.data.diagnostics import TASKS, Example, example, examples, solved, split_of, vocabulary
from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.errors import DataError
from data_prep.__main__ import main
from data_prep.verbs import diagnostics
from data_prep.verbs.diagnostics import VERSION, DiagnosticsConfig, ensure, make


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> DiagnosticsConfig:
    folder = tmp_path_factory.mktemp("made") / "diagnostics"
    options = DiagnosticsConfig(dir=str(folder), n_documents=40, n_valid_documents=5)
    make(options, progress=False)
    return options


def texts(options: DiagnosticsConfig, task: str, split: str) -> list[str]:
    dataset = IndexedDataset(Path(options.dir) / f"{task}_{split}")
    tokenizer = Tokenizer(f"{options.dir}/tokenizer.model")
    return [tokenizer.decode(dataset.document(number).tolist()) for number in range(dataset.n_documents)]


def test_examples_are_those_of_their_version():
    """Where this fails, raise VERSION: corpora of before are other data, and trials of the atlas other trainings."""
    whole = hashlib.sha256()
    for task, length, number in product(TASKS, (16, 24, 63, 300), range(5)):
        whole.update(example(task, length, "train", random.Random(f"{task} {length} {number}")).text.encode())
    assert (VERSION, whole.hexdigest()[:16]) == (2, "185e9d967f7c6118")


def test_a_corpus_of_another_version_is_not_taken(options, monkeypatch):
    monkeypatch.setattr(diagnostics, "VERSION", 3)
    for take in (lambda: ensure(options.dir), lambda: make(options, progress=False)):
        with pytest.raises(DataError, match=r"E-PREP-02 .*version=2, not 3"):
            take()


def test_every_symbol_is_a_token(options):
    tokenizer = Tokenizer(f"{options.dir}/tokenizer.model")
    tokens = [tokenizer.encode(symbol) for symbol in vocabulary()]
    assert sorted(tokens) == [[token] for token in range(3, tokenizer.vocab_size)]


@pytest.mark.parametrize("task", TASKS)
def test_examples_come_back_and_none_is_of_the_test(options, task):
    asked = {each.text for each in examples(task, 40, "test", 1, 300)}
    for split, n in (("train", 40), ("valid", 5)):
        found = texts(options, task, split)
        assert len(found) == n
        for text in found:
            each = Example(task, tuple(text.split()))
            assert solved(each)
            assert split_of(each) == split
            assert 8 <= len(each.symbols) <= 63
        assert not asked & set(found)


def test_the_same_options_give_the_same_bytes(options, tmp_path):
    make(replace(options, dir=str(tmp_path / "again")), progress=False)
    for path in Path(options.dir).iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_other_diagnostics_are_not_overwritten(options, capsys):
    assert main(["diagnostics", f"dir={options.dir}", "n_documents=40", "n_valid_documents=5"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"E-PREP-02 .*holds other diagnostics \(n_documents=40, not 41\).*Fix"):
        make(replace(options, n_documents=41), progress=False)
    assert ensure(options.dir)["settings"]["corpus"]["n_documents"] == 40  # a training takes what is there
