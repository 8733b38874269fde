"""What the kernel says of processes, read while threads and processes come and go."""

from pathlib import Path


def has_ended(pid: int) -> bool:
    """Whether a process is gone; one that nobody has reaped yet is."""
    return _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])


def children_of(pid: int) -> list[int]:
    """The processes that its threads have started."""
    return [int(child) for task in _tasks(pid) for child in _text(task / "children").split()]


def workers_of(pid: int) -> list[int]:
    """Those of them that multiprocessing has spawned."""
    return [child for child in children_of(pid) if "spawn_main" in _text(Path(f"/proc/{child}/cmdline"))]


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _text(path: Path) -> str:
    """Empty for what has ended: a thread is listed for a moment after it was joined."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        if path.parent.exists() and path.name == "children":
            raise  # a kernel without such lists, which would let every test of them pass
        return ""
