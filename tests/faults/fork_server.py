"""Many short runs, of one process or several: import torch and DeepSpeed once, then fork the ranks of each.

    server.run("tests.engine.scenarios:train", {"steps": 2}, ranks=2)           # a function, and what it returns
    server.command(["coca_train", "train.max_steps=2"], ranks=2)                 # as torchrun -m coca_train … would
    with server.started("tests.checkpoint.test_lock:hold", {...}) as pid: ...   # goes on meanwhile

The server is a process of its own that never starts a thread, so that forking is safe. A cold launch of two ranks
takes 18 CPU seconds, a forked one well under one.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import checkout
from tests.checkout import ROOT

PRELOAD = (
    "torch",
    "deepspeed",
    "deepspeed.runtime.zero.muon.original_muon",
    "torch._inductor.compile_fx",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "coca_train.engine.deepspeed",
    "matplotlib.backends.backend_agg",
    "peft",
    "coca_train.training.run",
    "coca_train.training.ending",
    "coca_train.config.load",
)
# What a launcher sets, and so what a process that no launcher started does not have.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Rank:
    """How one rank ended. code: exit code, or minus the signal. value: what the target returned. out, err: what it
    printed."""

    code: int
    value: Any
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that it said."""
        return self.err + self.out


def preloaded(name: str, folder: Path) -> Path:
    """Compile one of the .c files here for LD_PRELOAD."""
    path = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(path), str(source), "-ldl"], check=True)
    return path


class ForkServer:
    """Start with `with`; `run` is one trial. preload: a library for LD_PRELOAD of the server and all its ranks."""

    def __init__(self, preload: Path | None = None) -> None:
        self._preload = preload
        self.environment: dict[str, str] = {}  # of the ranks of every run from now on

    def __enter__(self) -> "ForkServer":
        self._number = 0
        self.folder = tempfile.mkdtemp(prefix="coca-fork-server-")
        environment = {key: value for key, value in os.environ.items() if key not in LAUNCHER}
        environment |= {
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": self.folder,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TORCH_CPP_LOG_LEVEL": "FATAL",  # as the command sets it before it imports torch
        }
        environment |= {} if self._preload is None else {"LD_PRELOAD": str(self._preload)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server", self.folder],
            cwd=self.folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
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
        cwd: Path | None = None,
        launcher: bool = True,
    ) -> list[Rank]:
        """Call "module:function"(**arguments) (JSON in, JSON out) on `ranks` new processes; how each ended.

        After the first rank fails the others get fail_fast_s; then, or after timeout_s, SIGKILL.
        inject: arguments of `inject.install`, plus "ranks": those it applies to.
        signals: (seconds after the start, rank or -1 for all, signal number).
        cwd: a folder that is removed with the trial where none is given.
        launcher: False leaves out the environment that torchrun makes for each rank.
        """
        job = {
            "target": target, "arguments": arguments or {}, "ranks": ranks, "timeout_s": timeout_s,
            "fail_fast_s": fail_fast_s, "inject": inject,
            "environment": self.environment | (environment or {}), "signals": list(signals),
            "cwd": str(cwd or ""), "launcher": launcher,
        }  # fmt: skip
        return [Rank(**rank) for rank in self._ask("run", job)["ranks"]]

    def command(self, words: list[str], ranks: int = 1, **options: Any) -> list[Rank]:
        """`python -m` these words: a module and its arguments. More than one rank: as torchrun starts them."""
        arguments = {"module": words[0], "overrides": words[1:]}
        return self.run("tests.faults.fork_server:run_module", arguments, ranks, launcher=ranks > 1, **options)

    @contextlib.contextmanager
    def started(self, target: str, arguments: dict[str, Any] | None = None) -> Iterator[int]:
        """The process id of a function that goes on while this block runs, and is killed at its end."""
        job = {"target": target, "arguments": arguments or {}, "ranks": 1, "timeout_s": 0.0, "fail_fast_s": 0.0,
               "inject": None, "environment": {}, "signals": [], "cwd": "", "launcher": False}  # fmt: skip
        answer = self._ask("start", job)
        try:
            yield answer["pids"][0]
        finally:
            self._ask("end", {"of": answer["number"]})

    def _ask(self, what: str, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._number += 1
        self._process.stdin.write(json.dumps(job | {"number": self._number, "what": what}) + "\n")
        self._process.stdin.flush()
        while True:  # past the answer to a job that a test's time limit left
            line = self._process.stdout.readline()
            assert line, f"the fork server died ({self._process.poll()})"
            answer = json.loads(line)
            if answer["number"] == self._number:
                return answer


def values(ranks: list[Rank]) -> list[Any]:
    """What the ranks returned; fails with their output when one did not return."""
    for number, rank in enumerate(ranks):
        assert rank.code == 0, f"rank {number} ended with {rank.code}:\n{rank.text[-6000:]}"
    return [rank.value for rank in ranks]


def run_module(module: str, overrides: list[str]) -> None:
    """In a rank: `python -m module overrides…`."""
    sys.argv = [module, *overrides]
    sys.modules.pop(f"{module}.__main__", None)  # runpy warns of a module that was imported before it is run
    runpy.run_module(module, run_name="__main__", alter_sys=True)


# ---- the server's side


class Trial:
    """The ranks of one job, forked."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self.job, self.folder, self.pids = job, folder, list[int]()
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as meeting:
            for rank in range(job["ranks"]):
                pid = os.fork()
                if pid == 0:
                    os.setpgid(0, self.pids[0] if self.pids else 0)
                    _child(job, rank, meeting, folder)
                self.pids.append(pid)
                with contextlib.suppress(OSError):
                    os.setpgid(pid, self.pids[0])

    def wait(self) -> list[dict[str, Any]]:
        """How each rank ended, as `Rank` has it; `imported` is what a rank that returned had to import."""
        began, codes = time.monotonic(), dict[int, int]()
        end = began + self.job["timeout_s"]
        pending = sorted(self.job["signals"])
        while len(codes) < len(self.pids):
            now = time.monotonic()
            while pending and now - began >= pending[0][0]:
                _, rank, number = pending.pop(0)
                _send([pid for n, pid in enumerate(self.pids) if rank in (n, -1) and pid not in codes], number)
            if now > end:
                _send([pid for pid in self.pids if pid not in codes], signal.SIGKILL)
            for pid in self.pids:
                if pid not in codes and (status := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(status[1])
                    if codes[pid]:
                        end = min(end, time.monotonic() + self.job["fail_fast_s"])
            time.sleep(0.002)
        reports = [self._report(rank, codes[pid]) for rank, pid in enumerate(self.pids)]
        shutil.rmtree(self.folder, ignore_errors=True)
        return reports

    def _report(self, rank: int, code: int) -> dict[str, Any]:
        out, err = (self._read(f"{rank}.{stream}") for stream in ("out", "err"))
        answer = json.loads(self._read(f"{rank}.json")) if code == 0 else {"value": None, "operations": None}
        value = answer["value"] if answer["operations"] is None else answer
        return {"code": code, "value": value, "out": out, "err": err}

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _meet_at(meeting: socket.socket, rank: int) -> None:
    """Let the ranks meet at a port that listens already: one that comes before rank 0 would try again in half a second.

    With rank 0 its copy ends, so that the others see it gone.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(meeting.getsockname()[1]))
    if rank:
        meeting.close()
        return
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")  # its package has a function of that name
    rendezvous.TCPStore = functools.partial(rendezvous.TCPStore, master_listen_fd=meeting.detach())


def _child(job: dict[str, Any], rank: int, meeting: socket.socket, folder: Path) -> None:
    """One rank: never returns."""
    code, value, log = 1, None, None
    try:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        # As a launcher's ranks have them, wherever the tests themselves were started.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if job["launcher"]:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(job["ranks"]))
            _meet_at(meeting, rank)
        os.environ.update(job["environment"])
        os.chdir(job["cwd"] or folder)
        if job["inject"] and rank in job["inject"].get("ranks", range(job["ranks"])):
            from tests.faults import inject

            log = inject.install(**{key: value for key, value in job["inject"].items() if key != "ranks"})
        value = _target(job)(**job["arguments"])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        code = getattr(error, "exit_code", 1)
    if code == 0:
        (folder / f"{rank}.json").write_text(json.dumps({"value": value, "operations": log}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _target(job: dict[str, Any]) -> Any:
    module, function = job["target"].split(":")
    return getattr(importlib.import_module(module), function)


def _before_the_fork(job: dict[str, Any]) -> None:
    """What every rank would do alike, once for all: import the target, merge the configuration files of a command.

    gc.freeze: DeepSpeed collects garbage six times while it builds a bf16 engine, a third of a second each with all
    that was imported here. Frozen objects are not looked at, nor copied because the collector touched them.
    """
    _target(job)
    if "overrides" in job["arguments"]:
        from coca_train.settings import load

        with contextlib.suppress(Exception):  # the rank will say what is wrong
            load(job["arguments"]["overrides"])
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"


def serve(folder: Path) -> None:
    """Jobs come as lines on stdin, reports go as lines to stdout, until stdin closes."""
    gc.disable()  # it would look through what is imported again and again
    checkout.watch(refuse=True)
    for module in PRELOAD:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write("ready\n")
    answers.flush()
    running: dict[int, Trial] = {}
    for line in sys.stdin:
        job = json.loads(line)
        answer: dict[str, Any] = {"number": job["number"]}
        if job["what"] == "end":
            running.pop(job["of"]).wait()
        else:
            _before_the_fork(job)
            trial = Trial(job, folder / f"trial-{job['number']}")
            if job["what"] == "run":
                answer["ranks"] = trial.wait()
            else:
                running[job["number"]], answer["pids"] = trial, trial.pids
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
