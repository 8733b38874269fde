"""A command in a forked process, with bounds on its memory: what it answered, and what it took."""

import os
import re
import resource
from pathlib import Path
from typing import Any

import data_prep.__main__ as data_prep_main
from coca_train.commands import main

ROOM_BYTES = 4 << 30  # of addresses beyond those of the server: a process that runs away ends itself, not the machine
MAINS = {"coca_train": main, "data_prep": data_prep_main.main}


def command(program: str, words: list[str]) -> dict[str, Any]:
    """{code, peak_bytes}: the exit code, and the most memory that was resident at a time."""
    room = _bytes("VmSize") + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    os.environ["COCA_TRAIN_DATA"] = os.getcwd()
    return {"code": MAINS[program](words), "peak_bytes": _bytes("VmHWM")}


def _bytes(field: str) -> int:
    line = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert line is not None
    return 1024 * int(line[1])
