"""The resources of the machine that this process may use: CPU cores, memory, threads, bfloat16, compilers.

One rule for options that count processes or objects that take memory: a number that changes no result is lowered to
what the machine can serve, and a line says so. So the same configuration works on a laptop and on a large node, and a
typing error does not bring a machine down. The number of ranks belongs to the launch: launch/local.sh refuses too many.
Nothing here imports torch, which reads its environment once, when it is imported.
"""

import contextlib
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from coca_train.runtime import dist
from coca_train.runtime.printing import n_bytes

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
PER_CORE, ALWAYS = 4, 8  # processes for a core, of which more only wait for each other; so many on any machine
MEMORY_SHARE = 0.5  # of the memory, for all that an option counts

SPIN_COUNT = 3000  # turns of an empty loop; GNU's OpenMP, which torch's wheels bring, makes 300,000
SET_BY_USERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")

CPUINFO = Path("/proc/cpuinfo")
BFLOAT16_CAPABILITY = 8.0  # CUDA's compute capability of Ampere, the first with units for it

INSTEAD = {
    "cpu": "blocks are not compiled",
    "cuda": "blocks and the hooks of schemes are not compiled, the loss is computed in passes, and attention in tiles "
    "where FlexAttention would",
}
TRIAL_S = 60.0


# ---- cores and memory


def cores() -> int:
    """Return the CPU cores this process may use, at least 1: those it may run on, and no more than its CPU time
    limit."""
    return max(1, min(cpus(), math.ceil(allowed_cores())))


def cpus() -> int:
    """Return the CPU cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def allowed_cores() -> float:
    """Return the CPU time that the control groups of this process allow [cores]: its own groups, and those above
    them."""
    return min((quota for group in _groups("cpu") if (quota := _quota(group)) is not None), default=cpus())


def memory() -> int:
    """Return the memory this process may use [bytes]: the machine's, and no more than its control groups allow."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = map(_memory_limit, _groups("memory"))
    return min([physical, *(limit for limit in limits if limit is not None)])


def most_processes() -> int:
    """Return how many processes the cores serve, whatever memory they take."""
    return max(ALWAYS, PER_CORE * cores())


def bounded_processes(option: str, wanted: int, bytes_each: int) -> int:
    """Return how many processes to start where `option` requests so many; log a line where they are fewer.

    bytes_each: memory that each of them takes at least.
    """
    most, n_cores = most_processes(), cores()
    if wanted > most:
        why = f"this machine has {n_cores} core{'s' * (n_cores > 1)} for them"
        return _lowered(option, wanted, _in_memory(most, bytes_each), why)
    return bounded_by_memory(option, wanted, bytes_each)


def bounded_by_memory(option: str, wanted: int, bytes_each: int, sharing: int = 1) -> int:
    """Return how many objects of `bytes_each` to hold where `option` requests so many; log a line where they are fewer.
    sharing: processes of this machine that hold as many each."""
    most = _in_memory(wanted, bytes_each * sharing)
    if most == wanted:
        return wanted
    of_all = f" in each of {sharing} processes" if sharing > 1 else ""
    why = f"each takes {n_bytes(bytes_each)}{of_all}, and half of this machine's memory is {n_bytes(_share())}"
    return _lowered(option, wanted, most, why)


def _share() -> int:
    return int(MEMORY_SHARE * memory())


def _in_memory(wanted: int, bytes_each: int) -> int:
    return min(wanted, max(1, _share() // max(1, bytes_each)))


@cache  # logged once
def _lowered(option: str, wanted: int, most: int, why: str) -> int:
    dist.log(f"WARNING {option}={wanted}: {why}; lowered to {most}. Fix: write {option}={most}")
    return most


def _groups(controller: str) -> Iterator[Path]:
    """Return the folders of the control groups of this process that may limit it, its own first."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # Version 2 has one hierarchy for all, without a name; version 1 names each after what it controls.
        if not controllers or controller in controllers.split(","):
            path = PurePosixPath(group)
            for above in (path, *path.parents):  # in a container it may be the host's path: what is not there is left
                yield CGROUPS / controllers / str(above).lstrip("/")


def _quota(group: Path) -> float | None:
    """Return the CPU time over the time it is allowed in; None: no limit."""
    try:
        if (version_2 := group / "cpu.max").exists():
            time, period = version_2.read_text(encoding="utf-8").split()
        else:
            time, period = ((group / f"cpu.cfs_{what}_us").read_text(encoding="utf-8") for what in ("quota", "period"))
        return int(time) / int(period) if time.strip() not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _memory_limit(group: Path) -> int | None:
    """Return the limit of a group [bytes]; None: no limit. Version 1 writes none as a number beyond any machine's."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int((group / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there; or `max`
            continue
    return None


# ---- threads


def limit_threads(environment: MutableMapping[str, str]) -> None:
    """Let waiting threads sleep soon, and limit their number to the cores of a limited CPU time. What users have set
    stays.

    Call it before torch is imported: OpenMP reads the environment once; processes that this one starts inherit it. A
    thread that waits for another spins, a millisecond and longer: where other work wants the cores too, it burns the
    time that the other one needs. A hundredth of that costs little where the cores are free (docs/operations.md has
    figures).
    """
    if not any(name in environment for name in SET_BY_USERS):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    # Without a limit torch counts for itself, and leaves out the second thread of a core.
    if allowed_cores() < cpus():
        environment.setdefault("OMP_NUM_THREADS", str(cores()))


# ---- bfloat16


def gpus_compute_bfloat16() -> bool:
    """Whether the GPUs have units for bfloat16; true where nothing tells their generation (not NVIDIA's).

    Asks without a CUDA context: the engine makes it.
    """
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return True
    return all(float(each) >= BFLOAT16_CAPABILITY for each in re.findall(r"\d+\.\d+", text))


def cpu_computes_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16 (x86, ARM); elsewhere torch emulates them, slower than float32."""
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return bool(re.search(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", text, re.M))


def processor() -> str:
    """Return the model of the CPU, as the system names it."""
    with contextlib.suppress(OSError):
        named = re.search(r"^model name\s*:\s*(\S.*)$", CPUINFO.read_text(encoding="utf-8", errors="replace"), re.M)
        if named:
            return " ".join(named[1].split())
    return platform.processor() or platform.machine()


# ---- compilers


class Lack(NamedTuple):
    """A missing requirement of compiling, and what installs it."""

    what: str
    fix: str


@cache
def can_compile(device: str) -> bool:
    """Whether kernels for `device` (cpu or cuda) can be compiled on this machine. The first call logs why they cannot.

    Triton builds its launchers by a C compiler (its runtime/build.py: CC, else gcc or clang), Inductor its kernels for
    CPUs by a C++ compiler (torch's _inductor/cpp_builder.py: CXX, else g++), both with Python's headers. Without them
    either one fails in the first step; the paths that need no compiler compute the same.
    """
    if (lacking := missing_compiler(device)) is None:
        return True
    dist.log(f"WARNING {lacking.what}; so {INSTEAD[_kind(device)]}: as exact, but slower. Fix: {lacking.fix}")
    return False


def missing_compiler(device: str) -> Lack | None:
    """Return what is missing to compile kernels for `device`; None: nothing."""
    if _kind(device) == "cuda":
        if find_spec("triton") is None:
            return Lack("triton is not installed, which compiles kernels for GPUs", "pip install triton")
        return _find_compiler("C", "CC", ("gcc", "clang"))
    return _find_compiler("C++", "CXX", ("g++",))


def _kind(device: str) -> str:
    return "cuda" if device == "cuda" else "cpu"


def _find_compiler(language: str, variable: str, names: tuple[str, ...]) -> Lack | None:
    named = os.environ.get(variable)
    compiler = next(filter(shutil.which, names if named is None else (named,)), None)
    if compiler is not None:
        return _try_compiler(compiler, language, variable)
    if named is not None:
        return Lack(f"no {language} compiler: {variable}={named} is no program", f"unset {variable}, or name one")
    return Lack(f"no {language} compiler: {' or '.join(names)} is not on PATH", f"apt install {names[0]}")


def _try_compiler(compiler: str, language: str, variable: str) -> Lack | None:
    """Preprocess a file that includes Python.h: its headers, and those of the C library, are packages of their own."""
    include = sysconfig.get_path("include", "posix_prefix")  # as both of them, also where another scheme is the default
    command = [compiler, "-E", "-x", language.lower(), f"-I{include}", "-"]
    try:
        done = subprocess.run(
            command, input="#include <Python.h>\n", capture_output=True, text=True, errors="replace", timeout=TRIAL_S
        )
        said = done.stderr.strip().splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        return Lack(f"no {language} compiler: {compiler} does not run ({error})", f"name another one by {variable}")
    if done.returncode == 0:
        return None
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    what = f"{compiler} finds no Python.h, or not what it needs ({said[0] if said else f'exit code {done.returncode}'})"
    return Lack(what, f"apt install libc6-dev {package}")
