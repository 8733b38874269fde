"""The tests that need CUDA (tests/gpu/test_kernels_cuda.py), a function of them a part."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.measure import ROOT, say

FILE = "tests/gpu/test_kernels_cuda.py"
WHY = "because: "  # before what tests/gpu/conftest.py says of a failure, as it comes: pytest says it at the end
OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED) \S+::(\S+)")  # as pytest-xdist says it
STOPPED = (2, 143)  # exit codes of pytest that a signal has ended
PROCESSES = 8  # each compiles kernels, for which it waits most of its time


def schemes(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "kernels", "test_every_scheme")


def attention_patterns(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "attention_patterns", "test_every_attention_pattern")


def score_options(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "score_options", "test_every_score_option")


def memory(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "memory", "test_memory_at_32k")


def _outcomes(scale: Scale, part: str, function: str) -> Iterator[Figure]:
    """How many pass and fail; each outcome is said as it comes, and counts when the part is ended before all are there.
    Raises RuntimeError then, where the tests do not run at all, and where all are skipped on a GPU."""
    processes = min(PROCESSES, os.cpu_count() or 1)
    command = [sys.executable, "-m", "pytest", "-vv", "-m", "gpu", f"{FILE}::{function}"]
    command += ["-n", str(processes), "-p", "no:cacheprovider", "--show-capture=no"]
    outcomes: dict[str, str] = {}  # by test; pytest says a failure once more at the end
    printed = []
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # the tests get it too, and end
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as tests:
        for line in tests.stdout or ():
            printed.append(line)
            if line.startswith(WHY):
                say(f"    {line.rstrip()}")
            if (outcome := OUTCOME.search(line)) and outcome[2] not in outcomes:
                outcomes[outcome[2]] = outcome[1]
                say(f"    {outcome[2]} {outcome[1].lower()}")
    signal.signal(signal.SIGTERM, before)
    counts = Counter(outcomes.values())
    wrong = counts["FAILED"] + counts["ERROR"]
    if wrong or not (counts["PASSED"] or (counts["SKIPPED"] and scale.device == "cpu")):
        say("".join(printed)[-6000:])
    if not counts or (scale.device == "cuda" and not counts["PASSED"] + wrong):
        raise RuntimeError(f"{' '.join(command[1:])}: exit code {tests.returncode}, and no test has run")
    yield Figure(part, f"tests/gpu {function}: pass", counts["PASSED"], "")
    yield Figure(part, f"tests/gpu {function}: fail", wrong, "", high=0, by="the definition")
    if tests.returncode < 0 or tests.returncode in STOPPED:
        raise RuntimeError(f"the tests were ended ({tests.returncode}) before all had run")
