"""A command in a forked process, within bounds of memory and time: what it answered, and what it took."""

import os
import re
import resource
import signal
from pathlib import Path
from typing import Any

import coca_train.commands.compare
import coca_train.commands.export
import coca_train.commands.generate
import coca_train.commands.import_
import coca_train.commands.plan
import coca_train.commands.verify
import coca_train.evaluation.pipeline
import coca_train.hub.exporting
import coca_train.hub.importing
import coca_train.planning.as_text  # noqa: F401 (imported before the fork, for all trials)
import data_prep.__main__ as data_prep_main
from coca_train.commands import main

ROOM_BYTES = 4 << 30  # of addresses beyond those of the server: a process that runs away ends itself, not the machine
PATIENCE_S, LIMIT_S = 13.0, 20  # of the processor's time: the machine may be busy with other tests
MAINS = {"coca_train": main, "data_prep": data_prep_main.main}


def command(program: str, words: list[str]) -> dict[str, Any]:
    """{code, peak_bytes}: the exit code, and the most memory that was resident at a time.

    Who works for PATIENCE_S is asked to stop, as by Ctrl-C; who goes on for LIMIT_S is killed (SIGXCPU).
    """
    room = _bytes("VmSize") + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
    os.environ["COCA_TRAIN_DATA"] = "."
    return {"code": MAINS[program](words), "peak_bytes": _bytes("VmHWM")}


def _bytes(field: str) -> int:
    line = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert line is not None
    return 1024 * int(line[1])
