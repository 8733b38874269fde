"""Rules about the data section, and about names and paths wherever they stand; in the form of check.py."""

import re
from typing import Any

from coca_train.config.messages import Problem
from coca_train.config.schema import DataConfig, TrainConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def memory(position: Any, data: DataConfig) -> list[Problem]:
    """Segment recurrence: the memory is the text before, which the data must be as well."""
    if not getattr(position, "memory_len", 0):
        return []
    found = []
    if data.order != "stream":
        text = "shuffled windows do not go on where the ones before ended, so a memory would hold other text"
        fix = "write data.order=stream, or position.memory_len=0"
        found.append(Problem("E-CFG-43", ("data.order", "position.memory_len"), text, fix))
    if data.document_mask:
        text = "the memory holds earlier documents, which document_mask hides"
        fix = "write data.document_mask=false, or position.memory_len=0"
        found.append(Problem("E-CFG-43", ("data.document_mask", "position.memory_len"), text, fix))
    return found


def sources(data: DataConfig) -> list[Problem]:
    """Held-out text is not trained on, and no text is two sources."""
    found, seen = [], {}
    for name, source in data.sources.items():
        key = f"data.sources.{name}"
        if source.path in seen:
            fix = f"remove one (~{key}) and raise the other's weight"
            found.append(Problem("E-CFG-30", (f"{key}.path", seen[source.path]), "two sources read the same file", fix))
        seen.setdefault(source.path, f"{key}.path")
    for name, source in data.sources.items():
        key = f"data.sources.{name}.valid_path"
        if source.valid_path in seen:
            text = "held-out text is also trained on"
            fix = f"give another file, or write {key}=null"
            found.append(Problem("E-CFG-30", (key, seen[str(source.valid_path)]), text, fix))
    return [*found, *names("data.sources", data.sources)]


def packing(data: DataConfig, train: TrainConfig) -> list[Problem]:
    """Packings that go with the rest of the data section."""
    found, windows = [], data.packing == "windows"
    if data.order == "stream" and not windows:
        text = f"a stream is cut into windows; {data.packing} do not go on where the ones before ended"
        fix = "write data.packing=windows, or data.order=shuffled"
        found.append(Problem("E-CFG-60", ("data.packing", "data.order"), text, fix))
    if data.packing == "documents" and not data.document_mask:
        text = "documents that only share a window must not see each other"
        fix = "write data.document_mask=true, or data.packing=windows"
        found.append(Problem("E-CFG-60", ("data.packing", "data.document_mask"), text, fix))
    if data.packing == "segments" and train.seq_len < 3:
        text = "a segment is a BOS, at least one token, and an EOS"
        found.append(Problem("E-CFG-60", ("data.packing", "train.seq_len"), text, "write train.seq_len=3 or more"))
    keys = ("data.upsample_from_tokens", "data.upsample_factor")
    if windows and data.upsample_from_tokens is not None:
        text = "windows know no documents, so none can be seen more often"
        fix = "write data.upsample_from_tokens=null, or data.packing=segments or documents"
        found.append(Problem("E-CFG-61", ("data.packing", keys[0]), text, fix))
    if (data.upsample_from_tokens is None) != (data.upsample_factor == 1):
        what = "a factor of 1 changes nothing" if data.upsample_factor == 1 else "no length is given to begin at"
        fix = "write data.upsample_factor=5, for example, or data.upsample_from_tokens=null"
        if data.upsample_factor > 1:
            fix = "write data.upsample_from_tokens=4096, for example, or data.upsample_factor=1"
        found.append(Problem("E-CFG-61", keys, what, fix))
    return found


def names(section: str, mapping: dict[str, Any]) -> list[Problem]:
    """Keys of a section of named parts that cannot be part of a file name."""
    text, fix = "this name goes into file names", "use letters, digits, '.', '_', '-', at most 100"
    return [Problem("E-CFG-29", (f"{section}.{name}",), text, fix) for name in mapping if not _NAME.fullmatch(name)]


def paths(options: dict[str, str]) -> list[Problem]:
    """Options (key -> value) that are no path, or one that only a shell would understand."""
    found = []
    for key, path in options.items():
        if not path.strip() or not path.isprintable():
            found.append(Problem("E-CFG-29", (key,), "this is no path", f"give a folder or file name: {key}=…"))
        elif path.startswith("~"):
            found.append(Problem("E-CFG-29", (key,), "~ means nothing here", f"write {key}=$HOME{path[1:]}"))
    return found
