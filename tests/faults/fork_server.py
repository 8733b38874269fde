"""Many short distributed runs: import torch and DeepSpeed once, then fork the ranks of each trial.

`with ForkServer() as server: server.run("tests.engine.scenarios:train", {...}, ranks=2)`. The server is a
process of its own that never starts a thread, so that forking is safe. A cold 2-rank launch takes
17 to 25 s, a forked one about 1 s.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PRELOAD = (
    "torch",
    "deepspeed",
    "deepspeed.runtime.zero.muon.original_muon",
    "torch._inductor.compile_fx",
    "peft",
    "coca_train.training.run",
    "coca_train.training.ending",
    "coca_train.config.load",
)


@dataclass(frozen=True)
class Rank:
    """How one rank ended. code: exit code, or minus the signal. value: what the target returned. text: its output."""

    code: int
    value: Any
    text: str


class ForkServer:
    """Start with `with`; `run` is one trial."""

    def __enter__(self) -> "ForkServer":
        self._number = 0
        self.folder = tempfile.mkdtemp(prefix="coca-fork-server-")
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")
        }
        environment |= {
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": self.folder,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server", self.folder],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert ready == "ready\n", f"the fork server did not start: {ready!r}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self,
        target: str,
        arguments: dict[str, Any] | None = None,
        ranks: int = 1,
        timeout_s: float = 90.0,
        fail_fast_s: float = 20.0,
        inject: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        signals: Iterable[tuple[float, int, int]] = (),
    ) -> list[Rank]:
        """Call "module:function"(**arguments) (JSON in, JSON out) on `ranks` new processes; how each ended.

        After the first rank fails the others get fail_fast_s; then, or after timeout_s, SIGKILL.
        inject: arguments of `inject.install`, plus "ranks": those it applies to.
        signals: (seconds after the start, rank or -1 for all, signal number).
        """
        job = {
            "target": target, "arguments": arguments or {}, "ranks": ranks, "timeout_s": timeout_s,
            "fail_fast_s": fail_fast_s, "inject": inject, "environment": environment or {}, "signals": list(signals),
        }  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        self._number += 1
        self._process.stdin.write(json.dumps(job | {"number": self._number}) + "\n")
        self._process.stdin.flush()
        while True:  # past the answer to a job that a test's time limit left
            line = self._process.stdout.readline()
            assert line, f"the fork server died ({self._process.poll()})"
            answer = json.loads(line)
            if answer["number"] == self._number:
                return [Rank(**rank) for rank in answer["ranks"]]


@functools.cache
def shared() -> ForkServer:
    """The one server of a test session."""
    server = ForkServer().__enter__()
    atexit.register(server.__exit__)
    return server


def slow_unless(quick: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Parameters for pytest: all of `every`, those not in `quick` marked slow."""
    chosen = list(quick)
    marked = [(case if isinstance(case, tuple) else (case,), case in chosen) for case in every]
    return [pytest.param(*case, marks=() if fast else pytest.mark.slow) for case, fast in marked]


def values(ranks: list[Rank]) -> list[Any]:
    """What the ranks returned; fails with their output when one did not return."""
    for number, rank in enumerate(ranks):
        assert rank.code == 0, f"rank {number} ended with {rank.code}:\n{rank.text[-6000:]}"
    return [rank.value for rank in ranks]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _child(job: dict[str, Any], rank: int, port: int, folder: Path) -> None:
    """One rank: never returns."""
    code = 1
    try:
        output = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ.update(job["environment"])
        module, function = job["target"].split(":")
        target = getattr(importlib.import_module(module), function)
        log = None
        if job["inject"] and rank in job["inject"].get("ranks", range(job["ranks"])):
            from tests.faults import inject

            log = inject.install(**{key: value for key, value in job["inject"].items() if key != "ranks"})
        value = target(**job["arguments"])
        (folder / f"{rank}.json").write_text(json.dumps({"value": value, "operations": log}))
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException as error:
        traceback.print_exc()
        code = getattr(error, "exit_code", 1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _trial(job: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    port, pids = _free_port(), []
    for rank in range(job["ranks"]):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, pids[0] if pids else 0)
            _child(job, rank, port, folder)
        pids.append(pid)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pids[0])
    codes = _wait(pids, job)
    return [_report(folder, rank, code) for rank, code in enumerate(codes)]


def _wait(pids: list[int], job: dict[str, Any]) -> list[int]:
    began = time.monotonic()
    end, codes = began + job["timeout_s"], {}
    pending = sorted(job["signals"])
    while len(codes) < len(pids):
        now = time.monotonic()
        while pending and now - began >= pending[0][0]:
            _, rank, number = pending.pop(0)
            _send([pid for n, pid in enumerate(pids) if rank in (n, -1) and pid not in codes], number)
        if now > end:
            _send([pid for pid in pids if pid not in codes], signal.SIGKILL)
        for pid in pids:
            if pid not in codes and (status := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(status[1])
                if codes[pid]:
                    end = min(end, time.monotonic() + job["fail_fast_s"])
        time.sleep(0.002)
    return [codes[pid] for pid in pids]


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _report(folder: Path, rank: int, code: int) -> dict[str, Any]:
    result = folder / f"{rank}.json"
    text = (folder / f"{rank}.txt").read_text(errors="replace") if (folder / f"{rank}.txt").exists() else ""
    answer = json.loads(result.read_text()) if code == 0 else {"value": None, "operations": None}
    value = answer["value"] if answer["operations"] is None else answer
    return {"code": code, "value": value, "text": text}


def serve(folder: Path) -> None:
    """Jobs come as lines on stdin, reports go as lines to stdout, until stdin closes."""
    for module in PRELOAD:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    assert threading.active_count() == 1, "a process with threads must not fork"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        job = json.loads(line)
        answers.write(json.dumps({"number": job["number"], "ranks": _trial(job, folder / "trial")}) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
