"""`python -m benchmarks.tokenize`: what it compares is the same work, and its arithmetic."""

import json
from pathlib import Path

import pytest

from benchmarks import tokenize
from coca_train.data.dataset import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from tests.data.vocabularies import byte_level, saved, sentencepiece_model

TEXTS = [f"{i} The quick brown fox;\njumps over {i * i} lazy dogs." for i in range(120)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def test_texts_come_again_with_a_number(tmp_path: Path, source: Path) -> None:
    size = sum(len(text) for text in TEXTS)
    texts = tokenize.write(tmp_path / "out.jsonl", tokenize.texts([source]), 2 * size)
    assert texts[: len(TEXTS)] == TEXTS and texts[len(TEXTS)] == f"1\n{TEXTS[0]}"
    assert len(set(texts)) == len(texts)
    assert 2 * size <= sum(map(len, texts)) < 2 * size + 100
    assert list(tokenize.texts([tmp_path / "out.jsonl"])) == texts


@pytest.mark.parametrize("kind", ["sentencepiece", "huggingface"])
def test_everybody_makes_the_same(tmp_path: Path, source: Path, kind: str) -> None:
    if kind == "sentencepiece":
        path = sentencepiece_model(tmp_path / "tokenizer.model")
    else:
        path = saved(byte_level(), tmp_path / "tokenizer.json")
    tokenize.ours(source, tmp_path / "ours", path, 1)
    tokenize.line_by_line(source, tmp_path / "lines", path, 2)
    tokenize.library(TEXTS, path, 2)
    tokenize.same(tmp_path / "ours/text_train", tmp_path / "lines")
    data, tokenizer = IndexedDataset(tmp_path / "lines"), Tokenizer(path)
    assert [tokenizer.decode(data.document(i).tolist()) for i in range(len(TEXTS))] == TEXTS


@pytest.mark.parametrize("other", [b"abd", b"ab", b"abcd"])
def test_another_result_is_no_result(tmp_path: Path, other: bytes) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "b.bin").write_bytes(b"abc")
    tokenize.same(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b.bin").write_bytes(other)
    with pytest.raises(SystemExit, match=r"differ|shorter"):
        tokenize.same(tmp_path / "a", tmp_path / "b")


def test_turns() -> None:
    order: list[str] = []
    seconds = tokenize.take_turns({name: (lambda name=name: order.append(name)) for name in "ab"}, 3)
    assert order == list("ababab")
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_tables() -> None:
    seconds = {tokenize.OURS: [1.0, 2.0, 1.0], tokenize.LIBRARY: [2.0, 2.0, 3.0], tokenize.LINES: [4.0, 4.0, 1.9]}
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in tokenize.table(seconds, 10**7).splitlines()
    ]
    assert rows[2] == ["ours", "1.00", "10.00", "1.00 (1.00-1.00)"]
    assert rows[3] == ["library, batch", "2.00", "5.00", "2.00 (1.00-3.00)"]
    assert tokenize.verdict(seconds) == "Ours: 2.00 x library, batch (wanted 0.95), 2.00 x line by line (wanted 2.0)"
    assert "| 40       |                                 2 |  2.00 |" in tokenize.memory_table(
        {10**7: 2**20, 4 * 10**7: 2**21}
    )


def test_the_command(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sentencepiece_model(tmp_path / "tokenizer.model")
    words = ["--input", str(source), "--tokenizer", str(path), "--text-mb", "0.01", "--rounds", "1", "--workers", "1"]
    assert tokenize.main([*words, "--memory-mb", "0.01", "--out", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert "| line by line, 1 process |" in out and "Ours: " in out
    record = json.loads((tmp_path / "out.json").read_text())
    assert set(record["seconds"]) == {tokenize.OURS, tokenize.LIBRARY, tokenize.LINES, tokenize.ONE}
    assert 20 * 2**20 < record["peak_bytes"]["10000"] < 2 * 2**30
