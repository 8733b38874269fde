"""Create the files of a new module, each saying what to fill in: `python -m coca_train.testing.stubs scheme mine`.

The files train, load and pass `make check` as they are, doing nothing; their test fails until the definition is
written. With a folder as third word they are for a package of one's own: module, test, configs/ and, where there is
none, pyproject.toml in that folder.
"""

import keyword
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coca_train.config.files import Registry, config_dir
from coca_train.runtime.errors import UserError

TEMPLATES, PROJECT = Path(__file__).parent / "templates", "pyproject.toml"
USAGE = "python -m coca_train.testing.stubs scheme|scaling|pattern|suite NAME [FOLDER]"


@dataclass(frozen=True)
class Kind:
    """The places of the files of one kind of module. {} is the name."""

    registry: Registry
    source: str
    group: str  # of configs/
    test: str
    choose: str  # the command that uses it
    more: tuple[str, ...] = ()  # commands that tell what it is worth


def kinds() -> dict[str, Kind]:
    """Return the kinds of modules by the first word of the command."""
    from coca_train.attention import ATTENTION_PATTERNS
    from coca_train.evaluation.suites import SUITES
    from coca_train.positions import ROPE_SCALINGS, SCHEMES

    positions, test = "coca_train/positions", "tests/positions/test_{}.py"
    train = "python -m coca_train +experiment=sketch"  # minutes; the default is a long run
    frequency = f"{train} position=rope position/rope_scaling={{}}"
    suite = "python -m coca_train evaluate +eval={} checkpoint=runs/quickstart"
    return {
        "scheme": Kind(
            SCHEMES,
            f"{positions}/schemes/{{}}.py",
            "position",
            test,
            f"{train} position={{}}",
            ("python -m coca_train atlas scheme={}",),
        ),
        "scaling": Kind(ROPE_SCALINGS, f"{positions}/rope_scaling/{{}}.py", "position/rope_scaling", test, frequency),
        "pattern": Kind(
            ATTENTION_PATTERNS,
            "coca_train/attention/patterns/{}.py",
            "attention_pattern",
            test,
            f"{train} attention_pattern={{}}",
        ),
        "suite": Kind(
            SUITES, "coca_train/evaluation/suites/{}.py", "evaluation/eval", "tests/evaluation/test_{}_suite.py", suite
        ),
    }


def write(kind: Kind, word: str, name: str, root: Path, own_package: bool) -> list[Path]:
    """Write source, yaml and test, in this order. UserError where the name is not an identifier, is taken, or a file
    exists."""
    if not own_package and not (root / "tests").is_dir():
        raise UserError(
            f"E-EXT-04 NAME={name}: {root} is no checkout of coca_train. Fix: name a FOLDER of your own: {USAGE}"
        )
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name != name.lower():
        raise UserError(
            f"E-EXT-01 NAME={name}: a module cannot be called so. Fix: make a name of lower-case letters, digits and _"
        )
    if name in kind.registry.names():
        where = kind.registry.source(name)
        raise UserError(f"E-EXT-02 NAME={name}: there is one already, {where}. Fix: choose another name")
    source, test = ("{}.py", "test_{}.py") if own_package else (kind.source, kind.test)
    config = f"configs/{kind.group}/{{}}.yaml"
    paths = [root / each.format(name) for each in (source, config, test)]
    for path in paths:
        if path.exists():
            raise UserError(f"E-EXT-03 NAME={name}: {path} exists. Fix: choose another name, or remove the file")
    for path, template in zip(paths, ("source.py", "config.yaml", "test.py"), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (TEMPLATES / word / f"{template}.txt").read_text(encoding="utf-8")
        path.write_text(text.replace("@NAME@", name).replace("@TITLE@", name.capitalize()), encoding="utf-8")
    if own_package and not (root / PROJECT).exists():
        (root / PROJECT).write_text(_project(kind, name), encoding="utf-8")
    return paths


def _project(kind: Kind, name: str) -> str:
    """Return the pyproject.toml of a package with one module, which is offered."""
    return f"""\
[project]
name = "{name.replace("_", "-")}"
version = "0.1"
dependencies = ["coca_train"]

{_entry_point(kind, name)}

[tool.setuptools]
py-modules = ["{name}"]

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
"""


def _entry_point(kind: Kind, name: str) -> str:
    return f'[project.entry-points."{kind.registry.plugins}"]\n{name} = "{name}"'


def steps(kind: Kind, name: str, paths: Sequence[Path], own_package: bool) -> list[str]:
    """Return the steps that remain, in order."""
    source, config, test = paths
    listed = [
        f"{source}: answer what its docstring and comments ask",
        f"{config}: its first comment is what --help shows; say what it is, and where it comes from",
        f"{test}: the definition, and numbers that did not come through your code; it fails until they are there",
    ]
    run = f"pytest {test}"
    if own_package:
        project, flag = source.parent / PROJECT, f"--config-dir {config.parents[len(kind.group.split('/'))]}"
        if _entry_point(kind, name) not in project.read_text(encoding="utf-8"):
            group = f'[project.entry-points."{kind.registry.plugins}"]'
            listed.append(f'{project}: add "{name}" to py-modules, and {name} = "{name}" to {group}')
        listed += [f"pip install -e {source.parent} pytest", run]
        return [*listed, *(f"{command.format(name)} {flag}" for command in (kind.choose, *kind.more))]
    listed.append(run)
    listed += ["make docs (the references and figures that list every choice)", "make check"]
    return [*listed, *(command.format(name) for command in (kind.choose, *kind.more))]


def _free(kind: Kind) -> str:
    """Return a name that no module of this kind has."""
    taken = kind.registry.names()
    return next(name for name in ("mine", *(f"mine_{n}" for n in range(2, len(taken) + 3))) if name not in taken)


def main(words: Sequence[str]) -> int:
    """Write the files and print what to do with them."""
    if words in (["--help"], ["-h"]):
        print(f"{(__doc__ or '').strip()}\n\n{USAGE}")
        return 0
    try:
        by_word = kinds()
        if len(words) not in (2, 3) or words[0] not in by_word or not words[1]:
            typed = " ".join(words).strip() or "nothing"
            word = words[0] if words and words[0] in by_word else "scheme"
            raise UserError(
                f"E-EXT-05 {typed}: a kind and a name are needed. Fix: make {word} NAME={_free(by_word[word])}, or "
                f"{USAGE}"
            )
        own_package = len(words) == 3
        root = Path(words[2]) if own_package else config_dir().parent
        kind, name = by_word[words[0]], words[1]
        paths = write(kind, words[0], name, root, own_package)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if not own_package:
        paths = [path.relative_to(root) for path in paths]
    print(*(f"{i}. {step}" for i, step in enumerate(steps(kind, name, paths, own_package), 1)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
