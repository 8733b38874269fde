"""How many threads torch starts, and how they wait for each other.

Both are said to OpenMP in the environment, which it reads once, when torch is imported. A thread that waits for another
spins, a millisecond and longer: where other work wants the cores too, it burns the time that the other one needs. So it
spins for a hundredth of that, which costs little where the cores are free, and sleeps (docs/operations.md has figures).
"""

from collections.abc import MutableMapping

from coca_train.runtime.machine import allowed_cores, cores, cpus

SPINS = 3000  # turns of an empty loop; GNU's OpenMP, which torch's wheels bring, makes 300,000
SET_BY_USERS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def settle(environment: MutableMapping[str, str]) -> None:
    """Let threads that wait sleep soon, and be no more than the cores of a limited CPU time. What users have set stays.

    Called before torch is imported; processes that this one starts inherit it.
    """
    if not any(name in environment for name in SET_BY_USERS):
        environment["GOMP_SPINCOUNT"] = str(SPINS)
    # Without a limit torch counts for itself, and leaves out the second thread of a core.
    if allowed_cores() < cpus():
        environment.setdefault("OMP_NUM_THREADS", str(cores()))
