"""How many CPU cores this process may use, and how torch's threads wait for each other.

Both are said to OpenMP in the environment, which it reads once, when torch is imported. A thread that waits for another
spins, a millisecond and longer: where other work wants the cores too, it burns the time that the other one needs. So it
spins for a hundredth of that, which costs little where the cores are free, and sleeps (docs/operations.md has figures).
"""

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path, PurePosixPath

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
SPINS = 3000  # turns of an empty loop; GNU's OpenMP, which torch's wheels bring, makes 300,000
SET_BY_USERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def cores() -> int:
    """CPU cores this process may use, at least 1: those it may run on, and no more than the CPU time it is allowed."""
    return max(1, min(_cpus(), math.ceil(_allowed())))


def settle(environment: MutableMapping[str, str]) -> None:
    """Let threads that wait sleep soon, and be no more than the cores of a limited CPU time. What users have set stays.

    Called before torch is imported; processes that this one starts inherit it.
    """
    if not any(name in environment for name in SET_BY_USERS):
        environment["GOMP_SPINCOUNT"] = str(SPINS)
    # Without a limit torch counts for itself, and leaves out the second thread of a core.
    if _allowed() < _cpus():
        environment.setdefault("OMP_NUM_THREADS", str(cores()))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _allowed() -> float:
    """CPU time that the control groups of this process allow [cores]: its own groups, and those above them."""
    return min(_quotas(), default=_cpus())


def _quotas() -> Iterator[float]:
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # Version 2 has one hierarchy for all, without a name; version 1 names each after what it controls.
        if not controllers or "cpu" in controllers.split(","):
            path = PurePosixPath(group)
            for above in (path, *path.parents):  # in a container it may be the host's path: what is not there is left
                if (quota := _quota(CGROUPS / controllers / str(above).lstrip("/"))) is not None:
                    yield quota


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
