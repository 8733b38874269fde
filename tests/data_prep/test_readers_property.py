"""Any texts, written in any format and read in chunks of any size from any cursor, come back as they were."""

import gzip
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coca_train.config.corpus_schema import CorpusSourceConfig, WorkConfig
from coca_train.data.readers import chunks, inputs
from coca_train.data.readers.base import Chunk
from coca_train.runtime.errors import DataError
from tests.data_prep.reading import parsed, read, rejects, source_of, texts, work_of

zstandard = pytest.importorskip("zstandard")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60), min_size=1)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \n"])
BAD = [
    b"{oops",
    b"[]",
    b"\xff",
    b'{"text": 1}',
    b'{"text": "\\ud800"}',
    b"\0",
    b'{"a": NaN}',
    b'{"text": "' + b"x" * 300 + b'"}',
]
PACK = {
    "x.jsonl": lambda plain: plain,
    "x.jsonl.gz": gzip.compress,
    "x.jsonl.zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "members.jsonl.gz": lambda plain: b"".join(gzip.compress(plain[i : i + 50]) for i in range(0, len(plain), 50)),
}


def in_pieces(source: CorpusSourceConfig, work: WorkConfig) -> list[Chunk]:
    """All chunks; and from every cursor on, exactly the same ones follow."""
    (input,) = inputs("mine", source)
    whole = list(chunks(input, source, work, None))
    for i, chunk in enumerate(whole):
        assert list(chunks(input, source, work, json.loads(json.dumps(chunk.after)))) == whole[i + 1 :]
    positions = [chunk.position for chunk in whole]
    assert positions == sorted(positions) and positions[-1] <= input.size
    assert [chunk.first for chunk in whole[1:]] == [
        chunk.after.get("line") or chunk.after.get("row") or chunk.after.get("file") for chunk in whole[:-1]
    ]
    return whole


@settings(deadline=None, max_examples=80)
@given(TEXTS, st.data(), st.sampled_from(list(PACK)), st.integers(1, 400), st.booleans(), st.booleans(), st.booleans())
def test_jsonl(
    written: list[str], data: st.DataObject, name: str, chunk_bytes: int, bom: bool, last_end: bool, ascii: bool
) -> None:
    plain = b"\xef\xbb\xbf" if bom else b""
    numbers = []
    for text in written:
        numbers.append(plain.count(b"\n") + 1)
        plain += json.dumps({"text": text}, ensure_ascii=ascii).encode() + data.draw(ENDS)
    plain = plain if last_end else plain.rstrip(b" \r\n")
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(PACK[name](plain))
        source, work = source_of(Path(folder) / name), work_of(chunk_bytes=chunk_bytes)
        pieces = in_pieces(source, work)
        items = parsed(pieces, source, work)
    assert texts(items) == written and [item.line for item in items] == numbers
    assert b"".join(chunk.data for chunk in pieces) == plain
    assert all(chunk.n_bytes <= chunk_bytes or chunk.data.count(b"\n") <= 1 for chunk in pieces)
    assert all(chunk.data.endswith(b"\n") for chunk in pieces[:-1])
    assert pieces[-1].after["line"] == plain.count(b"\n") + 1 + (not plain.endswith(b"\n"))


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from([*BAD, b'{"text": "good"}', b"", b" \r"]), min_size=1, max_size=30),
    st.integers(1, 500),
    st.integers(16, 300),
    st.sampled_from(list(PACK)),
)
def test_every_line_is_accounted_for(lines: list[bytes], chunk_bytes: int, max_line_bytes: int, name: str) -> None:
    """lines = documents + rejects + blank ones, whatever is bad about them and wherever the borders fall."""
    lines = [b'{"text": "good"}', *lines]
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(PACK[name](b"\n".join(lines) + b"\n"))
        source = source_of(Path(folder) / name)
        work = work_of(chunk_bytes=chunk_bytes, max_line_bytes=max_line_bytes)
        pieces = in_pieces(source, work)
        items = parsed(pieces, source, work)
    good = [i for i, line in enumerate(lines, 1) if line == b'{"text": "good"}']
    bad = [i for i, line in enumerate(lines, 1) if line in BAD]
    assert [item.line for item in items if item not in rejects(items)] == good
    assert [item.line for item in rejects(items)] == bad
    assert [item.byte for item in rejects(items)] == [sum(len(line) + 1 for line in lines[: i - 1]) for i in bad]
    assert (
        pieces[-1].after["line"] == len(lines) + 1
        and sum(chunk.n_bytes for chunk in pieces) == pieces[-1].after["byte"]
    )
    for item in rejects(items):
        assert (item.code == "E-RAW-13") is (len(lines[item.line - 1]) > max_line_bytes)


@settings(deadline=None, max_examples=60)
@given(TEXTS, st.integers(1, 2000), st.integers(1, 40), st.sampled_from(["snappy", "zstd", "none"]))
def test_parquet(written: list[str], chunk_bytes: int, rows: int, compression: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        pq.write_table(pa.table({"text": written}), path, row_group_size=rows, compression=compression)
        source, work = source_of(path, kind="parquet"), work_of(chunk_bytes=chunk_bytes)
        items = parsed(in_pieces(source, work), source, work)
    assert texts(items) == written and [item.line for item in items] == list(range(1, len(written) + 1))


@settings(deadline=None, max_examples=40)
@given(TEXTS, st.integers(1, 200))
def test_text(written: list[str], chunk_bytes: int) -> None:
    written = ["never empty", *written]
    with TemporaryDirectory() as folder:
        for i, text in enumerate(written):
            (Path(folder) / f"{i:05d}").write_bytes(text.encode())
        source, work = source_of(f"{folder}/*", kind="text"), work_of(chunk_bytes=chunk_bytes)
        items = parsed(in_pieces(source, work), source, work)
    assert texts(items) == [text.removeprefix("\ufeff") for text in written]


@settings(deadline=None, max_examples=120)
@given(
    st.binary(max_size=300),
    st.integers(1, 100),
    st.sampled_from(["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"]),
    st.booleans(),
)
def test_any_bytes_end_in_words(content: bytes, chunk_bytes: int, name: str, packed: bool) -> None:
    """Whatever the file holds: documents, rejects, or one line that says what is wrong."""
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(PACK[name](content) if packed else content)
        source, work = source_of(Path(folder) / name), work_of(chunk_bytes=chunk_bytes)
        text = "Fix: "
        try:
            for item in rejects(read(source, work)):
                assert str(item.error("x")).isprintable() and len(item.excerpt) <= 80
        except DataError as error:
            text = str(error)
    assert text.isprintable() and "Fix: " in text
