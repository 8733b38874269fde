"""Rows of .parquet: only the needed columns, from any row group on, damaged files in words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coca_train.data.readers import chunks, inputs
from coca_train.data.readers.base import Document, Reject
from tests.data_prep.reading import FILTER, complaint, read, rejects, source_of, texts, work_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
TEXTS = [f"document {i} {i * i} é" for i in range(100)]


def write(path: Path, table: Any, rows: int = 30, **more: Any) -> Any:
    pq.write_table(pa.table(table) if isinstance(table, dict) else table, path, row_group_size=rows, **more)
    return source_of(path, kind="parquet")


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]
)
def test_kinds_of_text(tmp_path: Path, kind: Any) -> None:
    source = write(tmp_path / "x.parquet", {"text": pa.array(TEXTS, pa.string()).cast(kind)})
    assert texts(read(source, work_of(chunk_bytes=500))) == TEXTS


def test_dotted_fields_ids_and_what_rules_look_at(tmp_path: Path) -> None:
    meta = [{"text": text, "lang": "en", "licences": ["MIT", "BSD"], "size": 3} for text in TEXTS]
    source = write(tmp_path / "x.parquet", {"id": list(range(100)), "meta": meta, "unused": TEXTS})
    rules = replace(FILTER, language_field="meta.lang", licence_field="meta.licences")
    source = source_of(*source.files, kind="parquet", text_field="meta.text", id_field="id", filter=rules)
    items = read(source)
    assert texts(items) == TEXTS and items[7].id == "7"  # type: ignore[union-attr]
    assert items[7].fields == {  # type: ignore[union-attr]
        "id": 7,
        "meta": {"text": TEXTS[7], "lang": "en", "licences": ["MIT", "BSD"]},
    }


def test_bad_rows(tmp_path: Path) -> None:
    text = pa.array([b"fine", b"\xff\xfe", None, b"a\0b", b"\xed\xa0\x80", b"x" * 3000, b""], pa.binary()).view(
        pa.string()
    )
    source = write(tmp_path / "x.parquet", {"text": text})
    items = read(source, work_of(max_line_bytes=2999))
    assert [type(item) for item in items] == [Document, *[Reject] * 5, Document]
    assert [(r.line, r.code) for r in rejects(items)] == [
        (2, "E-RAW-10"),
        (3, "E-RAW-06"),
        (4, "E-RAW-12"),
        (5, "E-RAW-10"),
        (6, "E-RAW-13"),
    ]
    values = ("byte 0", "null", "character 2", "byte 0", "3000 bytes")
    assert all(value in r.reason for value, r in zip(values, rejects(items), strict=True))
    assert complaint(source).startswith(f"E-RAW-10 {tmp_path}/x.parquet:2: ")


def test_length_is_in_bytes(tmp_path: Path) -> None:
    source = write(tmp_path / "x.parquet", {"text": ["é" * 50, "é" * 51]})
    assert [item.line for item in rejects(read(source, work_of(max_line_bytes=100)))] == [2]


def test_null_and_wrong_ids(tmp_path: Path) -> None:
    source = write(tmp_path / "x.parquet", {"text": ["a", "b"], "id": pa.array([None, "x"])})
    source = source_of(*source.files, kind="parquet", id_field="id")
    assert complaint(source).startswith(f"E-RAW-06 {tmp_path}/x.parquet:1: 'id' is null")


COLUMNS = {
    "missing": ({"body": ["x"]}, {}, "no column 'text' (its columns: 'body')"),
    "number": ({"text": [1]}, {}, "column 'text' is int64"),
    "list": ({"text": [["a"]]}, {}, "column 'text' is list"),
    "bytes": ({"text": [b"a"]}, {}, "column 'text' is binary"),
    "struct": ({"text": [{"a": "b"}]}, {}, "column 'text' is struct"),
    "dictionary of numbers": ({"text": pa.array([1]).dictionary_encode()}, {}, "column 'text' is int64"),
    "no id": ({"text": ["a"]}, {"id_field": "id"}, "no column 'id' (its columns: 'text')"),
    "id of floats": ({"text": ["a"], "id": [1.5]}, {"id_field": "id"}, "column 'id' is double"),
    "inside text": ({"text": ["a"]}, {"text_field": "text.a"}, "no column 'text.a'"),
    "inside a struct": ({"meta": [{"b": "c"}]}, {"text_field": "meta.a"}, "no column 'meta.a' (its columns: 'meta')"),
    "number that is also the id": ({"text": [1]}, {"id_field": "text"}, "column 'text' is int64"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_bad_columns(tmp_path: Path, case: str) -> None:
    table, more, message = COLUMNS[case]
    write(tmp_path / "x.parquet", table)
    source = source_of(tmp_path / "x.parquet", kind="parquet", **more)
    assert complaint(source).startswith(f"E-RAW-06 {tmp_path}/x.parquet: {message}")


def test_damaged(tmp_path: Path) -> None:
    """Cut or broken anywhere: never a traceback. Pages carry checksums only on demand, so some damage is silent."""
    path = tmp_path / "x.parquet"
    source = write(path, {"text": TEXTS})
    whole = path.read_bytes()
    for length in (5, 12, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert complaint(source).startswith(f"E-RAW-14 {path}:1: damaged parquet ("), length
    footer = len(whole) - 8
    for bad in (
        whole[:-4] + b"XXXX",
        whole[:footer] + b"\xff\xff\xff\x7fPAR1",
        whole[: footer - 40] + b"\xff" * 40 + whole[footer:],
    ):
        path.write_bytes(bad)
        assert complaint(source).startswith(f"E-RAW-14 {path}:1: damaged parquet (")
    path.write_bytes(whole[:4] + b"\xff" * 300 + whole[304:])
    assert complaint(source).startswith(f"E-RAW-14 {path}:1: damaged parquet (")


def test_damaged_later(tmp_path: Path) -> None:
    """The row at which it ends is named, and what is before it is read."""
    path = tmp_path / "x.parquet"
    source = write(path, {"text": TEXTS}, rows=25, compression="zstd", use_dictionary=False)
    place = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + b"\xff" * 60 + whole[place + 60 :])
    assert complaint(source, work_of(chunk_bytes=1)).startswith(f"E-RAW-14 {path}:51: damaged parquet (")


def test_damage_in_pages_and_names(tmp_path: Path) -> None:
    """Checksums of pages are looked at where there are any; names of columns may be damaged too."""
    path = tmp_path / "x.parquet"
    source = write(path, {"text": TEXTS}, write_page_checksum=True, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"document 7 ", b"document 8 ", 1))
    assert complaint(source).startswith(f"E-RAW-14 {path}:1: damaged parquet (")
    path.write_bytes(whole.replace(b"text", b"te\xfft"))
    assert complaint(source).startswith(f"E-RAW-14 {path}:1: damaged parquet (")


def test_fewer_rows_than_the_footer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "x.parquet", {"text": TEXTS})
    whole = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **k: (batch.slice(1) for batch in whole(*a, **k)))
    assert "29 rows" in (text := complaint(source)) and "30" in text


def test_one_row_group_in_little_memory(tmp_path: Path) -> None:
    """Chunks stay small in a row group that is large: it is never held as a whole."""
    many = [f"{i} " * 300 for i in range(20_000)]  # 30 MB
    source = write(tmp_path / "x.parquet", {"text": many}, rows=1 << 20)
    (input,) = inputs("mine", source)
    before = pa.total_allocated_bytes()
    peak = largest = 0
    for chunk in chunks(input, source, work_of(chunk_bytes=1 << 18), None):
        peak = max(peak, pa.total_allocated_bytes() - before)
        largest = max(largest, len(chunk.data))
    assert largest < 1 << 20 and peak < 12 << 20
