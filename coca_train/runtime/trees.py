"""Trees of plain values, as read from YAML and JSON, addressed by dotted keys."""

from collections.abc import Iterator


def leaves(tree: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of everything that is not a section; list elements are numbered."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if pairs is None or not tree:
        yield prefix, tree
        return
    for name, value in pairs:
        yield from leaves(value, f"{prefix}.{name}" if prefix else str(name))


def flatten(tree: object, prefix: str = "") -> dict[str, object]:
    """Flatten {"a": {"b": (1,)}} to {"a.b": [1]}: a list is one value, a tuple is a list, an empty section is
    nothing."""
    if not isinstance(tree, dict):
        return {prefix: list(tree) if isinstance(tree, tuple) else tree}
    flat: dict[str, object] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def lookup(tree: object, key: str) -> object:
    """Return the value at a dotted key. KeyError when there is none."""
    for part in key.split("."):
        if isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, dict) and part in tree:
            tree = tree[part]
        else:
            raise KeyError(key)
    return tree


def section(tree: object, key: str) -> dict[str, object]:
    """Return the section at a dotted key; empty where there is none, or where the value is not a section."""
    try:
        value = lookup(tree, key)
    except KeyError:
        return {}
    return value if isinstance(value, dict) else {}
