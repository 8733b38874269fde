"""docs/errors.md from the code: every error code, its subject, its file. `python -m tests.house.error_codes`."""

import ast
import functools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.house.imports import OURS, ROOT

CODE = re.compile(r"^(E-[A-Z]+-\d+)\b ?")
FAMILIES = {
    "CFG": "configuration and command line",
    "SEC": "what a configuration may not hold",
    "STG": "stages",
    "STA": "the weights a run begins with",
    "POS": "position schemes",
    "TKN": "tokenizers",
    "TOK": "token files",
    "RAW": "raw text",
    "PREP": "data preparation",
    "MIX": "mixtures of data",
    "RUN": "running: processes, devices, memory",
    "CKP": "checkpoints and run directories",
    "IO": "disks",
    "IOP": "Hugging Face folders",
    "PLN": "planning",
    "DOC": "the doctor",
    "EVAL": "evaluation",
    "API": "the Python API",
    "CMP": "comparisons",
    "ATL": "the atlas",
    "REPORT": "reports",
    "EXT": "adding something of your own",
}


class Message(NamedTuple):
    """One place that tells of a problem: the sentence and its fix, `…` where a value is put in."""

    text: str
    fix: str
    file: str


@functools.cache
def messages() -> dict[str, list[Message]]:
    """By code, every message of the sources."""
    by_code: dict[str, list[Message]] = defaultdict(list)
    for top in OURS:
        for path in sorted((ROOT / top).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            for code, text, fix in _of_file(ast.parse(source)) if "E-" in source else ():
                message = Message(text, fix, str(path.relative_to(ROOT)))
                if message not in by_code[code]:
                    by_code[code].append(message)
    return dict(sorted(by_code.items(), key=lambda item: _order(item[0])))


def _order(code: str) -> tuple[int, int]:
    _, family, number = code.split("-")
    return list(FAMILIES).index(family), int(number)


def _of_file(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    everything = list(ast.walk(tree))
    documentation = {
        id(node.body[0].value)
        for node in everything
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    inside = {id(part) for node in everything if isinstance(node, ast.JoinedStr) for part in node.values}
    accounted = documentation | inside
    for scope in [tree, *(node for node in everything if isinstance(node, ast.FunctionDef))]:
        own = list(_own_nodes(scope))
        names = _assigned(own)
        for node in own:
            if isinstance(node, ast.Call):
                yield from _problem(node, names)
            elif isinstance(node, ast.Dict):
                yield from _table(node)
            elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in accounted:
                text = _text(node, {})
                if match := CODE.match(text):
                    what, _, fix = text[match.end() :].partition("Fix: ")
                    if what:
                        yield match[1], what.strip(), fix


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a module or function, without those of the functions in it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef):
            yield from _own_nodes(child)


def _assigned(nodes: list[ast.AST]) -> dict[str, list[ast.expr]]:
    """Names that are given texts among these nodes of a function, and the texts from top to bottom."""
    names: dict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name):
                names[target.id].append(value)
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                for t, v in zip(target.elts, value.elts, strict=False):
                    if isinstance(t, ast.Name):
                        names[t.id].append(v)
    return {name: sorted(values, key=lambda value: value.lineno) for name, values in names.items()}


def _problem(call: ast.Call, names: dict[str, list[ast.expr]]) -> Iterator[tuple[str, str, str]]:
    """`Problem(code, keys, text, fix)`, or another call with a code and the sentence behind it."""
    words = [_text(arg, names) for arg in call.args]
    at = next((i for i, word in enumerate(words) if CODE.fullmatch(word)), None)
    if at == 0 and len(words) >= 4:
        yield words[0], words[2], words[3]
    elif at is not None and len(words) > at + 1:
        yield words[at], words[at + 1], ""


def _table(table: ast.Dict) -> Iterator[tuple[str, str, str]]:
    """{code: fix}, or {option: code}."""
    for key, value in zip(table.keys, table.values, strict=True):
        pair = _text(key, {}), _text(value, {})
        if CODE.fullmatch(pair[0]):
            yield pair[0], "", pair[1]
        elif CODE.fullmatch(pair[1]):
            yield pair[1], pair[0], ""


def _text(node: ast.AST | None, names: dict[str, list[ast.expr]]) -> str:
    """A text as far as it stands in the source; of a name, the one that was given to it last."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, {}) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.Name) and node.id in names:
        before = [value for value in names[node.id] if value.lineno < node.lineno]
        return _text((before or names[node.id])[-1], {})
    if isinstance(node, ast.IfExp):
        return _text(node.body, names)
    return "…"


def page() -> str:
    """docs/errors.md: where each code comes from. What it says, and its fix, the message has."""
    lines = [
        "# Errors",
        "",
        "Made by `make docs`; do not edit. A message names the value, where it was set, what is needed and one fix;",
        "here are its subject and the file that raises it. [Exit codes](operations.md#exit-codes).",
        "",
        "| code | about | raised in |",
        "|---|---|---|",
    ]
    for code, texts in messages().items():
        files = list(dict.fromkeys(each.file.removeprefix("coca_train/").removesuffix(".py") for each in texts))
        more = f" +{len(files) - 1}" if len(files) > 1 else ""
        lines.append(f"| {code} | {_about(texts) or FAMILIES[code.split('-')[1]]} | {files[0]}{more} |")
    return "\n".join(lines) + "\n"


def _about(texts: list[Message]) -> str:
    """The most telling message in at most fifty characters; `…`: what the message fills in."""
    plain = max((" ".join(each.text.replace("|", "/").split()).strip(" :.,;=…") for each in texts), key=len)
    return plain if len(plain) <= 50 else f"{plain[:50].rpartition(' ')[0]} …"


if __name__ == "__main__":
    sys.stdout.write(page())
