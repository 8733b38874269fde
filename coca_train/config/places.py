"""YAML files read safely, and the place of every value: file and line.

Traps of YAML that are reported: `1:30:00` is the number 5400, `012` is 10, `yes` is true, aliases multiply.
"""

import errno
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import yaml

from coca_train.config.files import display_path, file_state
from coca_train.config.messages import ConfigError, Problem, show
from coca_train.runtime import untrusted_io

MAX_BYTES = 1_000_000
MAX_NODES = 10_000  # with aliases expanded: ten lines of nested ones are gigabytes
DEEPEST = 50  # sections inside sections; ours have six
MOST_DIGITS = 300  # of a number: none of ours has more than twenty
_TOO_LONG = re.compile(rf"[-+0-9_:]{{{MOST_DIGITS + 1},}}")
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def place_of(key: str, places: Mapping[str, str]) -> str:
    """Return the place of a key, or of the innermost section around it that was set as a whole; "": none."""
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key, "")


def fatal_error(problem: Problem) -> ConfigError:
    """Return an error for a problem after which nothing else can be checked."""
    return ConfigError([problem], [f"{problem.id} {problem.place}: {problem.message}. Fix: {problem.fix}"])


def parse_nodes(path: Path) -> yaml.Node | None:
    """Return the YAML nodes of a file, read only, after the checks that must come before it is expanded."""
    return _parse_nodes(path, file_state(path))


@lru_cache(maxsize=1024)
def _parse_nodes(path: Path, state: tuple[int, int]) -> yaml.Node | None:
    """state: read again where it is another one."""
    place = display_path(path)
    try:
        text = untrusted_io.read_text(path, MAX_BYTES)
        _check_events(text, place)
        root = yaml.compose(text, Loader=_Loader)
    except UnicodeDecodeError as error:
        text = f"not UTF-8 (byte {error.start})"
        raise fatal_error(Problem("E-CFG-15", (), text, "save the file as UTF-8", place)) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            problem = Problem("E-CFG-14", (), "the file is larger than 1 MB", "keep data out of configs", place)
        else:
            problem = Problem("E-CFG-15", (), f"cannot be read: {error.strerror}", "give a readable file", place)
        raise fatal_error(problem) from None
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{place}:{mark.line + 1}:{mark.column + 1}" if mark else place
        text = f"this is not YAML: {show(getattr(error, 'problem', None) or str(error))}"
        raise fatal_error(Problem("E-CFG-13", (), text, "indent with spaces, close what is open", line)) from None
    if root is not None and not isinstance(root, yaml.MappingNode):
        what = show(root.value) if isinstance(root, yaml.ScalarNode) else "a list"
        text = f"holds {what}, and no options"
        raise fatal_error(Problem("E-CFG-13", (), text, "write lines of the form key: value", place))
    if root is not None and _count_nodes(root, {}) > MAX_NODES:
        text = f"more than {MAX_NODES} values once its aliases are expanded"
        raise fatal_error(Problem("E-CFG-14", (), text, "write without aliases", place))
    _check_keys(root, place)
    return root


def _count_nodes(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the nodes of a tree with aliases expanded, without expanding them; an endless alias counts as too many."""
    if id(node) not in known:
        known[id(node)] = MAX_NODES + 1  # what a node inside itself sees
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        known[id(node)] = 1 + sum(_count_nodes(child, known) for child in flat)
    return known[id(node)]


def _check_keys(node: yaml.Node | None, place: str) -> None:
    """Refuse keys without a name, and duplicate keys in a section."""
    lines: dict[str, int] = {}
    for each in node.value if isinstance(node, yaml.CollectionNode) else ():
        key, value = each if isinstance(each, tuple) else (None, each)
        if key is not None:
            line, name = key.start_mark.line + 1, str(key.value)
            if key.tag == "tag:yaml.org,2002:null":
                fix = "write the name of an option"
                raise fatal_error(Problem("E-CFG-13", (), "a key without a name", fix, f"{place}:{line}"))
            if name in lines:
                text = f"duplicate key {show(name)} in lines {lines[name]} and {line}"
                raise fatal_error(Problem("E-CFG-03", (), text, "remove one of the two", f"{place}:{line}"))
            lines[name] = line
        _check_keys(value, place)


def _check_events(text: str, place: str) -> None:
    """Refuse nesting that overflows the stack of the recursive functions that compose a tree (some in C, where that is
    a crash), tags, and endless numbers. The parser's events are a flat stream."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = f"{place}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                message = f"sections are nested deeper than {DEEPEST} levels"
                raise fatal_error(Problem("E-CFG-14", (), message, "flatten the file", line))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        # Loaders differ in what a tag does to a value, and may raise errors that are none of YAML.
        if isinstance(event, yaml.NodeEvent) and (tag := getattr(event, "tag", None)) is not None:
            message = f"the tag {show(tag.replace('tag:yaml.org,2002:', '!!'))} before a value"
            raise fatal_error(Problem("E-CFG-13", (), message, "write the value alone", line))
        if isinstance(event, yaml.ScalarEvent) and not event.style and _TOO_LONG.fullmatch(event.value):
            message = f"a number of {len(event.value):,} digits"
            raise fatal_error(Problem("E-CFG-14", (), message, f"write at most {MOST_DIGITS} digits", line))


def read_yaml(path: Path) -> dict[str, object]:
    """Return the values of a file, none of an empty one, after the checks of `parse_nodes`."""
    parse_nodes(path)
    try:
        return yaml.load(untrusted_io.read_text(path, MAX_BYTES), Loader=_Loader) or {}  # noqa: S506 (a safe one)
    except yaml.MarkedYAMLError as error:  # a key that is a list, a date that is none
        line = f"{display_path(path)}:{error.problem_mark.line + 1}" if error.problem_mark else display_path(path)
        raise fatal_error(
            Problem("E-CFG-13", (), show(error.problem or str(error)), "write plain YAML", line)
        ) from None
    except ValueError as error:
        raise fatal_error(Problem("E-CFG-13", (), show(str(error)), "write plain YAML", display_path(path))) from None


def note_places(path: Path, package: str, places: dict[str, str]) -> list[Problem]:
    """Note the line of every key of a file whose values go to `package`; return what YAML would silently change.

    places: by key, `configs/optim/adamw.yaml:3`; those of this file overwrite earlier ones.
    """
    problems: list[Problem] = []
    file, root = display_path(path), parse_nodes(path)
    left = [(package, *pair) for pair in reversed(root.value)] if isinstance(root, yaml.MappingNode) else []
    while left:
        prefix, name, value = left.pop()
        key = f"{prefix}.{name.value}" if prefix else str(name.value)
        if key == "defaults":
            continue
        places[key] = f"{file}:{name.start_mark.line + 1}"
        if isinstance(value, yaml.MappingNode):
            left += [(key, *pair) for pair in reversed(value.value)]
        for scalar in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            problems += _traps(scalar, key, places[key])
    return problems


def _traps(node: yaml.Node, key: str, place: str) -> list[Problem]:
    # In the text: the value does not show whether 5400 was written as 1:30:00.
    if not isinstance(node, yaml.ScalarNode) or node.style:  # a style means quoted
        return []
    text = node.value
    if re.fullmatch(r"[-+]?[0-9]+(:[0-5]?[0-9])+", text):
        message = f"YAML reads {text} as {yaml.safe_load(text)}"
        return [Problem("E-CFG-09", (key,), message, f'quote it: "{text}"', place)]
    if re.fullmatch(r"[-+]?0[0-9_]+", text):
        message, fix = f"{text} has a leading zero, YAML may read it as octal", f"write {text.lstrip('+-0') or 0}"
        return [Problem("E-CFG-10", (key,), message, fix, place)]
    if re.fullmatch(r"(?i)yes|no|on|off", text):
        value = show(yaml.safe_load(text))
        message, fix = f"YAML reads {text} as {value}", f'write {value}, or quote it: "{text}"'
        return [Problem("E-CFG-08", (key,), message, fix, place)]
    return []
