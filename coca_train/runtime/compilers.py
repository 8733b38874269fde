"""Whether this machine has what kernels are compiled with at work: asked once, and said once where it has not.

Triton builds its launchers by a C compiler (its runtime/build.py: CC, else gcc or clang), Inductor its kernels for CPUs
by a C++ compiler (torch's _inductor/cpp_builder.py: CXX, else g++), both with Python's headers. Without them either one
fails in the first step; what needs no compiler computes the same.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from coca_train.runtime import dist

INSTEAD = {
    "cpu": "blocks are not compiled",
    "cuda": "blocks and the hooks of schemes are not compiled, the loss is computed in passes, and attention in tiles "
    "where FlexAttention would",
}
TRIAL_S = 60.0


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
        return _of_compiler("C", "CC", ("gcc", "clang"))
    return _of_compiler("C++", "CXX", ("g++",))


def _kind(device: str) -> str:
    return "cuda" if device == "cuda" else "cpu"


def _of_compiler(language: str, variable: str, names: tuple[str, ...]) -> Missing | None:
    named = os.environ.get(variable)
    found = next(filter(shutil.which, names if named is None else (named,)), None)
    if found is not None:
        return _of_trial(found, language, variable)
    if named is not None:
        return Missing(f"no {language} compiler: {variable}={named} is no program", f"unset {variable}, or name one")
    return Missing(f"no {language} compiler: {' or '.join(names)} is not on PATH", f"apt install {names[0]}")


def _of_trial(compiler: str, language: str, variable: str) -> Missing | None:
    """What a file with Python's headers lacks: these, and those of the C library, are packages of their own."""
    include = sysconfig.get_path("include", "posix_prefix")  # as both of them, also where another scheme is the default
    command = [compiler, "-E", "-x", language.lower(), f"-I{include}", "-"]
    try:
        done = subprocess.run(
            command, input="#include <Python.h>\n", capture_output=True, text=True, errors="replace", timeout=TRIAL_S
        )
        said = done.stderr.strip().splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        return Missing(f"no {language} compiler: {compiler} does not run ({error})", f"name another one by {variable}")
    if done.returncode == 0:
        return None
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    what = f"{compiler} finds no Python.h, or not what it needs ({said[0] if said else f'exit code {done.returncode}'})"
    return Missing(what, f"apt install libc6-dev {package}")
