"""How a file is read, as the ending of its name says."""

from pathlib import Path
from typing import Literal

Kind = Literal["auto", "jsonl", "parquet", "text", "folder", "hub"]
OfFile = Literal["jsonl", "parquet", "text"]
ENDINGS: dict[str, OfFile] = {".jsonl": "jsonl", ".parquet": "parquet", ".txt": "text", ".md": "text"}
PACKED = (".gz", ".zst")


def ending(path: str) -> str:
    """.jsonl of raw/*.jsonl.gz."""
    name = Path(path)
    return Path(name.stem if name.suffix.lower() in PACKED else name.name).suffix.lower()


def kind_of_file(path: str) -> OfFile | Literal["auto"]:
    """What the ending of a path or pattern says it is; auto: nothing."""
    return ENDINGS.get(ending(path), "auto")
