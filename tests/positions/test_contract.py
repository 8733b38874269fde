"""Every file of positions/schemes/, rope_scaling/ and attention_patterns/ has a definition beside its tests: a contract
(coca_train/testing/) that a file of this folder inherits."""

import ast
from functools import cache
from pathlib import Path

import pytest

from coca_train.attention import ATTENTION_PATTERNS
from coca_train.positions import ROPE_SCALINGS, SCHEMES
from coca_train.testing.parts import shipped

KINDS = {
    "scheme": (SCHEMES, "SchemeContract", "score", "position"),
    "rope_scaling": (ROPE_SCALINGS, "RopeScalingContract", "spectrum", "position/rope_scaling"),
    "attention_pattern": (ATTENTION_PATTERNS, "PatternContract", "place", "attention_pattern"),
}


@cache
def held_to_a_contract(attribute: str) -> set[str]:
    """What the test classes of this folder say they are about."""
    names = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                names |= {named for line in node.body for named in _named(line, attribute)}
    return names


def _named(line: ast.stmt, attribute: str) -> list[str]:
    if not isinstance(line, ast.Assign):
        return []
    target, value = line.targets[0], line.value
    pairs = zip(target.elts, value.elts, strict=True) if isinstance(target, ast.Tuple) else [(target, value)]
    return [v.value for t, v in pairs if t.id == attribute]


OURS = [
    (kind, name)
    for kind, (registry, *_) in KINDS.items()
    for name in registry.names()
    if (registry.folder / f"{name}.py").is_file()
]


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_it_has_a_definition(kind, name):
    _, contract, method, _ = KINDS[kind]
    assert name in held_to_a_contract(kind), (
        f"write tests/positions/test_{name}.py with a class that inherits {contract}, says {kind} = {name!r} and "
        f"defines {method}: what the paper says, for every pair by itself (docs/extending.md)"
    )


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_it_is_shipped(kind, name):
    *_, group = KINDS[kind]
    tag = {"scheme": "scheme"}.get(kind, "name")
    assert name in {settings[tag] for _, settings in shipped(group)}, f"configs/{group}/{name}.yaml offers it to nobody"
