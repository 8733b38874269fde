"""What a launcher tells a rank, and whether it is still there: torchrun, deepspeed's launcher, a step of Slurm."""

import os

# What each of them leaves in the environment of its ranks. RANK alone is no sign: a rank that was started by hand, in
# the background of a shell, goes on when the shell ends.
MARKS = ("TORCHELASTIC_RUN_ID", "CROSS_RANK", "SLURM_STEP_ID")

_parent: int | None = None


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def remember() -> None:
    """Note the process that started this one, if it is a launcher. As early as can be: one that is gone by then is not
    missed."""
    global _parent
    of_launcher = "RANK" in os.environ and any(mark in os.environ for mark in MARKS)
    _parent = os.getppid() if of_launcher else None


def process() -> int | None:
    """Number of the launcher's process; None: there is none."""
    return _parent


def is_gone() -> bool:
    """Whether there was a launcher, and its process has ended.

    Asked again and again, instead of having the kernel send a signal (PR_SET_PDEATHSIG): that comes when the *thread*
    ends which forked, though its process may be well, and never when the process was gone before it was asked for.
    """
    return _parent is not None and os.getppid() != _parent
