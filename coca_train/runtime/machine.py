"""What this process may use of its machine: CPU cores and memory, as far as its control groups go, and the bound of
every option that counts processes or what they hold.

One rule: a number that changes no result is lowered to what the machine serves, and a line says so. So the same
configuration works on a laptop and on a large node, and a slip of the keyboard takes no machine down. The number of
ranks belongs to the launch: launch/local.sh refuses what is too large.
"""

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from coca_train.runtime import dist
from coca_train.runtime.printing import n_bytes

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
PER_CORE, ALWAYS = 4, 8  # processes for a core, of which more only wait for each other; so many on any machine
MEMORY_SHARE = 0.5  # of the memory, for all that an option counts


def cores() -> int:
    """CPU cores this process may use, at least 1: those it may run on, and no more than the CPU time it is allowed."""
    return max(1, min(cpus(), math.ceil(allowed_cores())))


def cpus() -> int:
    """CPU cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def allowed_cores() -> float:
    """CPU time that the control groups of this process allow [cores]: its own groups, and those above them."""
    return min((quota for group in _groups("cpu") if (quota := _quota(group)) is not None), default=cpus())


def memory() -> int:
    """Memory this process may use [bytes]: the machine's, and no more than its control groups allow."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = map(_memory_limit, _groups("memory"))
    return min([physical, *(limit for limit in limits if limit is not None)])


def most_processes() -> int:
    """How many processes the cores serve, whatever memory they take."""
    return max(ALWAYS, PER_CORE * cores())


def bounded_processes(option: str, wanted: int, bytes_each: int) -> int:
    """Return how many processes to start where `option` asks for so many; a line says so where they are fewer.

    bytes_each: memory that each of them takes at least.
    """
    most, n_cores = most_processes(), cores()
    if wanted > most:
        why = f"this machine has {n_cores} core{'s' * (n_cores > 1)} for them"
        return _lowered(option, wanted, _in_memory(most, bytes_each), why)
    return bounded_by_memory(option, wanted, bytes_each)


def bounded_by_memory(option: str, wanted: int, bytes_each: int, sharing: int = 1) -> int:
    """Return how many things of `bytes_each` to hold where `option` asks for so many; a line says so where they are
    fewer. sharing: processes of this machine that hold as many each."""
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


@cache  # said once, whoever asks
def _lowered(option: str, wanted: int, most: int, why: str) -> int:
    dist.log(f"WARNING {option}={wanted}: {why}; lowered to {most}. Fix: write {option}={most}")
    return most


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process that may limit it, its own first."""
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
    """CPU time over the time it is allowed in; None: no limit."""
    try:
        if (version_2 := group / "cpu.max").exists():
            time, period = version_2.read_text(encoding="utf-8").split()
        else:
            time, period = ((group / f"cpu.cfs_{what}_us").read_text(encoding="utf-8") for what in ("quota", "period"))
        return int(time) / int(period) if time.strip() not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _memory_limit(group: Path) -> int | None:
    """Bytes; None: no limit. Version 1 writes none as a number beyond any machine's."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int((group / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there; or `max`
            continue
    return None
