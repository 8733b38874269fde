"""Mutations are found by name and text, wherever they lie, and change one statement only."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutations.draw import changes, draw, room_of
from tests.mutations.mutation import Lost, Mutation, find, mutated_source, places
from tests.mutations.run import ALSO

ROOT = Path(__file__).parents[2]

SOURCE = '''
class Queue:
    def add(self, n):  # a comment
        """Adds, 1 at a time."""
        if n < 0:
            raise ValueError(f"{n + 1}")
        elif (
            n == 0
        ):
            return
        self.total += n
        print(n + 1)

def other(n):
    return n
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "coca_train").mkdir()
    (tmp_path / "coca_train" / "queue.py").write_text(SOURCE)
    return tmp_path


def mutation(function: str, original: str, mutated: str = "pass") -> Mutation:
    return Mutation("x-01", "x", function, original, mutated, "kind")


@pytest.mark.parametrize("function", ["Queue.add", "Row.add", "Row.push"])
def test_found_by_name_then_last_name_then_text(folder, function):
    assert find(mutation(function, "self.total += n"), places(folder)).lines() == range(11, 12)


@pytest.mark.parametrize("original", ["self.total -= n", "n = 2"])
def test_what_is_not_there_is_lost(folder, original):
    with pytest.raises(Lost, match="nowhere"):
        find(mutation("Queue.add", original), places(folder))


def test_what_is_there_twice_is_lost(folder):
    (folder / "coca_train" / "again.py").write_text(SOURCE)
    with pytest.raises(Lost, match=r"Queue.add in again.py, Queue.add in queue.py"):
        find(mutation("Queue.add", "self.total += n"), places(folder))


@pytest.mark.parametrize(
    ("original", "mutated", "before", "after"),
    [
        ("self.total += n", "pass", "self.total += n", "pass"),
        ("if n == 0:", "if n != 0:", "elif (\n            n == 0\n        ):", "elif n != 0:"),
        ("return n", "return None", "    return n\n", "    return None\n"),
    ],
)
def test_one_statement_changes(folder, original, mutated, before, after):
    place = find(mutation("?", original), places(folder))
    assert mutated_source(place, mutated) == SOURCE.replace(before, after)


def test_drawing_again_keeps_what_is_there_and_fills_up(folder):
    """What was seen stays with a statement, wherever it moves; what is gone goes."""
    seen = replace(mutation("Queue.add", "self.total += n"), outcome="caught", by="tests/x.py::test_x")
    (folder / "coca_train" / "data").mkdir()
    (folder / "coca_train" / "queue.py").rename(folder / "coca_train" / "data" / "queue.py")
    drawn = draw(folder, [seen, mutation("Queue.gone", "n = 2")])
    assert drawn[0] == replace(seen, id="data-01", room="data")
    assert [each.id for each in drawn] == [f"data-{n:02d}" for n in range(1, len(drawn) + 1)]
    originals = {each.original for each in drawn}  # two of a function at most
    assert len(drawn) == 3 and {"self.total += n", "return n"} < originals
    assert draw(folder, drawn) == drawn


def test_rooms_are_packages_with_tests():
    assert [room_of(path) for path in ("coca_train/a.py", "coca_train/b/c/d.py", "data_prep/e/f.py")] == [
        "modules",
        "b",
        "data_prep",
    ]
    assert all((ROOT / "tests" / folder).is_dir() for folders in ALSO.values() for folder in folders)
    assert all((ROOT / "coca_train" / room).is_dir() for room in ALSO if room != "modules")


def test_what_is_said_to_people_is_left_alone(folder):
    by_text = {text: {other for _, other in changes(known[0].statement)} for text, known in places(folder).items()}
    assert by_text == {
        "'Adds, 1 at a time.'": set(),
        "if n < 0:": {"if n <= 0:", "if n < 1:"},
        "raise ValueError(f'{n + 1}')": set(),
        "if n == 0:": {"if n != 0:", "if n == 1:"},
        "return": set(),
        "self.total += n": {"pass"},
        "print(n + 1)": set(),
        "return n": {"return None"},
    }
