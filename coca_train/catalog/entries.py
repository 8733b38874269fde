"""The choices of a config group, read from the text of their files, without torch.

The first comment of a YAML file has title and source of the choice, "Name: what (source)"; a source that is missing
there is the first one in the module's docstring.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from coca_train.attention import ATTENTION_PATTERNS
from coca_train.config.files import choices, config_dirs, display_path, summary
from coca_train.config.messages import nearest
from coca_train.config.places import read_yaml
from coca_train.positions import ROPE_SCALINGS, SCHEMES
from coca_train.runtime.errors import UserError

# Group -> its modules.
MODULES = {"position": SCHEMES, "position/rope_scaling": ROPE_SCALINGS, "attention_pattern": ATTENTION_PATTERNS}
_SOURCE = re.compile(r"arXiv (\d{4}\.\d{5})|((?:[\w-]+\.)+(?:fm|org|com|net)/[\w/.-]*\w)")


@dataclass(frozen=True)
class Entry:
    """One choice of a group."""

    group: str
    name: str
    title: str  # what it is, in a line
    source: str  # arXiv number or address; "" when it needs none
    module: str  # positions/<folder>/<module>.py, or a plugin's
    folder: Path  # of all groups: ours, or one that --config-dir names
    values: dict[str, object]  # its YAML, references not resolved, the nested group's choice put in

    @property
    def docstring(self) -> str:
        """The docstring of its module."""
        return _docstring(self.group, self.module)

    @property
    def link(self) -> str:
        """The address of the source; "": none."""
        if not self.source:
            return ""
        return f"https://{'arxiv.org/abs/' if self.source[0].isdigit() else ''}{self.source}"


def entries(group: str) -> dict[str, Entry]:
    """Return all choices of a group, by name."""
    return {name: _read(group, name) for name in choices(group, config_dirs())}


def schedules() -> list[Entry]:
    """Return all choices of configs/layers; they have no module."""
    listed = []
    for name, path in choices("layers", config_dirs()).items():
        comment = summary(path)
        values = read_yaml(path)
        listed.append(Entry("layers", name, comment.partition(" (")[0], source(comment), "", path.parents[1], values))
    return listed


def find_scheme(name: str) -> Entry:
    """Return the scheme of a name. Raises UserError when there is none, with what was probably meant."""
    offered = entries("position")
    if name in offered:
        return offered[name]
    elsewhere = next((group for group in MODULES if name in choices(group, config_dirs())), "")
    close = nearest(name, list(offered))
    meant = " or ".join(f"scheme={name}" for name in close)
    fix = f"write {meant}" if meant else f"the schemes are {', '.join(offered)}"
    fix += "; of a plugin: --config-dir <its folder of configs>"
    if elsewhere:
        fix = f"{elsewhere}={name} is no scheme; see the table without scheme="
    raise UserError(f"E-CFG-31 command line scheme={name}: there is no such scheme. Fix: {fix}")


def source(text: str) -> str:
    """Return the first arXiv number or address in a text; "": none."""
    match = _SOURCE.search(text)
    return (match[1] or match[2]) if match else ""


def _read(group: str, name: str) -> Entry:
    offered = choices(group, config_dirs())
    if name not in offered:
        raise UserError(f"E-CFG-32 {group}={name}: there is no such choice. Fix: one of {', '.join(offered)}")
    path = offered[name]
    values, registry = read_yaml(path), MODULES[group]
    below: dict[str, object] = {}
    defaults = values.pop("defaults", [])
    for default in defaults if isinstance(defaults, list) else ():
        if isinstance(default, dict):
            ((key, choice),) = default.items()
            if f"{group}/{key}" in MODULES and choice is not None:
                below[key] = _read(f"{group}/{key}", choice).values
        elif default != "_self_":
            below |= _read(group, default).values
    values |= {key: value for key, value in below.items() if key not in values}
    try:
        registry.check(str(values.get(registry.tag)))
    except UserError as error:
        fix = "pip install -e <the package that offers it>, or leave --config-dir out"
        raise UserError(f"E-CFG-31 {display_path(path)}: {registry.tag}: {error}. Fix: {fix}") from None
    comment, module = summary(path), str(values[MODULES[group].tag])
    title, folder = comment.partition(" (")[0].partition(";")[0], path.parents[len(Path(group).parts)]
    return Entry(group, name, title, source(comment) or source(_docstring(group, module)), module, folder, values)


def _docstring(group: str, module: str) -> str:
    return ast.get_docstring(ast.parse(MODULES[group].source(module).read_text(encoding="utf-8"))) or ""
