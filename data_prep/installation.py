"""Documents found in every Python installation: nothing is downloaded, nothing is imported, sources are only parsed.

code   the standard library's .py files, one document each (no tests, no tables)
text   docstrings, one document a source file (standard library and numpy, which torch needs anyway),
       pydoc's topics (the language reference), and licence texts of Python and of the installed packages
"""

import ast
import hashlib
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SKIPPED_FOLDERS = {
    *("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"),
    *("encodings", "pydoc_data"),  # tables; the topics are text
}
LICENCE_NAME = re.compile(r"licen[cs]e|copying|notice", re.IGNORECASE)
TWINS = ("numpy/ma/", "numpy/polynomial/", "numpy/_core/strings.py", "numpy/_core/defchararray.py")
MIN_CHARACTERS = 200


@dataclass(frozen=True)
class Document:
    """One text. file: what the held-out split goes by; a source file's code and docstrings share it."""

    part: str
    file: str
    text: str
    may_be_held_out: bool = True


def read(path: Path) -> str | None:
    """The text of a file, or None where it is not clean UTF-8 text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text.strip("\n") + "\n"


def python_files(root: Path) -> list[Path]:
    """The .py files below a folder, sorted by relative path."""
    files = (path for path in root.rglob("*.py") if not path.name.startswith("_sysconfigdata"))
    kept = (p for p in files if not SKIPPED_FOLDERS & set(p.relative_to(root).parts[:-1]))
    return sorted(kept, key=lambda path: path.relative_to(root).as_posix())


def docstrings(source: str) -> str:
    """Every docstring of a module, each under the dotted name of what it describes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return ""
    texts: list[str] = []

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                dotted = f"{name}.{child.name}" if name else child.name
                if text := ast.get_docstring(child):
                    texts.append(f"{dotted}\n\n{text}")
                visit(child, dotted)

    if text := ast.get_docstring(tree):
        texts.append(text)
    visit(tree, "")
    return "\n\n\n".join(texts) + "\n" if texts else ""


def topics(stdlib: Path) -> Iterator[Document]:
    """The topics of pydoc (help('topics')), read out of the source's dict without running it.

    Topics overlap (a chapter and its sections): a topic inside another one is left out, and none is held out.
    """
    path = stdlib / "pydoc_data" / "topics.py"
    source = read(path)
    if source is None:
        return
    texts: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            texts |= {str(key): str(value) for key, value in ast.literal_eval(node.value).items()}
    for name in sorted(texts):
        text = texts[name].strip()
        if not any(text in other for key, other in texts.items() if key != name and len(other) > len(text)):
            yield Document("text", f"pydoc_data/topics.py#{name}", text + "\n", may_be_held_out=False)


def licences(stdlib: Path, site_packages: Path) -> Iterator[Document]:
    """Licence texts of Python and of installed packages, each wording once; none is held out (they resemble)."""
    paths = [p for p in (stdlib / "LICENSE.txt", stdlib.parent.parent / "LICENSE.txt") if p.is_file()]
    folders = sorted(site_packages.glob("*.dist-info"), key=lambda path: path.name)
    for folder in folders:
        paths += sorted(p for p in folder.rglob("*") if p.is_file() and LICENCE_NAME.search(p.name))
    seen: set[str] = set()
    for path in paths:
        text = read(path)
        if text is None:
            continue
        wording = " ".join(line for line in text.split("\n") if "copyright" not in line.lower())
        key = hashlib.sha256(re.sub(r"\W+", " ", wording).strip().lower().encode()).hexdigest()
        if key not in seen:
            seen.add(key)
            name = path.relative_to(site_packages) if path.is_relative_to(site_packages) else path.name
            yield Document("text", f"licences/{name}", text, may_be_held_out=False)


def modules(root: Path, name: str, parts: tuple[str, ...]) -> Iterator[Document]:
    """The code and the docstrings of a tree of Python files. Modules whose docstrings repeat another's (TWINS)
    are only trained on: held out, they would look better known than they are.
    """
    for path in python_files(root):
        source = read(path)
        if source is None or len(source) < MIN_CHARACTERS:
            continue
        file = f"{name}/{path.relative_to(root).as_posix()}"
        if "code" in parts:
            yield Document("code", file, source)
        text = docstrings(source)
        if "text" in parts and len(text) >= MIN_CHARACTERS:
            yield Document("text", file, text, may_be_held_out=not file.startswith(TWINS))


def installation() -> Iterator[Document]:
    """Everything this Python installation has to offer, exact duplicates removed, always in the same order."""
    paths = sysconfig.get_paths()
    stdlib, site_packages = Path(paths["stdlib"]), Path(paths["purelib"])
    seen: set[str] = set()
    for document in _everything(stdlib, site_packages):
        key = hashlib.sha256(document.text.encode()).hexdigest()
        if key not in seen:
            seen.add(key)
            yield document


def _everything(stdlib: Path, site_packages: Path) -> Iterator[Document]:
    yield from modules(stdlib, "stdlib", ("code", "text"))
    numpy = importlib.util.find_spec("numpy")
    if numpy is not None and numpy.submodule_search_locations:
        yield from modules(Path(numpy.submodule_search_locations[0]), "numpy", ("text",))
    yield from topics(stdlib)
    yield from licences(stdlib, site_packages)
