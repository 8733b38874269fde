"""manifest.json beside a dataset: what data_prep says of how the data were made."""

from pathlib import Path
from typing import Any

from coca_train.runtime import outside
from coca_train.runtime.errors import DataError

NAME = "manifest.json"
KINDS = ("corpus", "embedded")  # of manifests that data_prep writes; what has none of them is another tool's


def manifest_beside(prefix: Path | str) -> dict[str, Any] | None:
    """The manifest in the folder of a dataset; None: data_prep did not make the data, nothing is known of them.

    Raises DataError E-TOK-08 for one that cannot be read, or lacks what data_prep writes.
    """
    path = Path(prefix).parent / NAME
    try:
        manifest = outside.read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _damaged(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not isinstance(manifest, dict) or manifest.get("kind") not in KINDS:
        return None
    if wrong := _wrong(manifest):
        raise _damaged(path, f"has no {wrong} as data_prep writes it")
    return manifest


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"E-TOK-08 {path}: {what}; what the data beside it are made of is not known. Fix: copy it again, or remove it "
        "where it is not of these data"
    )


def _wrong(manifest: dict[str, Any]) -> str:
    """The first of the statements read here that is not of its kind; "": all are."""
    tokenizer, sources = manifest.get("tokenizer"), manifest.get("sources", {})
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("sha256"), str):
        return "tokenizer"
    if not isinstance(sources, dict) or not all(isinstance(source, dict) for source in sources.values()):
        return "sources"
    if not all(_lists_inputs(source) for source in sources.values()):
        return "inputs"
    return "" if isinstance(manifest.get("licences", {}), dict) else "licences"


def _lists_inputs(source: dict[str, Any]) -> bool:
    inputs = source.get("inputs")
    return isinstance(inputs, list) and all(
        isinstance(one, dict) and one.keys() >= ({"hub", "split", "shard"} if "hub" in one else {"name"})
        for one in inputs
    )
