"""Imports by string: what the import contract cannot see. `python -m tests.house.imports` lists the forbidden ones.

A registry may import the modules of a package by name, f"{__name__}.…" or f"{package.__name__}.…": the choice comes
from a configuration, the package from an import statement, which the contract in pyproject.toml sees. Other packages
than ours may be imported as one likes.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

OURS = ("coca_train", "data_prep")
ROOT = Path(__file__).resolve().parents[2]
IMPORTERS = ("import_module", "__import__")


def forbidden(root: Path) -> list[str]:
    """`file:line: call` of every import by string that leaves its own package."""
    return [
        f"{path.relative_to(root)}:{call.lineno}: {ast.unparse(call)}"
        for top in OURS
        for path in sorted((root / top).rglob("*.py"))
        for call in _imports(path.read_text(encoding="utf-8"))
        if not _is_seen(call)
    ]


def _imports(source: str) -> Iterator[ast.Call]:
    if not any(name in source for name in IMPORTERS):  # parsing every file takes seconds
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in IMPORTERS:
                yield node


def _is_seen(call: ast.Call) -> bool:
    """Whether the name is inside a package that an import statement brought, or is none of ours."""
    name = call.args[0] if call.args else None
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    if isinstance(first, ast.FormattedValue):
        return ast.unparse(first.value).endswith("__name__")
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value.split(".")[0] not in OURS
    return False


if __name__ == "__main__":
    lines = forbidden(ROOT)
    print("\n".join(lines) or "Every import can be seen.")
    sys.exit(bool(lines))
