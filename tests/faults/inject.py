"""Count the file operations on paths below a folder, and break the N-th: kill, ENOSPC, EIO.

Patches functions of `os` in the process it is called in (a forked child of a test); the product has no hooks.
"""

import builtins
import errno
import os
import signal
from pathlib import Path
from typing import Any

ERRORS = {"enospc": errno.ENOSPC, "eio": errno.EIO}


def install(root: str, at: int = -1, mode: str = "kill", group: bool = False, named: str = "") -> list[str]:
    """Break operation number `at` (0 is the first, -1: none); the growing list of operations.

    named: only operations whose name begins so are counted, and listed.
    mode: "kill" before the operation, "kill_after" it, "torn" in the middle of a write (as "kill" otherwise),
    "term": SIGTERM to itself instead,
    "enospc" or "eio": this one and all later operations that need the disk fail.
    group: kill all ranks, not only this one.
    """
    prefix, log, paths, raw = os.path.realpath(root), [], {}, {}

    def die() -> None:
        os.killpg(0, signal.SIGKILL) if group else os.kill(os.getpid(), signal.SIGKILL)

    def below(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(prefix)

    def step(name: str, path: Any, action: Any, torn: Any = None) -> Any:
        called = f"{name} {Path(os.fspath(path)).name}"
        if not called.startswith(named):
            return action()
        number = len(log)
        log.append(called)
        if mode in ERRORS and 0 <= at <= number and name in ("open", "write", "fsync", "mkdir", "rename", "replace"):
            raise OSError(ERRORS[mode], os.strerror(ERRORS[mode]), os.fspath(path))
        if number == at and mode == "torn" and torn is not None:
            torn()
        if number == at and mode in ("kill", "torn"):
            die()
        if number == at and mode == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            return action()
        finally:
            if number == at and mode == "kill_after":
                die()

    def wrap_path(name: str) -> None:
        raw[name] = getattr(os, name)

        def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not below(path):
                return raw[name](path, *args, **kwargs)
            return step(name, path, lambda: raw[name](path, *args, **kwargs))

        setattr(os, name, wrapped)

    for name in ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "symlink", "utime", "truncate"):
        wrap_path(name)
    raw_open, raw_write, raw_fsync, raw_close, file_open = os.open, os.write, os.fsync, os.close, builtins.open

    def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if not below(path):
            return raw_open(path, flags, *args, **kwargs)
        action = lambda: raw_open(path, flags, *args, **kwargs)  # noqa: E731
        descriptor = step("open", path, action) if flags & os.O_CREAT else action()
        paths[descriptor] = path
        return descriptor

    def write(descriptor: int, data: Any) -> int:
        if descriptor not in paths:
            return raw_write(descriptor, data)
        half = lambda: raw_write(descriptor, memoryview(data)[: len(data) // 2])  # noqa: E731
        return step("write", paths[descriptor], lambda: raw_write(descriptor, data), half)

    def fsync(descriptor: int) -> None:
        if descriptor not in paths:
            return raw_fsync(descriptor)
        return step("fsync", paths[descriptor], lambda: raw_fsync(descriptor))

    def close(descriptor: int) -> None:
        paths.pop(descriptor, None)
        raw_close(descriptor)

    def builtin_open(file: Any, mode_: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not below(file) or not set(mode_) & set("wax+"):
            return file_open(file, mode_, *args, **kwargs)
        return step("open", file, lambda: file_open(file, mode_, *args, **kwargs))

    os.open, os.write, os.fsync, os.close, builtins.open = open_, write, fsync, close, builtin_open
    return log
