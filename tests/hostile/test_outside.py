"""Files that nobody would write on purpose are refused at once, in words, whatever they claim to be."""

import json
import os
from pathlib import Path

import pytest

from coca_train.runtime import untrusted_io
from coca_train.runtime.durable import sealed, unsealed
from coca_train.runtime.errors import DataError
from coca_train.runtime.printing import LONGEST_LINE, bounded, escaped
from coca_train.tracking.records import read_jsonl


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for name, word in {"pipe": "a pipe", "zero": "a device", "folder": "directory", "loop": "symbolic links"}.items():
        with pytest.raises(OSError, match=word):
            untrusted_io.read_json(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        untrusted_io.read_json(tmp_path / "nothing")


def test_a_link_is_followed_where_that_is_wanted(tmp_path: Path) -> None:
    """The cache of the hub is a folder of links; in a checkpoint a link is none of ours."""
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "config.json").symlink_to("blob")
    assert untrusted_io.read_object(tmp_path / "config.json") == {}
    with pytest.raises(OSError, match="symbolic links"):
        untrusted_io.read_object(tmp_path / "config.json", follow=False)


def test_size_is_what_is_read_and_not_what_is_claimed(tmp_path: Path) -> None:
    assert os.stat("/proc/self/maps").st_size == 0
    with pytest.raises(OSError, match="more than 100 bytes"):
        untrusted_io.read_bytes("/proc/self/maps", 100)
    (tmp_path / "x").write_bytes(b"1" * 100)
    assert untrusted_io.read_bytes(tmp_path / "x", 100) == b"1" * 100
    os.truncate(tmp_path / "x", 1 << 40)
    with pytest.raises(OSError, match="more than 100 bytes"):
        untrusted_io.read_bytes(tmp_path / "x", 100)


def test_lines_of_a_terabyte_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    os.truncate(tmp_path / "metrics.jsonl", 1 << 40)
    with pytest.raises(DataError, match=r"E-RUN-31 .*4,294,967,296 bytes"):
        read_jsonl(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("levels", [101, 900, 100_000])
def test_depth(levels: int) -> None:
    assert untrusted_io.from_json(deep(100)) == json.loads(deep(100))
    for text in (deep(levels), "[" * levels + "]" * levels):
        with pytest.raises(ValueError, match="100 levels"):
            untrusted_io.from_json(text)


def test_records_of_a_damaged_file_are_those_that_are_whole(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "loss": 2.5}', "[" * 10_000, '{"step": 2, "loss": "x", "lr": 1}', "x" * (3 << 20),
        '{"step": true}', '{"step": 3, "batch_digest": "ab"}', '{"step": 4, "lo',
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    expected = [{"step": 1, "loss": 2.5}, {"step": 2, "lr": 1}, {"step": 3, "batch_digest": "ab"}]
    assert read_jsonl(tmp_path / "metrics.jsonl", damaged=True) == expected
    assert read_jsonl(tmp_path / "nothing.jsonl") == []


def test_what_was_changed_after_it_was_written_is_seen() -> None:
    kept = sealed({"a": [1.5, float("inf")], "b": None})
    assert unsealed(kept) == {"a": [1.5, float("inf")], "b": None}
    with pytest.raises(ValueError, match="changed"):
        unsealed(kept | {"b": 0})


def test_text_for_a_terminal() -> None:
    assert escaped("a\x1b[2J\r\udcff\u202eß\n\tb") == "a\\x1b[2J\\r\\udcff\\u202eß\n\tb"
    assert bounded("x" * LONGEST_LINE) == "x" * LONGEST_LINE
    line = bounded("begin" + "x" * 10_000 + "Fix: end")
    assert len(line) < LONGEST_LINE + 10 and line.startswith("begin") and line.endswith("Fix: end")
