"""The tests that need CUDA (tests/gpu/test_kernels_cuda.py), a function of them a part."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.figures import Figure
from benchmarks.gpu.scale import Scale
from benchmarks.measure import ROOT, say

FILE = "tests/gpu/test_kernels_cuda.py"
OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED) \S+::(\S+)")  # as pytest-xdist says it
PROCESSES = 8  # each compiles kernels, for which it waits most of its time


def schemes(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "kernels", "test_every_scheme")


def attention_patterns(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "attention_patterns", "test_every_attention_pattern")


def memory(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "memory", "test_memory_at_32k")


def _outcomes(scale: Scale, part: str, function: str) -> Iterator[Figure]:
    """How many pass and fail; each outcome is said as it comes. Raises RuntimeError where the tests do not run at all,
    and where all are skipped on a GPU."""
    processes = min(PROCESSES, os.cpu_count() or 1)
    command = [sys.executable, "-m", "pytest", "-vv", "-m", "gpu", f"{FILE}::{function}"]
    command += ["-n", str(processes), "-p", "no:cacheprovider", "--show-capture=no"]
    outcomes: dict[str, str] = {}  # by test; pytest says a failure once more at the end
    printed = []
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as tests:
        for line in tests.stdout or ():
            printed.append(line)
            if (outcome := OUTCOME.search(line)) and outcome[2] not in outcomes:
                outcomes[outcome[2]] = outcome[1]
                say(f"    {outcome[2]} {outcome[1].lower()}")
    counts = Counter(outcomes.values())
    wrong = counts["FAILED"] + counts["ERROR"]
    if wrong or not (counts["PASSED"] or (counts["SKIPPED"] and scale.device == "cpu")):
        say("".join(printed)[-6000:])
    if not counts or (scale.device == "cuda" and not counts["PASSED"] + wrong):
        raise RuntimeError(f"{' '.join(command[1:])}: exit code {tests.returncode}, and no test has run")
    yield Figure(part, f"tests/gpu {function}: pass", counts["PASSED"], "")
    yield Figure(part, f"tests/gpu {function}: fail", wrong, "", high=0, by="the definition")
