"""What the named parts of a section leave out: the values of one file that stand below every part.

A corpus of thirty sources need not say thirty times that documents may have any length.
"""

from pathlib import Path
from typing import Any

import yaml

from coca_train.config.provenance import Sources, read
from coca_train.config.root import Root
from coca_train.runtime.trees import lookup


def fill(root: Root, tree: dict[str, Any], sources: Sources, dirs: tuple[Path, ...]) -> None:
    """Give every part in `tree` the values it has none for, and note where they stand."""
    for section, file in root.templates.items():
        path = next(folder / f"{file}.yaml" for folder in dirs if (folder / f"{file}.yaml").is_file())
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        try:
            parts = lookup(tree, section)
        except KeyError:
            continue  # typing will say that it is missing
        for name, part in parts.items() if isinstance(parts, dict) else ():
            if isinstance(part, dict):
                _below(part, values)
                places = Sources()
                read(path, f"{section}.{name}", places)
                sources.files = places.files | sources.files


def _below(part: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        own = part.setdefault(key, value if not isinstance(value, dict) else {})
        if isinstance(own, dict) and isinstance(value, dict):
            _below(own, value)
