"""Which process of which machine: what a file says that one process leaves for others to find."""

import os
import socket
from pathlib import Path


def machine_id() -> str:
    """Return the machine on which process ids mean the same: this boot of this host, and this pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
    return f"{boot}/{namespace()}"


def namespace() -> str:
    """Return the name of this host and of its pid namespace, which a boot does not change."""
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def start_time(pid: int) -> str | None:
    """Return when a process of this machine started [clock ticks since boot]; None: there is none, or it is dead."""
    try:
        # From the last parenthesis on: a program's name is enclosed in a pair of them, and may hold spaces and others.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
