"""The code that an export ships, cut from this package's own sources: what is needed, and nothing of it written twice.

From the definitions that are wanted it follows, name by name, what running them looks up, through all modules of ours;
annotations do not count, as they are never run. Each module becomes one file in a flat folder, with its docstring, its
comments and those definitions as they stand in the source; imports are written anew. Types of settings, rules of a
configuration and starts of weights are thereby left behind, and so is what only they need (pydantic, for one).

transformers copies the files that it finds by `from .name import …` in the file that config.json names, and in those
files again; never by `from . import name`. So that file ends with a line for every other.
"""

import __future__

import ast
import dis
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import CodeType
from typing import NamedTuple

WIDTH = 120  # of a line
OF_IT = ("LOAD_ATTR", "LOAD_METHOD")  # the instructions that take an attribute of what was loaded before
LIBRARIES = ("torch", "transformers")  # what an export may count on, beside Python's own
HEADER = "# {module}, as far as this model needs it: written by an export, not to be edited.\n"


class NotBundled(ValueError):
    """Why a definition cannot be shipped, in words."""


class Wanted(NamedTuple):
    """A definition by its module and name."""

    module: str
    name: str


class Imported(NamedTuple):
    """What an import statement binds: a module, or a name of one (`attribute`)."""

    module: str
    attribute: str | None


class Source:
    """A module of ours as text. packages: whose modules are ours."""

    def __init__(self, module: str, packages: frozenset[str]) -> None:
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise NotBundled(f"{module} has no source file")
        self.module, self.packages = module, packages
        self.is_package = spec.submodule_search_locations is not None
        self.text = Path(spec.origin).read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        self.statements: dict[str, list[ast.stmt]] = {}  # by the names that they bind
        self._lookups: dict[ast.stmt, _Lookups] = {}
        self.imports: dict[str, Imported] = {}
        for statement in self.tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.imports |= self.bindings(statement)
            elif not _is_for_types(statement):
                for name in self.lookups(statement).bound:
                    self.statements.setdefault(name, []).append(statement)

    def bindings(self, statement: ast.Import | ast.ImportFrom) -> dict[str, Imported]:
        """The names that an import binds."""
        if isinstance(statement, ast.Import):
            return {
                alias.asname or alias.name.partition(".")[0]: Imported(alias.name, None) for alias in statement.names
            }
        package = self.module if self.is_package else self.module.rpartition(".")[0]
        origin = resolve_name("." * statement.level + (statement.module or ""), package)
        return {alias.asname or alias.name: self._from(origin, alias.name) for alias in statement.names}

    def _from(self, origin: str, name: str) -> Imported:
        if name == "*":
            raise NotBundled(f"{self.module} imports all of {origin}; name what is needed")
        if origin.partition(".")[0] in self.packages and _is_module(f"{origin}.{name}"):
            return Imported(f"{origin}.{name}", None)
        return Imported(origin, name)

    def lookups(self, statement: ast.stmt) -> "_Lookups":
        if statement not in self._lookups:
            self._lookups[statement] = _lookups(statement)
        return self._lookups[statement]

    @cached_property
    def docstring(self) -> ast.stmt | None:
        return self.tree.body[0] if ast.get_docstring(self.tree) is not None else None

    def stretch(self, statement: ast.stmt) -> range:
        """Its lines, with decorators and the comment right above, from 0 on."""
        decorators = getattr(statement, "decorator_list", [])
        first = min(node.lineno for node in (statement, *decorators)) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        assert statement.end_lineno is not None
        return range(first, statement.end_lineno)


_source = cache(Source)  # an export asks for its code several times, and a source does not change meanwhile


@cache
def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _is_for_types(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING")


class _Lookups(NamedTuple):
    """Names of a module that a piece of its code binds, and that running it looks up, each with the attributes that are
    taken of it (None: it itself). read: those in annotations, which only a reader needs. nested: imports in functions.
    """

    bound: set[str]
    run: dict[str, set[str | None]]
    read: set[str]
    nested: list[ast.Import | ast.ImportFrom]


def _lookups(statement: ast.stmt) -> _Lookups:
    """Asked of Python's own compiler, which knows every kind of scope: what a function finds outside of it is loaded by
    an instruction of its own. Annotations are compiled as in the files that are written, to mere strings."""
    module = ast.Module([statement], [])
    flag = __future__.annotations.compiler_flag
    outermost = compile(module, "<source>", "exec", flags=flag, dont_inherit=True, optimize=0)
    lookups, waiting = _Lookups(set(), {}, set(), []), [outermost]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        instructions = list(dis.get_instructions(code))
        for this, following in zip(instructions, [*instructions[1:], None], strict=True):
            if this.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                of_it = following if following is not None and following.opname in OF_IT else None
                lookups.run.setdefault(this.argval, set()).add(None if of_it is None else of_it.argval)
            elif this.opname == "STORE_NAME" and code is outermost:
                lookups.bound.add(this.argval)
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            lookups.nested.append(node)
        for written in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(written, ast.AST):
                lookups.read.update(each.id for each in ast.walk(written) if isinstance(each, ast.Name))
    return lookups


class Bundle:
    """The definitions that some others need, and the files they make.

    packages: the top-level packages whose modules are ours. replaced: definitions that an export writes otherwise, by
    module and name; what their text looks up is followed as well.
    """

    def __init__(self, packages: Iterable[str], replaced: Mapping[str, Mapping[str, str]]) -> None:
        self.packages, self.replaced = frozenset(packages), replaced
        self.kept: dict[str, set[str]] = {}  # names, by module

    def source(self, module: str) -> Source:
        return _source(module, self.packages)

    def _is_ours(self, module: str) -> bool:
        return module.partition(".")[0] in self.packages

    def add(self, wanted: Iterable[Wanted]) -> None:
        """Keep these definitions, and all that running them needs. Raises NotBundled."""
        waiting = list(wanted)
        while waiting:
            module, name = waiting.pop()
            kept = self.kept.setdefault(module, set())
            if name not in kept:
                kept.add(name)
                waiting += self._needs(self.source(module), name)

    def _needs(self, source: Source, name: str) -> Iterator[Wanted]:
        if name in source.imports:
            yield from self._of_import(source, source.imports[name], set())
            return
        if name not in source.statements:
            raise NotBundled(f"{source.module} has no definition of {name}")
        text = self.replaced.get(source.module, {}).get(name)
        statements = source.statements[name] if text is None else ast.parse(text).body
        for lookups in map(source.lookups, statements):
            for each, attributes in lookups.run.items():
                if each in source.statements:
                    yield Wanted(source.module, each)
                elif each in source.imports:
                    yield Wanted(source.module, each)
                    yield from self._of_import(source, source.imports[each], attributes)
            for statement in lookups.nested:
                for imported in source.bindings(statement).values():
                    yield from self._of_import(source, imported, {None})

    def _of_import(self, source: Source, imported: Imported, attributes: set[str | None]) -> Iterator[Wanted]:
        """What of the module that an import names. attributes: that are taken of a module, None: the module itself."""
        module, attribute = imported
        top = module.partition(".")[0]
        if not self._is_ours(module):
            if top not in LIBRARIES and top not in sys.stdlib_module_names:
                raise NotBundled(f"{source.module} needs the package {top}, which an export cannot count on")
        elif attribute is not None:
            yield Wanted(module, attribute)
        elif None in attributes:
            raise NotBundled(f"{source.module} hands on the module {module} as a whole")
        else:
            yield from (Wanted(module, each) for each in attributes if each is not None)

    def files(self, names: Mapping[str, str]) -> dict[str, str]:
        """The text of every file, by its name without a folder. names: of modules that are called otherwise than by
        their path; the first of them is the one that config.json names."""
        flat = {module: names.get(module, flat_name(module)) for module in self.kept}
        if len(set(flat.values())) < len(flat):
            raise NotBundled(f"two modules would have one file: {', '.join(sorted(flat.values()))}")
        texts = {f"{flat[module]}.py": self._text(self.source(module), flat) for module in self.kept}
        entry = f"{flat[next(iter(names))]}.py"
        others = sorted(name.removesuffix(".py") for name in texts if name != entry)
        lines = "".join(f"from .{name} import __name__ as _  # noqa: E402\n" for name in others)
        texts[entry] += f"\n\n# Every other file, so that transformers finds it.\n{lines}"
        return texts

    def _text(self, source: Source, flat: Mapping[str, str]) -> str:
        """One module: the lines of its source without what is not kept, imports written anew."""
        kept, needed = self.kept[source.module], set[str]()
        lines: list[str | None] = list(source.lines)
        for statement in source.tree.body:
            names = {name for name, statements in source.statements.items() if statement in statements}
            stretch, instead = source.stretch(statement), []
            if statement is source.docstring:
                continue
            if names & kept:
                texts = self.replaced.get(source.module, {})
                text = next((texts[name] for name in names if name in texts), None)
                node, old = (statement, source.lines) if text is None else (ast.parse(text).body[0], text.splitlines())
                lookups = source.lookups(node)
                needed |= lookups.run.keys() | lookups.read
                instead = self._reimported(source, old, lookups.nested, flat)
                instead = instead if text is not None else instead[stretch.start : stretch.stop]
            _cut(lines, stretch, instead)
        names = [name for name in source.imports if name in needed | kept]
        bindings = {name: source.imports[name] for name in names if self._is_written(source.imports[name])}
        head = source.docstring.end_lineno if source.docstring is not None else 0
        assert head is not None
        docstring = "\n".join(source.lines[:head])
        imports = "\n".join(["from __future__ import annotations", "", *self._import_lines(bindings, flat)])
        body = "\n".join(line for line in lines[head:] if line is not None)
        top = "\n\n".join(part for part in (docstring, imports.strip()) if part)
        return f"{HEADER.format(module=source.module)}{top}\n\n\n{_squeezed(body)}\n"

    def _reimported(
        self, source: Source, lines: list[str], nested: list[ast.Import | ast.ImportFrom], flat: Mapping[str, str]
    ) -> list[str]:
        """Lines whose imports inside of functions are written anew, each in the place of the old one."""
        lines = list(lines)
        for statement in nested:
            assert statement.end_lineno is not None
            written = self._import_lines(source.bindings(statement), flat)
            n_left = statement.end_lineno - statement.lineno
            lines[statement.lineno - 1] = "\n".join(" " * statement.col_offset + line for line in written)
            lines[statement.lineno : statement.end_lineno] = [""] * n_left
        return lines

    def _is_written(self, imported: Imported) -> bool:
        """Whether the other end is there: what only annotations name may not be."""
        if not self._is_ours(imported.module):
            top = imported.module.partition(".")[0]
            return top in LIBRARIES or top in sys.stdlib_module_names
        kept = self.kept.get(imported.module)
        return kept is not None and (imported.attribute is None or imported.attribute in kept)

    def _import_lines(self, bindings: Mapping[str, Imported], flat: Mapping[str, str]) -> list[str]:
        lines, froms = [], dict[str, list[str]]()
        for name, (module, attribute) in bindings.items():
            ours = self._is_ours(module)
            if attribute is None and not ours:
                lines.append(
                    f"import {module}" if f"{module}.".startswith(f"{name}.") else f"import {module} as {name}"
                )
                continue
            known_as = attribute or flat[module]
            origin = module if not ours else "." if attribute is None else f".{flat[module]}"
            froms.setdefault(origin, []).append(known_as if known_as == name else f"{known_as} as {name}")
        for origin, names in froms.items():
            line = f"from {origin} import {', '.join(names)}"
            lines.append(
                line if len(line) <= WIDTH else f"from {origin} import (\n    " + ",\n    ".join(names) + ",\n)"
            )
        return lines


def flat_name(module: str) -> str:
    """`coca_train.positions.base` -> `positions_base`; of another package with its name."""
    top, _, rest = module.partition(".")
    return (rest if top == __name__.partition(".")[0] else module).replace(".", "_")


def _cut(lines: list[str | None], stretch: range, instead: list[str]) -> None:
    """Put other lines in the place of these; the list stays as long as it was."""
    lines[stretch.start : stretch.stop] = ["\n".join(instead) if instead else None, *[None] * (len(stretch) - 1)]


def _squeezed(text: str) -> str:
    """Without the blank lines that were left by what is gone."""
    lines: list[str] = []
    for line in text.strip("\n").splitlines():
        if line or lines[-2:] != ["", ""]:
            lines.append(line)
    return "\n".join(lines)
