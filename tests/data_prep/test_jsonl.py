"""jsonl to .bin/.idx: every bad line is named by file and number, and then nothing is published."""

import gzip
import json
from pathlib import Path

import pytest

from coca_train.config.errors import DataError
from coca_train.data.indexed import IndexedDataset
from coca_train.data.tokenizer import Tokenizer
from data_prep import jsonl
from data_prep.vocabulary import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer([Path(__file__).read_text(encoding="utf-8") + Path(jsonl.__file__).read_text()], path, 512)
    return Tokenizer(path)


def line(text: object) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


@pytest.mark.parametrize("end", [".jsonl", ".jsonl.gz"])
def test_round_trip(tmp_path: Path, tokenizer: Tokenizer, end: str) -> None:
    texts = [f"document {i}\nof several é" for i in range(600)]
    content = b"\xef\xbb\xbf" + b"".join(map(line, texts)) + b"\r\n" + line(" ") + line("last")[:-1]
    (tmp_path / f"x{end}").write_bytes(gzip.compress(content) if end == ".jsonl.gz" else content)
    counts = jsonl.convert(tmp_path / f"x{end}", tmp_path / "out", tokenizer, progress=False)
    data = IndexedDataset(tmp_path / "out")
    assert counts == {"documents": 601, "empty": 1, "tokens": data.n_tokens}
    assert [tokenizer.decode(data.document(i).tolist()) for i in range(601)] == [*texts, "last"]


GOOD = line("fine")
BAD = {
    "malformed": (GOOD + b'{"text": oops}\n', "E-RAW-04 .*:2"),
    "cut": (GOOD + b'{"text": "half', "E-RAW-04 .*:2"),
    "list": (GOOD + b"[1]\n", "E-RAW-05 .*:2: a list"),
    "no field": (GOOD + b'{"body": "x"}\n', "E-RAW-06 .*:2: no field 'text'; its fields are 'body'"),
    "number": (GOOD + line(3), "E-RAW-06 .*:2: 'text' is a int"),
    "null": (GOOD + line(None), "E-RAW-06 .*:2: 'text' is a NoneType"),
    "latin-1": (GOOD + '{"text": "é"}\n'.encode("latin-1"), "E-RAW-10 .*:2: invalid UTF-8 at byte 10"),
    "lone surrogate": (GOOD + b'{"text": "ab\\ud800"}\n', "E-RAW-11 .*:2: a lone surrogate at character 2"),
    "deep": (GOOD + b"[" * 200_000 + b"\n", "E-RAW-04 .*:2"),
    "empty": (b"", "E-RAW-03"),
    "blank": (b"\n \n", "E-RAW-03"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(tmp_path: Path, tokenizer: Tokenizer, case: str) -> None:
    content, message = BAD[case]
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        jsonl.convert(tmp_path / "x.jsonl", tmp_path / "out", tokenizer, progress=False)
    assert "\n" not in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


def test_damaged_gzip(tmp_path: Path, tokenizer: Tokenizer) -> None:
    whole = gzip.compress(b"".join(line(f"document {i} {i * i}") for i in range(1000)))
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-200])
    (tmp_path / "not.jsonl.gz").write_bytes(GOOD)
    for name in ("cut.jsonl.gz", "not.jsonl.gz"):
        with pytest.raises(DataError, match=rf"E-RAW-14 .*{name}:\d+: damaged gzip"):
            jsonl.convert(tmp_path / name, tmp_path / "out", tokenizer, progress=False)
    with pytest.raises(DataError, match="E-RAW-01"):
        jsonl.convert(tmp_path / "none", tmp_path / "out", tokenizer, progress=False)
    with pytest.raises(DataError, match="E-RAW-02"):
        jsonl.convert(tmp_path, tmp_path / "out", tokenizer, progress=False)


def test_a_line_too_long(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 50)
    (tmp_path / "x.jsonl").write_bytes(GOOD + line("x" * 100))
    with pytest.raises(DataError, match=r"E-RAW-13 .*:2"):
        jsonl.convert(tmp_path / "x.jsonl", tmp_path / "out", tokenizer, progress=False)
