"""docs/fidelity.md: every item is whole, and what it names exists. Whether it is true, the tests it names must show."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/fidelity.md").read_text(encoding="utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")
VERDICTS = ("right", "differs", "not here")


class Item(NamedTuple):
    """A row of a table."""

    number: str
    says: str
    where: str
    verdict: str
    ground: str  # a test, or a reason

    @property
    def is_open(self) -> bool:
        return bool(re.search(r"(^|\()open\b", self.ground))


def items() -> list[Item]:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| *[A-Z]\d+ *\|", line)]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert all(len(each) == len(Item._fields) for each in cells), [each[0] for each in cells if len(each) != 5]
    return [Item(*each) for each in cells]


ITEMS = items()


@cache
def classes(file: Path) -> dict[str, ast.ClassDef]:
    """By name, the classes of a file."""
    return {node.name: node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.ClassDef)}


@cache
def contracts() -> dict[str, ast.ClassDef]:
    """The classes that tests of schemes, frequencies and attention patterns are made of."""
    files = sorted((ROOT / "coca_train/testing").glob("*.py"))
    return {name: node for file in files for name, node in classes(file).items()}


def functions(nodes: list[ast.stmt]) -> set[str]:
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def methods(name: str, known: dict[str, ast.ClassDef]) -> set[str]:
    """Those of a class and of what it is made of."""
    node = known[name]
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in known]
    return functions(node.body).union(*(methods(base, known) for base in bases))


def exists(test: str) -> bool:
    """Whether `file::test` or `file::class::test` is there."""
    file, *place, name = test.split("::")
    path = ROOT / file
    if not path.is_file():
        return False
    if not place:
        return name in functions(ast.parse(path.read_text("utf-8")).body)
    return place[0] in classes(path) and name in methods(place[0], contracts() | classes(path))


def test_what_a_name_of_a_test_must_be():
    here = "tests/house/test_fidelity.py"
    assert exists(f"{here}::test_what_a_name_of_a_test_must_be")
    assert exists("tests/positions/test_coca.py::TestContract::test_it_is_relative_if_it_says_so")
    for wrong in (f"{here}::test_none", "tests/positions/test_coca.py::TestContract::test_none", "tests/no.py::test_a"):
        assert not exists(wrong)


def test_the_counts_are_those_of_the_rows():
    (head,) = re.findall(r"(\d+) items: (\d+) right, (\d+) differ, (\d+) are not here; (\d+) of these are open", PAGE)
    counts = [sum(item.verdict == verdict for item in ITEMS) for verdict in VERDICTS]
    assert [*map(int, head)] == [len(ITEMS), *counts, sum(item.is_open for item in ITEMS)]
    assert len(ITEMS) >= 120


def test_numbers_count_on_in_each_table():
    for section in PAGE.split("\n## ")[1:]:
        numbers = re.findall(r"^\| *([A-Z]\d+) *\|", section, re.M)
        assert numbers == [f"{numbers[0][0]}{n}" for n in range(1, len(numbers) + 1)]
    assert len({item.number for item in ITEMS}) == len(ITEMS)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_item_has_its_columns(verdict):
    """And a right one names a test, any other a reason."""
    for item in (item for item in ITEMS if item.verdict == verdict):
        assert len(item.says) >= 10, item
        tests = TEST.findall(item.ground)
        if verdict == "right":
            assert tests and not TEST.sub("", item.ground).strip(" ,"), item
        else:
            assert len(TEST.sub("", item.ground)) >= 15, item
    assert {item.verdict for item in ITEMS} == set(VERDICTS)


def test_every_test_named_exists():
    named = set(TEST.findall(PAGE))
    assert len(re.findall(r"`tests/[^`]*::", PAGE)) == len(TEST.findall(PAGE))
    assert not sorted(test for test in named if not exists(test))


def test_every_place_named_exists():
    """A file, or `file:name` of a function or a class in it. (Values: tests/config/test_fidelity_values.py.)"""
    for item in ITEMS:
        places = [place for place in re.findall(r"`([^`]+)`", item.where) if " = " not in place]
        assert places, item
        for place in places:
            path, _, name = place.partition(":")
            file = ROOT / path
            assert file.is_file(), item
            assert not name or re.search(rf"\b(def|class) {name}\b", file.read_text("utf-8")), item
