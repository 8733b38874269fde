"""The calls through which a library would run code of a folder or a file: each is known, and says that it may not."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.imports import OURS, ROOT

# Who may call it, and the keyword it says.
KNOWN = {
    "from_pretrained": ({"coca_train/hub/transformers_side.py", "benchmarks/perplexity.py"}, "trust_remote_code"),
    "load_dataset_builder": (
        {"coca_train/data/readers/hub.py"},
        None,
    ),  # datasets 4 has no scripts, no keyword
    "load": ({"data_prep/overlap.py"}, "allow_pickle"),  # numpy's
}
NEVER = {"load_dataset", "load_from_disk", "from_config", "spec_from_file_location", "exec", "eval", "unsafe_load"}
MODULES = {"pickle", "dill", "joblib", "marshal", "shelve"}
LOADERS = {"np", "numpy", "torch"}  # whose `load` may be of pickles


def calls() -> Iterator[tuple[str, str, ast.Call]]:
    """(file, name of the function, call), and of `load` numpy's and torch's only."""
    for top in (*OURS, "benchmarks"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
                name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
                if (name == "eval" and owner) or (name == "load" and owner not in LOADERS):
                    continue  # a module's mode; loaders of safe formats, or our own
                yield str(path.relative_to(ROOT)), name, node


@pytest.fixture(scope="module")
def found() -> list[tuple[str, str, ast.Call]]:
    return [each for each in calls() if each[1] in KNOWN.keys() | NEVER]


def test_only_known_places_call_them(found):
    assert not [(file, name, call.lineno) for file, name, call in found if name in NEVER]
    for name, (files, _) in KNOWN.items():
        assert {file for file, called, _ in found if called == name} == files


def test_each_says_that_code_is_not_run(found):
    for file, name, call in found:
        if keyword := KNOWN[name][1]:
            said = {each.arg: ast.unparse(each.value) for each in call.keywords}
            assert said.get(keyword) == "False", f"{file}:{call.lineno}"


def test_nothing_that_reads_pickles_is_imported():
    for top in (*OURS, "benchmarks"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not MODULES & {name.partition(".")[0] for name in names}, path
