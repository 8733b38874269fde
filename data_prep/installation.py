"""Documents found in every Python installation: nothing is downloaded, nothing is imported, sources are only parsed.

code   the .py files of the standard library, one document each (no tests, no tables)
text   their docstrings, one document a source file, and pydoc's topics (the language reference)

Only MODULES are read, so that the text depends on the version of Python and on nothing else: not on what is installed
beside it, nor on what a distribution packages apart.
"""

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coca_train.runtime.errors import DataError

# In every Python from 3.11 to 3.14, and in every distribution's package of it.
MODULES = """
    abc argparse ast asyncio base64 bdb bisect bz2 cProfile calendar cmd code codecs codeop collections colorsys
    compileall concurrent configparser contextlib contextvars copy copyreg csv ctypes curses dataclasses
    datetime dbm decimal difflib dis doctest email enum filecmp fileinput fnmatch fractions ftplib functools
    genericpath getopt getpass gettext glob graphlib gzip hashlib heapq hmac html http imaplib importlib inspect
    io ipaddress json keyword linecache locale logging lzma mailbox mimetypes modulefinder multiprocessing netrc
    ntpath numbers opcode operator optparse os pathlib pdb pickle pickletools pkgutil platform plistlib poplib
    posixpath pprint profile pstats pty py_compile pyclbr pydoc queue quopri random re reprlib rlcompleter runpy
    sched secrets selectors shelve shlex shutil signal smtplib socket socketserver sqlite3 ssl stat statistics
    string stringprep struct subprocess symtable tabnanny tarfile tempfile textwrap threading timeit token
    tokenize tomllib trace traceback tracemalloc tty turtle types typing unittest urllib uuid warnings wave
    weakref webbrowser wsgiref xml xmlrpc zipapp zipfile zipimport zoneinfo
""".split()  # noqa: SIM905  # a list of words reads as one
SKIPPED_FOLDERS = {"__pycache__", "test", "tests"}
TOPICS = "pydoc_data/topics.py"
MIN_CHARACTERS = 200


@dataclass(frozen=True)
class Document:
    """One text. file: below the standard library, what the held-out split goes by; a source file's code and docstrings
    share it. line: where the text begins in it."""

    part: str
    file: str
    text: str
    may_be_held_out: bool = True
    line: int = 1


def read(path: Path) -> str | None:
    """The text of a file, or None where it is not clean UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text.strip("\n") + "\n"


def python_files(library: Path) -> list[Path]:
    """The .py files of MODULES in the folder of a standard library, sorted by relative path. DataError E-PREP-04 where
    one is missing."""
    files: list[Path] = []
    missing = []
    for name in MODULES:
        module, package = library / f"{name}.py", library / name
        if module.is_file():
            files.append(module)
        elif (package / "__init__.py").is_file():
            files += (p for p in package.rglob("*.py") if not SKIPPED_FOLDERS & set(p.relative_to(package).parts[:-1]))
        else:
            missing.append(name)
    if missing:
        raise DataError(
            f"E-PREP-04 {library}: the standard library is not whole, it lacks {', '.join(missing[:5])}"
            f"{' and more' if len(missing) > 5 else ''} as .py files. Fix: use a full Python installation"
        )
    return sorted(files, key=lambda path: path.relative_to(library).as_posix())


def docstrings(source: str) -> tuple[str, int]:
    """Every docstring of a module, each under the dotted name of what it describes; and the line of the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return "", 1
    texts: list[str] = []
    lines: list[int] = []

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                dotted = f"{name}.{child.name}" if name else child.name
                if text := ast.get_docstring(child):
                    texts.append(f"{dotted}\n\n{text}")
                    lines.append(child.body[0].lineno)
                visit(child, dotted)

    if text := ast.get_docstring(tree):
        texts.append(text)
        lines.append(tree.body[0].lineno)
    visit(tree, "")
    return ("\n\n\n".join(texts) + "\n", lines[0]) if texts else ("", 1)


def topics(library: Path) -> Iterator[Document]:
    """The topics of pydoc (help('topics')), read out of the source's dict without running it.

    Topics overlap (a chapter and its sections): a topic inside another one is left out, and none is held out.
    """
    source = read(library / TOPICS)
    if source is None:
        raise DataError(f"E-PREP-04 {library / TOPICS}: cannot be read. Fix: use a full Python installation")
    texts: dict[str, tuple[str, int]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if key is not None:
                    texts[str(ast.literal_eval(key))] = str(ast.literal_eval(value)).strip(), key.lineno
    for name, (text, line) in sorted(texts.items()):
        if not any(text in other for key, (other, _) in texts.items() if key != name and len(other) > len(text)):
            yield Document("text", TOPICS, text + "\n", may_be_held_out=False, line=line)


def modules(library: Path) -> Iterator[Document]:
    """The code and the docstrings of MODULES."""
    for path in python_files(library):
        source = read(path)
        if source is None or len(source) < MIN_CHARACTERS:
            continue
        file = path.relative_to(library).as_posix()
        yield Document("code", file, source)
        text, line = docstrings(source)
        if len(text) >= MIN_CHARACTERS:
            yield Document("text", file, text, line=line)


def installation(library: Path | None = None) -> Iterator[Document]:
    """Everything in a standard library, this Python's own where none is named, exact duplicates removed, always in the
    same order."""
    library = library or Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    for document in (*modules(library), *topics(library)):
        key = hashlib.sha256(document.text.encode()).hexdigest()
        if key not in seen:
            seen.add(key)
            yield document
