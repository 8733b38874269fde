"""`python -m data_prep retrieval`: the texts, their distribution, and bytes that do not change."""

import gzip
import json
import re
from collections import Counter

import pytest

from data_prep import __main__ as command
from data_prep.settings import load
from data_prep.verbs import retrieval

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
TEXT = re.compile(
    r"There is an important info hidden inside a lot of irrelevant text\. Find it and memorize them\. "
    r"I will quiz you about the important information there\.\n"
    rf"((?:{re.escape(FILLER)}\n)*)The passkey is (\d{{5}})\. Remember it\. \2 is the passkey\.\n"
    rf"((?:{re.escape(FILLER)}\n)*)What is the passkey\?\nThe passkey is \2\.\n"
)


@pytest.fixture
def generate(tmp_path, capsys):
    """generate(options) -> (bytes, records) of both files."""

    def make(*words):
        settings = [f"retrieval.dir={tmp_path}/raw", *(f"retrieval.{word}" for word in words)]
        assert retrieval.run(load(["corpus=retrieval_miniature", *settings])) == 0
        data = [(tmp_path / "raw" / f"passkey_{split}.jsonl.gz").read_bytes() for split in ("train", "valid")]
        return data, [[json.loads(line) for line in gzip.decompress(part).splitlines()] for part in data]

    return make


def test_texts_and_their_distribution(generate):
    n = 4000
    _, (train, valid) = generate(f"n_documents={n}", "n_valid_documents=7", "max_repeats=3")
    assert [record["meta"]["id"] for record in train[:2] + valid[:1]] == ["train-0", "train-1", "valid-0"]
    assert (len(train), len(valid)) == (n, 7)
    places, keys = Counter(), []
    for record in train + valid:
        match = TEXT.fullmatch(record["text"])
        assert match, record["text"]
        before, after = (match[part].count("grass") for part in (1, 3))
        places[before + after, before] += 1
        keys.append(int(match[2]))
    expected = {(repeats, before): n / 4 / (repeats + 1) for repeats in range(4) for before in range(repeats + 1)}
    assert set(places) == set(expected)
    assert all(abs(places[at] - count) < 5 * count**0.5 + 7 for at, count in expected.items())
    assert 10_000 <= min(keys) < 10_200
    assert 99_800 < max(keys) <= 99_999


def test_the_bytes_depend_on_the_options_only(generate):
    first, _ = generate("n_documents=20", "n_valid_documents=3")
    assert first[0][4:8] == b"\0\0\0\0"  # no time of day in it
    assert generate("n_documents=20", "n_valid_documents=3")[0] == first
    for other in ("seed=1", "max_repeats=5", "n_documents=21"):
        assert generate("n_documents=20", "n_valid_documents=3", other)[0][0] != first[0]


def test_the_command(tmp_path, capsys):
    words = [f"retrieval.dir={tmp_path}", "retrieval.n_documents=2", "retrieval.n_valid_documents=1"]
    assert command.main(["retrieval", "corpus=retrieval_miniature", *words]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{tmp_path}/passkey_train.jsonl.gz: 2 documents, ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["passkey_train.jsonl.gz", "passkey_valid.jsonl.gz"]
    assert command.main(["retrieval", "corpus=retrieval_miniature", "retrieval.dir='~/x'"]) == 2
    assert "E-CFG-29 command line retrieval.dir='~/x'" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = [f"retrieval.dir={tmp_path}/file/raw", "retrieval.n_documents=1"]
    assert command.main(["retrieval", "corpus=retrieval_miniature", *words]) != 0
    assert "cannot be written" in capsys.readouterr().err
