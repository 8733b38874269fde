"""Whether this machine has what kernels are compiled with at work: asked once, and said once where it has not.

Triton builds its launchers by a C compiler (its runtime/build.py: CC, else gcc or clang), Inductor its kernels for CPUs
by a C++ compiler (torch's _inductor/cpp_builder.py: CXX, else g++), both with Python's headers. Without them either one
fails in the first step; what needs no compiler computes the same.
"""

import os
import shutil
import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from coca_train.runtime import dist

INSTEAD = {
    "cpu": "blocks are not compiled",
    "cuda": "blocks are not compiled, the loss is computed in passes, and attention in tiles where FlexAttention would",
}


class Missing(NamedTuple):
    """What is not there, in words, and what brings it."""

    what: str
    fix: str


@cache
def compiles(device: str) -> bool:
    """Whether kernels for `device` (cpu or cuda) can be compiled here. The first call says so where they cannot."""
    if (lacking := missing(device)) is None:
        return True
    dist.log(f"WARNING {lacking.what}; so {INSTEAD[_kind(device)]}: as exact, but slower. Fix: {lacking.fix}")
    return False


def missing(device: str) -> Missing | None:
    """What compiling kernels for `device` lacks here; None: nothing."""
    if _kind(device) == "cuda":
        if find_spec("triton") is None:
            return Missing("triton is not installed, which compiles kernels for GPUs", "pip install triton")
        return _missing_compiler("C", "CC", ("gcc", "clang")) or _missing_headers()
    return _missing_compiler("C++", "CXX", ("g++",)) or _missing_headers()


def _kind(device: str) -> str:
    return "cuda" if device == "cuda" else "cpu"


def _missing_compiler(language: str, variable: str, names: tuple[str, ...]) -> Missing | None:
    named = os.environ.get(variable)
    if any(map(shutil.which, names if named is None else (named,))):
        return None
    if named is not None:
        return Missing(f"no {language} compiler: {variable}={named} is no program", f"unset {variable}, or name one")
    return Missing(f"no {language} compiler: {' or '.join(names)} is not on PATH", f"apt install {names[0]}")


def _missing_headers() -> Missing | None:
    if (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return None
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    return Missing("a C compiler has no Python.h to build for this Python", f"apt install {package}")
