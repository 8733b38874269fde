"""What a machine has run out of, by the error that says so: memory, threads, open files, locks."""

import errno
import sys

from coca_train.runtime.errors import ResourceError

MEMORY, THREADS, FILES, LOCKS = "memory", "threads or processes", "open files", "file locks"
FIX = {
    MEMORY: "ask for less, or use a larger machine",
    THREADS: "raise the limit (ulimit -u), or end other programs",
    FILES: "raise the limit (ulimit -n)",
    LOCKS: "end other programs, or use a file system with more",
}
OF_ERRNO = {
    errno.ENOMEM: MEMORY,
    errno.ENOBUFS: MEMORY,
    errno.EAGAIN: THREADS,  # of fork
    errno.EMFILE: FILES,
    errno.ENFILE: FILES,
    errno.ENOLCK: LOCKS,
}
# Of errors that have no number: Python's threads, and libraries in C++.
SIGNS = {
    "can't allocate memory": MEMORY,
    "Cannot allocate memory": MEMORY,
    "bad_alloc": MEMORY,
    "can't start new thread": THREADS,
    "Resource temporarily unavailable": THREADS,
    "Too many open files": FILES,
    "No buffer space available": MEMORY,
}


def shortage(error: BaseException) -> str | None:
    """Return what there is no more of, one of the names above; None: the error means something else."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return MEMORY
    if isinstance(error, OSError):
        return OF_ERRNO.get(error.errno or 0)
    if isinstance(error, RuntimeError):
        return next((what for sign, what in SIGNS.items() if sign in str(error)), None)
    return None


def lacking(error: BaseException) -> ResourceError | None:
    """Return the error E-RUN-30 where there was no more of something, which led to this error; None: it means what it
    says. A file that cannot be opened for want of descriptors is not a wrong file."""
    cause: BaseException | None = None if isinstance(error, ResourceError) else error  # which says it
    seen = list[BaseException]()
    while cause is not None and cause not in seen:  # contexts may go in a circle
        seen.append(cause)
        # A lock that is held is a BlockingIOError too; nothing hides that a process cannot fork.
        if (what := shortage(cause)) is not None and (cause is error or not isinstance(cause, BlockingIOError)):
            return ResourceError(f"E-RUN-30 out of {what} ({reason(cause)}). Fix: {FIX[what]}")
        cause = cause.__cause__ or cause.__context__
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or in the host."""
    return shortage(error) == MEMORY


def reason(error: BaseException) -> str:
    """Return the first line of an error."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
