"""Lengths are counted exactly in any chunks; the report says what the manifest says; numbers people can read."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.data.tokenizer import Tokenizer
from coca_train.runtime.printing import WIDTH, markdown, n_bytes, percent, plain, short
from data_prep.__main__ import main
from data_prep.manifest import Corpus
from data_prep.verbs import stats as module
from data_prep.verbs.stats import QUANTILES, corpus_lengths, count, lengths_picture
from tests.data.vocabularies import trained
from tests.data_prep.support_corpus import Made, make
from tests.fixes import fix_of

some_lengths = st.lists(st.integers(0, 60) | st.integers(0, 10**6), min_size=1, max_size=80)


@settings(deadline=None)
@given(some_lengths, st.lists(st.integers(0, 80), max_size=4), st.integers(0, 10**6))
def test_against_plain_python(values: list[int], cuts: list[int], n: int) -> None:
    lengths = count(np.split(np.array(values), sorted(cuts)))
    assert lengths.values.tolist() == sorted(set(values))
    assert (lengths.n_documents, lengths.n_tokens, lengths.longest) == (len(values), sum(values), max(values))
    long = [value for value in values if value >= n]
    assert lengths.at_least(n) == (len(long), sum(long))
    for share in (*QUANTILES, 0.25, 1.0):
        assert lengths.quantile(share) == sorted(values)[max(1, math.ceil(share * len(values))) - 1]


@settings(deadline=None)
@given(some_lengths, st.sets(st.integers(0, 10**6), min_size=2, max_size=9))
def test_histograms_against_plain_python(values: list[int], borders: set[int]) -> None:
    edges = sorted(borders)
    documents, tokens = count([np.array(values)]).histogram(np.array(edges))
    bins = [[v for v in values if low <= v < high] for low, high in itertools.pairwise(edges)]
    assert documents.tolist() == list(map(len, bins))
    assert tokens.tolist() == list(map(sum, bins))


def test_lengths_of_a_corpus_in_small_chunks(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["word " * i for i in range(1, 24)]
    config = make(tmp_path, {"a": Made(texts, texts[:2]), "b": Made([], texts[:3])})
    monkeypatch.setattr(module, "CHUNK", 5)
    by_split = corpus_lengths(Corpus(config))
    assert list(by_split) == [("a", "train"), ("a", "valid"), ("b", "valid")]
    expected = sorted(len(Tokenizer(model).encode(text)) + 1 for text in texts)
    assert np.repeat(by_split["a", "train"].values, by_split["a", "train"].counts).tolist() == expected


def test_the_report(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["a document with some words in it " * i for i in (1, 5, 40, 2000)]
    sources = {
        "a_source_with_a_long_name": Made(texts, texts[:1], counts={"read": 8, "short": 2, "duplicates": 1, "long": 0}),
        "held": Made([], texts[:2], {"hold_out": "all"}),
    }
    make(tmp_path, sources)
    arguments = ["--config-dir", str(tmp_path / "choices"), "corpus=tiny"]
    assert main(["stats", *arguments]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= WIDTH + len(str(tmp_path))
    report = tmp_path / "tiny" / "report"
    stats = json.loads((report / "stats.json").read_text())
    record = stats["datasets"]["a_source_with_a_long_name_train"]
    sizes = [len(Tokenizer(model).encode(text)) + 1 for text in texts]
    assert (record["documents"], record["tokens"], record["longest_document"]) == (4, sum(sizes), max(sizes))
    assert record["bytes_per_token"] == sum(map(len, texts)) / sum(sizes)
    assert record["quantiles"] == {"0.1": sizes[0], "0.5": sizes[1], "0.9": sizes[3], "0.99": sizes[3]}
    assert record["at_least"]["4096"] == {"documents": 1, "tokens": sizes[3]}
    assert record["at_least"]["65536"] == {"documents": 0, "tokens": 0}
    rows = [line.split() for line in out.splitlines()]
    assert ["duplicates", "1", "12.50", "%"] in rows and ["short", "2", "25.00", "%"] in rows
    assert ["kept", "5", "62.50", "%"] in rows and not any(row[:1] == ["long"] for row in rows)
    assert any(row[:3] == ["held", "held", "out"] for row in rows)
    assert (report / "lengths.png").read_bytes()[:4] == b"\x89PNG"
    assert (report / "stats.md").read_text().count("| source") == 3


def test_a_dataset_that_is_not_what_the_manifest_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, {"a": Made(["one two three"], ["four"])})
    arguments = ["stats", "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]
    for end in (".bin", ".idx"):
        (tmp_path / "tiny" / f"a_train{end}").write_bytes((tmp_path / "tiny" / f"a_valid{end}").read_bytes())
    assert main(arguments) == 3
    message = capsys.readouterr().err
    assert message.startswith("E-TOK-25") and message.count("\n") == 1
    program, verb = fix_of(message).split(",")[0].rsplit(" ", 1)
    assert program == "python -m data_prep"
    assert main([verb, *arguments[1:]]) == 3 and "a_train" in "".join(capsys.readouterr())
    (tmp_path / "tiny" / "a_train.bin").unlink()
    assert main(arguments) == 3
    assert capsys.readouterr().err.startswith("E-TOK-01")
    (tmp_path / "tiny" / "manifest.json").unlink()
    assert main(arguments) == 3
    assert capsys.readouterr().err.startswith("E-TOK-23")


def test_the_tokenizer_must_be_the_one_of_then(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, {"a": Made(["one two three"], ["four"])})
    trained(tmp_path / "tiny" / "tokenizer.model", 700)
    for verb in ("inspect", "leakage"):
        assert main([verb, "--config-dir", str(tmp_path / "choices"), "corpus=tiny"]) == 3
        assert capsys.readouterr().err.startswith("E-TOK-11")


def test_a_picture_of_thirty_sources_of_all_lengths(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = {(f"source_{i:02d}", "train"): count([rng.lognormal(5 + i / 5, 1, 500).astype(int)]) for i in range(29)}
    lengths["held", "valid"] = count([np.array([1])])
    lengths_picture(tmp_path / "lengths.png", lengths, "many")
    assert (tmp_path / "lengths.png").read_bytes()[:4] == b"\x89PNG"


def test_tables() -> None:
    header, rows = ("name", "n"), [["a|b", "1"], ["c", "1,000"]]
    assert plain(header, rows) == "name      n\n----  -----\na|b       1\nc     1,000\n"
    assert markdown(header, rows) == "| name |     n |\n| ---- | ----: |\n| a\\|b |     1 |\n| c    | 1,000 |\n"


NUMBERS: dict[Callable[[float], str], list[tuple[float, str]]] = {
    short: [
        (0, "0"),
        (9999, "9,999"),
        (9999.6, "10.0k"),
        (12345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (4.56e6, "4.56M"),
        (5e10, "50.0B"),
        (1e12, "1.00T"),
        (1.2345e15, "1,234.50T"),
    ],
    percent: [
        (0, "0.00 %"),
        (1e-5, "<0.01 %"),
        (0.0001, "0.01 %"),
        (0.123456, "12.35 %"),
        (0.99995, ">99.99 %"),
        (1, "100.00 %"),
    ],
    n_bytes: [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (123_456, "123 kB"),
        (999_600, "1.0 MB"),
        (5 * 10**15, "5.0 PB"),
    ],
}


@pytest.mark.parametrize(("form", "cases"), NUMBERS.items())
def test_numbers_people_can_read(form: Callable[[float], str], cases: list[tuple[float, str]]) -> None:
    assert [form(number) for number, _ in cases] == [text for _, text in cases]
