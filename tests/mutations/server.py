"""Many short pytest sessions: import torch and its like once, then fork a process for each session.

`python -m tests.mutations.server FOLDER` in a copy of the checkout; jobs come as lines of JSON on stdin, answers go to
stdout. Our own packages are not imported before the fork, so every session reads the sources as they lie there then.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

PRELOAD = (
    "torch", "torch._inductor.compile_fx", "torch.nn.attention.flex_attention", "torch.distributed.checkpoint",
    "deepspeed", "transformers.models.llama.modeling_llama", "transformers.models.gpt_neox.modeling_gpt_neox", "peft",
    "hydra", "omegaconf", "pydantic", "matplotlib.pyplot", "hypothesis", "sentencepiece", "safetensors.torch",
    "datasets", "pyarrow.parquet", "xdist.plugin", "_hypothesis_pytestplugin", "pytest_timeout",
)  # fmt: skip
MEMORY_LIMIT = 8 << 30  # a mutation may ask for anything; other people work here
FILE_LIMIT = 4 << 30
TICK_S = 0.02


class Session:
    """A plugin: runs the chosen tests only, those of quick files first, and tells what happens as it happens."""

    def __init__(self, tests: dict[str, float], report: Path) -> None:
        self.tests, self.report = tests, report
        self.file_seconds: dict[str, float] = defaultdict(float)
        for test, seconds in tests.items():
            self.file_seconds[test.partition("::")[0]] += seconds

    def _tell(self, what: str, test: str) -> None:
        with self.report.open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, test]) + "\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def order(item: pytest.Item) -> tuple[float, str]:
            file = item.nodeid.partition("::")[0]
            return self.file_seconds[file], file

        items[:] = sorted((item for item in items if item.nodeid in self.tests), key=order)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell("began", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)
        elif report.passed and report.when == "call":
            self._tell("passed", report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._tell("ended", "")


def _session(tests: dict[str, float], folder: Path) -> None:
    """One forked process: never returns."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))
        files = sorted({test.partition("::")[0] for test in tests})
        quiet = ["-p", "no:cacheprovider", "-p", "no:anyio", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        pytest.main(["-x", "--timeout=0", *quiet, *files], plugins=[Session(tests, folder / "report")])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def _run(tests: dict[str, float], limit_s: float, folder: Path) -> dict[str, Any]:
    """{"failed": the first test that failed, or ""; "passed": those before it; "timeout": whether time ran out}."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        _session(tests, folder)
    ended, ticks = False, int(limit_s / TICK_S)  # no clock: a run that is paused for a while does not run out of time
    try:
        while ticks and not (ended := bool(os.waitpid(pid, os.WNOHANG)[0])):
            time.sleep(TICK_S)
            ticks -= 1
    finally:
        with contextlib.suppress(ProcessLookupError):  # the session, and whatever it left behind
            os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.waitpid(pid, 0)
    report = folder / "report"
    events = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()] if report.exists() else []
    failed = [test for what, test in events if what == "failed"]
    if not failed and not (events and events[-1][0] == "ended"):  # killed, or out of time
        failed = [events[-1][1] if events else "the session itself"]
    return {
        "failed": failed[0] if failed else "",
        "passed": [test for what, test in events if what == "passed"],
        "timeout": not ended,
    }


def serve(folder: Path) -> None:
    """Until stdin closes, or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for module in PRELOAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    ours = [name for name in sys.modules if name.partition(".")[0] in ("coca_train", "data_prep")]
    assert not ours, f"imported before the fork: {ours}"
    gc.freeze()  # pytest collects garbage several times, and all of this is not
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        answers.write(json.dumps(_run(job["tests"], job["limit_s"], folder / "session")) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
