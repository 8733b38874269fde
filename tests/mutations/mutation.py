"""A mutation: one statement of one function, said otherwise. It is found again by its text, never by path or line."""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

SOURCES = ("coca_train", "data_prep")
DRAWN = Path(__file__).parent / "drawn.json"


@dataclass
class Mutation:
    """As drawn.json has it. The first six fields say what it is, the others what was seen when its line was drawn."""

    id: str
    room: str
    function: str  # with its classes: "Scheme.forward"
    original: str  # ast.unparse of the statement; of if, for, while and with the first line only
    mutated: str
    kind: str
    outcome: str = ""  # "" not tried, "caught", "survived", "equivalent": no test can catch it
    by: str = ""  # the test that caught it
    reason: str = ""  # why it is equivalent
    seconds: float = 0.0


class Place(NamedTuple):
    """A statement of a function."""

    path: Path
    function: str
    statement: ast.stmt

    def lines(self) -> range:
        """Lines of its text, counted from 1: of a compound statement those before its body."""
        first, last = self.statement.lineno, self.statement.end_lineno or self.statement.lineno
        if isinstance(self.statement, (ast.If, ast.For, ast.While, ast.With)):
            last = self.statement.body[0].lineno - 1
        return range(first, last + 1)


class Lost(Exception):
    """The statement is not there any more, or not once: function and original need to be anchored by hand."""


def load(path: Path = DRAWN) -> list[Mutation]:
    return [Mutation(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def save(mutations: Sequence[Mutation], path: Path = DRAWN) -> None:
    """Whole or not at all: a run that is killed leaves the last state."""
    text = json.dumps([asdict(mutation) for mutation in mutations], indent=1, ensure_ascii=False)
    path.with_suffix(".new").write_text(text + "\n", encoding="utf-8")
    path.with_suffix(".new").replace(path)


def text_of(statement: ast.stmt) -> str:
    """The statement as one line; of a compound one its head, so that work on its body does not lose it."""
    if isinstance(statement, (ast.If, ast.While)):
        return ast.unparse(type(statement)(test=statement.test, body=[], orelse=[]))
    if isinstance(statement, ast.For):
        return ast.unparse(ast.For(statement.target, statement.iter, [], [], lineno=0))
    if isinstance(statement, ast.With):
        return ast.unparse(ast.With(statement.items, [], lineno=0))
    return ast.unparse(statement)


def places(folder: Path) -> dict[str, list[Place]]:
    """Every statement of every function below the folder's sources, by its text."""
    by_text: dict[str, list[Place]] = defaultdict(list)
    for path in sorted(path for source in SOURCES for path in (folder / source).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function, statement in _statements(tree, "", inside=False):
            by_text[text_of(statement)].append(Place(path, function, statement))
    return by_text


def _statements(node: ast.AST, name: str, inside: bool) -> Iterator[tuple[str, ast.stmt]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{name}.{child.name}".lstrip(".")
            yield from _statements(child, inner, inside or not isinstance(child, ast.ClassDef))
        elif isinstance(child, (ast.Try, ast.ExceptHandler, ast.Match, ast.match_case)):
            yield from _statements(child, name, inside)
        elif isinstance(child, ast.stmt):
            if inside:
                yield name, child
            yield from _statements(child, name, inside)


def find(mutation: Mutation, known: Mapping[str, Sequence[Place]]) -> Place:
    """Where its statement is: in the function of that name, else of that last name, else in any."""
    same = known.get(mutation.original, ())
    last = mutation.function.rpartition(".")[2]
    named = [place for place in same if place.function == mutation.function]
    alike = [place for place in same if place.function.rpartition(".")[2] == last]
    matches = named or alike or same
    if len(matches) != 1:
        where = ", ".join(f"{place.function} in {place.path.name}" for place in matches) or "nowhere"
        raise Lost(f"{mutation.id} {mutation.function}: {mutation.original!r} is {where}")
    return matches[0]


def mutated_source(place: Place, mutated: str) -> str:
    """The file's text with the other statement, nothing else changed."""
    lines = place.path.read_text(encoding="utf-8").splitlines(keepends=True)
    here = place.lines()
    old = lines[here.start - 1]
    indent = old[: len(old) - len(old.lstrip())]
    otherwise = "el" if old.lstrip().startswith("elif ") else ""
    lines[here.start - 1 : here.stop - 1] = [f"{indent}{otherwise}{mutated}\n"]
    return "".join(lines)
