"""What the tests of the readers share: settings, lines, and reading an input to its end."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coca_train.config.corpus_schema import CorpusSourceConfig, FilterConfig, WorkConfig
from coca_train.data.readers import chunks, documents, inputs
from coca_train.data.readers.base import Chunk, Document, Reject
from coca_train.runtime.errors import DataError, UserError

FILTER = FilterConfig(
    min_chars=0,
    max_chars=None,
    language_field=None,
    languages=[],
    licence_field=None,
    licences=[],
    stars_field=None,
    min_stars=0,
    quality=[],
)
SOURCE = CorpusSourceConfig(
    kind="jsonl",
    files=[],
    hub=None,
    hub_config=None,
    hub_split="train",
    hub_files=[],
    text_field="text",
    id_field=None,
    group="text",
    weight=None,
    hold_out="none",
    licence="mine",
    about="made by a test",
    filter=FILTER,
)
WORK = WorkConfig(
    workers=1,
    shard="0/1",
    on_error="stop",
    max_reject_share=0,
    max_line_bytes=1 << 20,
    chunk_bytes=1 << 16,
    part_bytes=1 << 20,
    progress_bar=False,
)


def line(text: object, **more: object) -> bytes:
    return json.dumps({"text": text, **more}).encode() + b"\n"


def source_of(*paths: Path | str, kind: Any = "jsonl", **more: Any) -> CorpusSourceConfig:
    return replace(SOURCE, kind=kind, files=[str(path) for path in paths], **more)


def work_of(**more: Any) -> WorkConfig:
    return replace(WORK, **more)


def cut(source: CorpusSourceConfig, work: WorkConfig = WORK, cursor: dict | None = None) -> list[Chunk]:
    """All chunks of a source's only input."""
    (input,) = inputs("mine", source)
    return list(chunks(input, source, work, cursor))


def parsed(
    pieces: Iterable[Chunk], source: CorpusSourceConfig, work: WorkConfig = WORK, path: str = "x"
) -> list[Document | Reject]:
    return [item for chunk in pieces for item in documents(path, source, work, chunk)]


def read(source: CorpusSourceConfig, work: WorkConfig = WORK, cursor: dict | None = None) -> list[Document | Reject]:
    """All documents and rejects of all inputs of a source."""
    items: list[Document | Reject] = []
    for input in inputs("mine", source):
        items += parsed(chunks(input, source, work, cursor), source, work, input.path)
    return items


def texts(items: Iterable[Document | Reject]) -> list[str]:
    return [item.text for item in items if isinstance(item, Document)]


def rejects(items: Iterable[Document | Reject]) -> list[Reject]:
    return [item for item in items if isinstance(item, Reject)]


def read_or_stop(source: CorpusSourceConfig, work: WorkConfig, cursor: dict | None) -> None:
    """Read everything, and end at the first bad document as work.on_error=stop does."""
    for input in inputs("mine", source):
        for chunk in chunks(input, source, work, cursor):
            for item in documents(input.path, source, work, chunk):
                if isinstance(item, Reject):
                    raise item.error(input.path)


def complaint(source: CorpusSourceConfig, work: WorkConfig = WORK, cursor: dict | None = None) -> str:
    """The one line a source ends with under on_error=stop."""
    with pytest.raises(UserError) as caught:
        read_or_stop(source, work, cursor)
    message = str(caught.value)
    assert message.isprintable(), message
    assert "Fix: " in message and (isinstance(caught.value, DataError) or "E-RAW-25" in message)
    return message
