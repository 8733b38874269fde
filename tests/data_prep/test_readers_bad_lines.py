"""Bad lines of .jsonl: each is named by its id, file, line and reason, and costs no other line."""

import re
from pathlib import Path

import pytest

from coca_train.data.readers.base import Document, Reject
from coca_train.runtime.errors import DataError
from tests.data_prep.reading import complaint, line, read, rejects, source_of, texts, work_of

GOOD = line("fine")
BAD = {
    "malformed": (
        b'{"text": oops}',
        r"E-RAW-04 \S+:2: malformed JSON at column 10 \(Expecting value\).*'\{\"text\": oops",
    ),
    "cut": (b'{"text": "half', r"E-RAW-04 \S+:2: malformed JSON at column 10 \(Unterminated string"),
    "two objects": (b'{"text": "a"} {"text": "b"}', r"E-RAW-04 \S+:2: malformed JSON at column 15 \(Extra data"),
    "raw tab": (b'{"text": "a\tb"}', r"E-RAW-04 \S+:2: malformed JSON at column 12 \(Invalid control character"),
    "words": (b"hello", r"E-RAW-04 \S+:2: "),
    "fault far in": (line("x" * 300)[:-2] + b", oops}", r"E-RAW-04 \S+:2: .*column 314 .*: 'x{30,}\", oops\}'"),
    "list": (b'["text"]', r"E-RAW-05 \S+:2: a list at the top of the line; an object is needed: '\[\"text\"\]'"),
    "number": (b"3", r"E-RAW-05 \S+:2: a number"),
    "text": (b'"text"', r"E-RAW-05 \S+:2: text"),
    "null": (b"null", r"E-RAW-05 \S+:2: null"),
    "no field": (
        b'{"body": "x", "id": 1}',
        r"E-RAW-06 \S+:2: no field 'text' \(its fields: 'body, id'\); 'text' is needed",
    ),
    "no fields": (b"{}", r"E-RAW-06 \S+:2: no field 'text' \(its fields: 'none'\)"),
    "null field": (line(None), r"E-RAW-06 \S+:2: 'text' is null; text is needed"),
    "number field": (line(3.5), r"E-RAW-06 \S+:2: 'text' is a number; text is needed: '3.5'"),
    "list field": (line(["a", "b"]), r"E-RAW-06 \S+:2: 'text' is a list; text is needed. Fix"),
    "boolean field": (line(True), r"E-RAW-06 \S+:2: 'text' is a boolean"),
    "object field": (line({"a": 1}), r"E-RAW-06 \S+:2: 'text' is an object"),
    "key twice": (b'{"text": "a", "text": "b"}', r"E-RAW-07 \S+:2: key 'text' twice in one object"),
    "key twice inside": (b'{"text": "a", "meta": [{"k": 1, "k": 1}]}', r"E-RAW-07 \S+:2: key 'k' twice"),
    "NaN": (b'{"text": "a", "score": NaN}', r"E-RAW-08 \S+:2: NaN is no JSON"),
    "Infinity": (b'{"text": "a", "score": [-Infinity]}', r"E-RAW-08 \S+:2: -Infinity is no JSON"),
    "deep list": (
        b'{"text": "a", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        r"E-RAW-09 \S+:2: JSON nested deeper",
    ),
    "deep object": (b'{"text":' * 100_000 + b"1" + b"}" * 100_000, r"E-RAW-09 \S+:2: JSON nested deeper"),
    "long number": (b'{"text": "a", "n": ' + b"7" * 5000 + b"}", r"E-RAW-09 \S+:2: a whole number with thousands"),
    "latin-1": ('{"text": "é"}'.encode("latin-1"), r"E-RAW-10 \S+:2: invalid UTF-8 at byte 10 of the line"),
    "bad first byte": (b"\xff" + GOOD, r"E-RAW-10 \S+:2: invalid UTF-8 at byte 0 of the line"),
    "bad last byte": (GOOD.rstrip() + b"\x80", r"E-RAW-10 \S+:2: invalid UTF-8 at byte 16 of the line"),
    "bad in a key": (b'{"\xc3(": 1, "text": "a"}', r"E-RAW-10 \S+:2: invalid UTF-8 at byte 2 of the line"),
    "overlong": (b'{"text": "\xc0\x80"}', r"E-RAW-10 \S+:2: invalid UTF-8 at byte 10"),
    "encoded surrogate": (b'{"text": "\xed\xa0\x80"}', r"E-RAW-10 \S+:2: invalid UTF-8 at byte 10"),
    "cut character": (b'{"text": "\xe2\x82"}', r"E-RAW-10 \S+:2: invalid UTF-8 at byte 10"),
    "lone surrogate": (b'{"text": "ab\\ud800c"}', r"E-RAW-11 \S+:2: a lone surrogate at character 3 of 'text'"),
    "NUL byte": (b'{"text": "a\0b"}', r"E-RAW-12 \S+:2: NUL byte at byte 11 of the line .*: '\{\"text\": \"a\\x00b"),
    "escaped NUL": (b'{"text": "a\\u0000b"}', r"E-RAW-12 \S+:2: NUL character at character 2 of 'text'"),
    "hole of NULs": (b"\0" * 4096, r"E-RAW-12 \S+:2: NUL byte at byte 0"),
    "UTF-16 further on": (line("x")[:-1].decode().encode("utf-16-le"), r"E-RAW-12 \S+:2: NUL byte at byte 1"),
    "too long": (line("x" * 3000), r"E-RAW-13 \S+:2: a line of 3012 bytes; at most work.max_line_bytes=2000 are read"),
}


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("case", BAD)
def test_bad_line(tmp_path: Path, case: str, chunk_bytes: int) -> None:
    bad, message = BAD[case]
    (tmp_path / "x.jsonl").write_bytes(GOOD + bad.removesuffix(b"\n") + b"\n" + GOOD)
    limit = 2000 if case == "too long" else 1 << 24
    source, work = source_of(tmp_path / "x.jsonl"), work_of(chunk_bytes=chunk_bytes, max_line_bytes=limit)
    text = complaint(source, work)
    assert re.match(message, text), text
    assert text.startswith(f"{message[:8]} {tmp_path}/x.jsonl:2: ") and len(text) < 500
    items = read(source, work)  # under on_error=skip: all the others are there
    assert [type(item) for item in items] == [Document, Reject, Document] and [item.line for item in items] == [1, 2, 3]
    assert rejects(items)[0].byte == len(GOOD) and len(rejects(items)[0].excerpt) <= 80


NESTED = {
    "missing inside": (b'{"meta": {"b": 1}}', r"no field 'meta.text' \(its fields: 'b'\); 'meta.text' is needed"),
    "missing outside": (b'{"b": 1}', r"no field 'meta' \(its fields: 'b'\); 'meta.text'"),
    "through text": (b'{"meta": "x"}', r"'meta' is text, so it has no field 'text'; 'meta.text'"),
    "through null": (b'{"meta": null}', r"'meta' is null, so it has no field 'text'"),
    "through a list": (b'{"meta": [{"text": "x"}]}', r"'meta' is a list, so it has no field 'text'"),
    "undotted": (b'{"meta.text": "x"}', r"no field 'meta' "),
}


@pytest.mark.parametrize("case", NESTED)
def test_bad_dotted_field(tmp_path: Path, case: str) -> None:
    bad, message = NESTED[case]
    (tmp_path / "x.jsonl").write_bytes(b'{"meta": {"text": "fine"}}\n' + bad + b"\n")
    source = source_of(tmp_path / "x.jsonl", text_field="meta.text")
    assert texts(read(source)) == ["fine"]
    with pytest.raises(DataError, match=rf"E-RAW-06 \S+x.jsonl:2: {message}"):
        raise rejects(read(source))[0].error(str(tmp_path / "x.jsonl"))


IDS = {
    "missing": (b'{"text": "x"}', "E-RAW-06", r"no field 'id'"),
    "null": (line("x", id=None), "E-RAW-06", r"'id' is null; text or a whole number is needed"),
    "boolean": (line("x", id=True), "E-RAW-06", r"'id' is a boolean"),
    "float": (line("x", id=1.5), "E-RAW-06", r"'id' is a number; text or a whole number is needed"),
    "list": (line("x", id=[1]), "E-RAW-06", r"'id' is a list"),
    "surrogate": (b'{"text": "x", "id": "\\udfff"}', "E-RAW-11", r"a lone surrogate at character 1 of 'id'"),
    "NUL": (b'{"text": "x", "id": "a\\u0000"}', "E-RAW-12", r"NUL character at character 2 of 'id'"),
}


@pytest.mark.parametrize("case", IDS)
def test_bad_id(tmp_path: Path, case: str) -> None:
    bad, code, message = IDS[case]
    (tmp_path / "x.jsonl").write_bytes(line("a", id="a") + line("b", id=7) + bad)
    items = read(source_of(tmp_path / "x.jsonl", id_field="id"))
    assert [item.id for item in items if isinstance(item, Document)] == ["a", "7"]
    (reject,) = rejects(items)
    assert reject.code == code and reject.line == 3
    assert reject.reason.startswith(message.replace("\\", "")), reject


def test_nothing_foreign_reaches_the_terminal(tmp_path: Path) -> None:
    """Escape sequences, line breaks and bidirectional marks of data and of file names are escaped in messages."""
    name = "a\x1b]0;owned\x07\nb\u202e.jsonl"
    evil = '{"te\u202ext": "\x1b[2J", "\x9b31m": 1}'
    for content in (
        evil,
        evil.replace("\x1b", "\\u001b"),
        '{"\\n\\u001b[2J": 1, "\\n\\u001b[2J": 2}',
        "\x1b]8;;http://x\x07",
    ):
        (tmp_path / name).write_bytes(content.encode() + b"\n")
        text = complaint(source_of(tmp_path / name))
        assert r"a\x1b]0;owned\x07\nb\u202e.jsonl:1: " in text
