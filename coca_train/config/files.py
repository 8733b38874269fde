"""Where the YAML files are and what choices they offer. Reads names and comments only."""

from functools import cache
from pathlib import Path


@cache
def config_dir() -> Path:
    """The folder `configs`: inside the installed package, or beside it in a source checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "configs", here.parents[2] / "configs"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"coca_train is installed without its configs folder (looked beside {here.parents[1]})")


def shown(path: Path) -> str:
    """A path as messages show it: `configs/...` for the files that come with coca_train."""
    try:
        return f"configs/{path.relative_to(config_dir())}"
    except ValueError:
        return str(path)


def choices(group: str, dirs: tuple[Path, ...]) -> dict[str, Path]:
    """Options of a config group, by name. A leading underscore marks a part that is no choice by itself."""
    found: dict[str, Path] = {}
    for folder in dirs:
        for path in sorted((folder / group).glob("*.yaml")):
            if not path.name.startswith("_"):
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def summary(path: Path) -> str:
    """The first comment line of a YAML file, which says what the choice is."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").rstrip()
    return ""
