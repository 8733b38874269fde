"""Draw mutations by seed: `python -m tests.mutations.draw` brings drawn.json up to today's code.

A mutation whose statement is still there stays, with what was seen of it; one whose statement is gone goes; and every
room is filled up again.

Drawn are statements, at random in each room, at most two of a function; then a kind of change among those the
statement allows, then one of that kind. Left out is what no test should pin: messages (raise, assert, f-strings,
printing), descriptions of options, annotations, docstrings. Only a statement that is once in the functions
of its name is drawn, so that it can be found again wherever it moves.
"""

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.mutations.mutation import DRAWN, Lost, Mutation, Place, find, load, mutated_source, places, save, text_of

SEED = 20250817
PER_ROOM = 13
LARGER = {"data_prep": 19, "evaluation": 17}
MODULES = "modules"  # the room of the modules that lie in coca_train itself

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
    """Return the room of a source file, named from the checkout's root: its package of coca_train, or data_prep."""
    package, *folders = Path(path).parts[:-1]
    return package if package != "coca_train" else folders[0] if folders else MODULES


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


def draw(folder: Path, before: Sequence[Mutation] = (), seed: int = SEED) -> list[Mutation]:
    """Return mutations of the checkout in this folder: those of `before` that are still there, and new ones."""
    by_text = places(folder)
    known = [place for twins in by_text.values() for place in twins]
    times = Counter((place.function, text_of(place.statement)) for place in known)
    rooms: dict[str, list[Place]] = defaultdict(list)
    for place in known:
        if times[place.function, text_of(place.statement)] == 1:
            rooms[room_of(place.path.relative_to(folder).as_posix())].append(place)
    kept: dict[str, list[tuple[Mutation, Place]]] = defaultdict(list)
    for mutation in before:
        with suppress(Lost):
            place = find(mutation, by_text)
            room = room_of(place.path.relative_to(folder).as_posix())
            kept[room].append((replace(mutation, room=room, function=place.function), place))
    drawn = []
    for room in sorted(rooms):
        own, chance = kept[room], random.Random(f"{seed} {room}")
        chosen = _of_room(rooms[room], [place for _, place in own], LARGER.get(room, PER_ROOM) - len(own), chance)
        new = [(Mutation("", room, *what), None) for what in chosen]
        drawn += [replace(mutation, id=f"{room}-{n:02d}") for n, (mutation, _) in enumerate([*own, *new], 1)]
    return drawn


def _of_room(
    candidates: list[Place], taken: list[Place], n: int, chance: random.Random
) -> list[tuple[str, str, str, str]]:
    """Return (function, original, mutated, kind) of n more mutations. taken: statements that have one."""
    chosen: list[tuple[str, str, str, str]] = []
    of_function = Counter((place.path, place.function) for place in taken)
    statements = {(place.path, text_of(place.statement)) for place in taken}
    for place in chance.sample(candidates, len(candidates)):
        if len(chosen) >= n:
            break
        by_kind: dict[str, list[str]] = defaultdict(list)
        original = text_of(place.statement)
        for kind, mutated in changes(place.statement):
            by_kind[kind].append(mutated)
        if not by_kind or of_function[place.path, place.function] >= 2 or (place.path, original) in statements:
            continue
        kind = chance.choice(sorted(by_kind))
        mutated = chance.choice(by_kind[kind])
        compile(mutated_source(place, mutated), place.path, "exec")
        of_function[place.path, place.function] += 1
        chosen.append((place.function, original, mutated, kind))
    return chosen


if __name__ == "__main__":
    recorded = load() if DRAWN.exists() else []
    now = draw(Path.cwd(), recorded)
    save(now)
    stay = sum(bool(mutation.outcome) for mutation in now)
    print(f"{len(now)} mutations, {stay} of them tried before; {len(recorded)} were recorded")
