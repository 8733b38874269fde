"""Draw mutations by seed, once: `python -m tests.mutations.draw` writes drawn.json.

Drawn are statements, at random in each room, at most two of a function; then a kind of change among those the
statement allows, then one of that kind. Left out is what no test should pin: messages (raise, assert, f-strings,
printing), descriptions of options, annotations, docstrings. Only a statement that is once in the functions
of its name is drawn, so that it can be found again wherever it moves.
"""

import ast
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.mutations.mutation import DRAWN, Mutation, Place, mutated_source, places, save, text_of

SEED = 20250817
PER_ROOM = 13
LARGER = {"data_prep": 19, "evals": 17, "loose": 16}
ROOMS = {
    **{name: (f"coca_train/{name}/",) for name in ("config", "positions", "models", "engine", "checkpoint", "data")},
    **{name: (f"coca_train/{name}/",) for name in ("report", "planning", "interop", "catalog")},
    "evals": ("coca_train/evals/", "coca_train/evaluation/"),
    "data_prep": ("data_prep/",),
    "loose": ("coca_train/",),  # the modules beside the rooms
}

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip
EXTREMA = {"min": "max", "max": "min"}
TALK = {"print", "dist.log", "warnings.warn", "Field"}


def room_of(path: str) -> str:
    """The room of a file, named from the checkout's root."""
    return next(room for room, folders in ROOMS.items() if path.startswith(folders))


def changes(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    """Every (kind, mutated text) of one statement."""
    if isinstance(statement, (ast.Raise, ast.Assert)):
        return
    match statement:
        case ast.If(body=[ast.Raise()], orelse=[]):
            yield "raise removed", "if False:"
        case ast.Return(value=ast.AST() as value) if not isinstance(value, ast.Constant):
            yield "None returned", "return None"
        case ast.AugAssign() | ast.Expr(value=ast.Call()) if not _talks(getattr(statement, "value", None)):
            yield "statement removed", "pass"
    fields = {ast.If: ["test"], ast.While: ["test"], ast.For: ["iter"], ast.With: ["items"]}
    for kind in _inside(statement, fields.get(type(statement), [*statement._fields])):
        yield kind, text_of(statement)


def _inside(node: ast.AST, fields: list[str]) -> Iterator[str]:
    """Change the tree below the node in place, one thing at a time; the kind of each change, undone when resumed."""
    for field in fields:
        value = getattr(node, field)
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            if field == "annotation" or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.JoinedStr) or _talks(child):
                continue
            for kind, other in _changed(child):
                setattr(node, field, [*children[:i], other, *children[i + 1 :]] if isinstance(value, list) else other)
                yield kind
                setattr(node, field, value)
            yield from _inside(child, [*child._fields])


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Every change of this very expression."""
    match node:
        case ast.Compare(left, ops, right):
            for i, op in enumerate(ops):
                other = COMPARISONS[type(op)]()
                yield "comparison", ast.Compare(left, [*ops[:i], other, *ops[i + 1 :]], right)
        case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not _of_text(node):
            yield "arithmetic", ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op, values):
            yield "and, or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "not removed", operand
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield "constant", ast.Constant(value * 2 or 1.0)
        case ast.Call(ast.Name(name), arguments, keywords) if name in EXTREMA:
            yield "min, max", ast.Call(ast.Name(EXTREMA[name]), arguments, keywords)


def _talks(node: ast.AST | None) -> bool:
    """Whether this is a call that only says something: nobody reads it but people."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in TALK


def _of_text(node: ast.BinOp) -> bool:
    """Whether strings or paths are put together."""
    texts = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
    return any(
        isinstance(part, texts) or (isinstance(part, ast.Constant) and isinstance(part.value, (str, bytes)))
        for part in (node.left, node.right)
    ) or (isinstance(node.left, ast.BinOp) and _of_text(node.left))


def draw(folder: Path, seed: int = SEED) -> list[Mutation]:
    """The mutations of the checkout in this folder."""
    known = [place for twins in places(folder).values() for place in twins]
    times = Counter((place.function, text_of(place.statement)) for place in known)
    rooms: dict[str, list[Place]] = defaultdict(list)
    for place in known:
        if times[place.function, text_of(place.statement)] == 1:
            rooms[room_of(place.path.relative_to(folder).as_posix())].append(place)
    drawn = []
    for room in sorted(rooms):
        chance = random.Random(f"{seed} {room}")
        chosen = _of_room(room, rooms[room], chance)
        drawn += [Mutation(f"{room}-{n:02d}", room, *what) for n, what in enumerate(chosen, 1)]
    return drawn


def _of_room(room: str, candidates: list[Place], chance: random.Random) -> list[tuple[str, str, str, str]]:
    """(function, original, mutated, kind), as many as the room gets."""
    chosen: list[tuple[str, str, str, str]] = []
    of_function: Counter[tuple[Path, str]] = Counter()
    for place in chance.sample(candidates, len(candidates)):
        by_kind: dict[str, list[str]] = defaultdict(list)
        original = text_of(place.statement)
        for kind, mutated in changes(place.statement):
            by_kind[kind].append(mutated)
        if not by_kind or of_function[place.path, place.function] == 2:
            continue
        kind = chance.choice(sorted(by_kind))
        mutated = chance.choice(by_kind[kind])
        compile(mutated_source(place, mutated), place.path, "exec")
        of_function[place.path, place.function] += 1
        chosen.append((place.function, original, mutated, kind))
        if len(chosen) == LARGER.get(room, PER_ROOM):
            break
    return chosen


if __name__ == "__main__":
    if DRAWN.exists():
        sys.exit(f"{DRAWN} is there already, with what was seen; drawing again would choose other mutations")
    save(draw(Path.cwd()))
