"""Keep tests away from what commands leave in the checkout: runs, evaluations, data.

Tests run in an empty folder, so that no relative path leads to the checkout, in them or in the processes they start. An
audit hook sees absolute paths. New entries in the checkout's folders, made by whichever process, fail the session.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("runs", "evaluations", "data", "multirun", "outputs")  # as .gitignore has them
EVENTS = {
    "open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink",
    "os.truncate", "os.utime", "os.chmod", "os.chown", "os.walk", "os.chdir", "shutil.rmtree",
}  # fmt: skip
_INSIDE = tuple(f"{ROOT}/{name}" for name in FOLDERS)
touched: list[str] = []  # event and path, by this process


def is_inside(path: Any) -> bool:
    """Whether a path, as given to a system call, is one of the checkout's folders or lies below one."""
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    elif not isinstance(path, str):
        return isinstance(path, os.PathLike) and is_inside(os.fspath(path))
    if ".." in path:
        path = os.path.abspath(path)
    if not os.path.isabs(path):
        if not path.removeprefix("./").startswith(FOLDERS):
            return False
        path = os.path.join(os.getcwd(), path.removeprefix("./"))
    return path.startswith(_INSIDE) and path[len(str(ROOT)) + 1 :].split("/")[0] in FOLDERS


def watch(refuse: bool = False) -> None:
    """Note in `touched` what this process, and each one it forks, does there. refuse: fail at once instead."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS:
            for path in arguments[:2]:
                if is_inside(path):
                    assert not refuse, f"a test's process may not touch the checkout: {event} {path}"
                    touched.append(f"{event} {path}")

    sys.addaudithook(hook)


def entries() -> set[str]:
    """The checkout's folders and what is in them, by name. What a training at work writes below is no entry."""
    return set(_entries())


def _entries() -> Iterator[str]:
    for name in FOLDERS:
        if (ROOT / name).is_dir():
            yield name
            yield from (f"{name}/{each}" for each in os.listdir(ROOT / name))
