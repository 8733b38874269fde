"""Bad lines of .jsonl: each is named by its code, file, line and value, and costs no other line."""

import re
from pathlib import Path

import pytest

from coca_train.data.readers.base import Document, Reject
from tests.data_prep.reading import complaint, line, read, rejects, source_of, texts, work_of

GOOD = line("fine")
# name: the line, the code, and what the reason or the excerpt says of it
BAD: dict[str, tuple[bytes, str, str]] = {
    "malformed": (b'{"text": oops}', "E-RAW-04", r"column 10 \(Expecting value\).*'\{\"text\": oops"),
    "cut": (b'{"text": "half', "E-RAW-04", "column 10"),
    "two objects": (b'{"text": "a"} {"text": "b"}', "E-RAW-04", "column 15"),
    "raw tab": (b'{"text": "a\tb"}', "E-RAW-04", "column 12"),
    "words": (b"hello", "E-RAW-04", "hello"),
    "fault far in": (line("x" * 300)[:-2] + b", oops}", "E-RAW-04", r"column 314 .*: 'x{30,}\", oops\}'"),
    "list": (b'["text"]', "E-RAW-05", r"a list .*: '\[\"text\"\]'"),
    "number": (b"3", "E-RAW-05", "a number"),
    "text": (b'"text"', "E-RAW-05", "text"),
    "null": (b"null", "E-RAW-05", "null"),
    "no field": (b'{"body": "x", "id": 1}', "E-RAW-06", r"'text' .*'body, id'"),
    "no fields": (b"{}", "E-RAW-06", r"'text' .*'none'"),
    "null field": (line(None), "E-RAW-06", "'text' is null"),
    "number field": (line(3.5), "E-RAW-06", "'text' is a number.*: '3.5'"),
    "list field": (line(["a", "b"]), "E-RAW-06", r"'text' is a list.*needed\. Fix"),
    "boolean field": (line(True), "E-RAW-06", "'text' is a boolean"),
    "object field": (line({"a": 1}), "E-RAW-06", "'text' is an object"),
    "key twice": (b'{"text": "a", "text": "b"}', "E-RAW-07", "'text' twice"),
    "key twice inside": (b'{"text": "a", "meta": [{"k": 1, "k": 1}]}', "E-RAW-07", "'k' twice"),
    "NaN": (b'{"text": "a", "score": NaN}', "E-RAW-08", "NaN"),
    "Infinity": (b'{"text": "a", "score": [-Infinity]}', "E-RAW-08", "-Infinity"),
    "deep list": (b'{"text": "a", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "E-RAW-09", "nested"),
    "deep object": (b'{"text":' * 100_000 + b"1" + b"}" * 100_000, "E-RAW-09", "nested"),
    "long number": (b'{"text": "a", "n": ' + b"7" * 5000 + b"}", "E-RAW-09", "digits"),
    "latin-1": ('{"text": "é"}'.encode("latin-1"), "E-RAW-10", "byte 10 "),
    "bad first byte": (b"\xff" + GOOD, "E-RAW-10", "byte 0 "),
    "bad last byte": (GOOD.rstrip() + b"\x80", "E-RAW-10", "byte 16 "),
    "bad in a key": (b'{"\xc3(": 1, "text": "a"}', "E-RAW-10", "byte 2 "),
    "overlong": (b'{"text": "\xc0\x80"}', "E-RAW-10", "byte 10 "),
    "encoded surrogate": (b'{"text": "\xed\xa0\x80"}', "E-RAW-10", "byte 10 "),
    "cut character": (b'{"text": "\xe2\x82"}', "E-RAW-10", "byte 10 "),
    "lone surrogate": (b'{"text": "ab\\ud800c"}', "E-RAW-11", "character 3 of 'text'"),
    "NUL byte": (b'{"text": "a\0b"}', "E-RAW-12", r"byte 11 .*: '\{\"text\": \"a\\x00b"),
    "escaped NUL": (b'{"text": "a\\u0000b"}', "E-RAW-12", "character 2 of 'text'"),
    "hole of NULs": (b"\0" * 4096, "E-RAW-12", "byte 0 "),
    "UTF-16 further on": (line("x")[:-1].decode().encode("utf-16-le"), "E-RAW-12", "byte 1 "),
    "too long": (line("x" * 3000), "E-RAW-13", "3012 bytes.* work.max_line_bytes=2000 "),
}


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("case", BAD)
def test_bad_line(tmp_path: Path, case: str, chunk_bytes: int) -> None:
    bad, code, what = BAD[case]
    (tmp_path / "x.jsonl").write_bytes(GOOD + bad.removesuffix(b"\n") + b"\n" + GOOD)
    limit = 2000 if case == "too long" else 1 << 24
    source, work = source_of(tmp_path / "x.jsonl"), work_of(chunk_bytes=chunk_bytes, max_line_bytes=limit)
    text = complaint(source, work)
    assert re.match(rf"{code} {tmp_path}/x\.jsonl:2: .*{what}", text), text
    assert len(text) < 500
    items = read(source, work)  # under on_error=skip: all the others are there
    assert [type(item) for item in items] == [Document, Reject, Document] and [item.line for item in items] == [1, 2, 3]
    assert rejects(items)[0].byte == len(GOOD) and len(rejects(items)[0].excerpt) <= 80


# of the options text_field and id_field: the line, the code, and what the reason says
FIELDS: dict[str, tuple[dict[str, str], bytes, str, str]] = {
    "missing inside": ({"text_field": "meta.text"}, b'{"meta": {"b": 1}}', "E-RAW-06", "'meta.text' .*'b'"),
    "missing outside": ({"text_field": "meta.text"}, b'{"b": 1}', "E-RAW-06", "'meta' .*'b'"),
    "through text": ({"text_field": "meta.text"}, b'{"meta": "x"}', "E-RAW-06", "'meta' is text.* 'text'"),
    "through null": ({"text_field": "meta.text"}, b'{"meta": null}', "E-RAW-06", "'meta' is null.* 'text'"),
    "through a list": ({"text_field": "meta.text"}, b'{"meta": [{"text": "x"}]}', "E-RAW-06", "'meta' is a list"),
    "undotted": ({"text_field": "meta.text"}, b'{"meta.text": "x"}', "E-RAW-06", "'meta' "),
    "id missing": ({"id_field": "id"}, b'{"text": "x"}', "E-RAW-06", "'id'"),
    "id null": ({"id_field": "id"}, line("x", id=None), "E-RAW-06", "'id' is null"),
    "id boolean": ({"id_field": "id"}, line("x", id=True), "E-RAW-06", "'id' is a boolean"),
    "id float": ({"id_field": "id"}, line("x", id=1.5), "E-RAW-06", "'id' is a number"),
    "id list": ({"id_field": "id"}, line("x", id=[1]), "E-RAW-06", "'id' is a list"),
    "id surrogate": ({"id_field": "id"}, b'{"text": "x", "id": "\\udfff"}', "E-RAW-11", "character 1 of 'id'"),
    "id NUL": ({"id_field": "id"}, b'{"text": "x", "id": "a\\u0000"}', "E-RAW-12", "character 2 of 'id'"),
}


@pytest.mark.parametrize("case", FIELDS)
def test_bad_field(tmp_path: Path, case: str) -> None:
    options, bad, code, what = FIELDS[case]
    good = [b'{"text": "a", "id": "a", "meta": {"text": "a"}}', b'{"text": "b", "id": 7, "meta": {"text": "b"}}']
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([*good, bad]))
    items = read(source_of(tmp_path / "x.jsonl", **options))
    assert texts(items) == ["a", "b"]
    assert "id_field" not in options or [item.id for item in items if isinstance(item, Document)] == ["a", "7"]
    (reject,) = rejects(items)
    assert (reject.code, reject.line) == (code, 3)
    assert re.search(what, reject.reason), reject


def test_nothing_foreign_reaches_the_terminal(tmp_path: Path) -> None:
    """Escape sequences, line breaks and bidirectional marks of data and of file names are escaped in messages."""
    name = "a\x1b]0;owned\x07\nb\u202e.jsonl"
    evil = '{"te\u202ext": "\x1b[2J", "\x9b31m": 1}'
    escaped = evil.replace("\x1b", "\\u001b")
    for content in (evil, escaped, '{"\\n\\u001b[2J": 1, "\\n\\u001b[2J": 2}', "\x1b]8;;http://x\x07"):
        (tmp_path / name).write_bytes(content.encode() + b"\n")
        assert r"a\x1b]0;owned\x07\nb\u202e.jsonl:1: " in complaint(source_of(tmp_path / name))
