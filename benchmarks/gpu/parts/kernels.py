"""The tests that need CUDA (tests/gpu/test_kernels_cuda.py), a function of them a part."""

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
OUTCOME = re.compile(r"::(\S+) (PASSED|FAILED|ERROR|SKIPPED)")


def schemes(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "kernels", "test_every_scheme")


def visibilities(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "visibilities", "test_every_visibility")


def memory(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _outcomes(scale, "memory", "test_memory_at_32k")


def _outcomes(scale: Scale, part: str, function: str) -> Iterator[Figure]:
    """How many pass and fail; each outcome is said as it comes. Raises RuntimeError where the tests do not run at all,
    and where all are skipped on a GPU."""
    command = [sys.executable, "-m", "pytest", "-vv", "-m", "gpu", f"{FILE}::{function}", "-p", "no:cacheprovider"]
    counts: Counter[str] = Counter()
    printed = []
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as tests:
        for line in tests.stdout or ():
            printed.append(line)
            if outcome := OUTCOME.search(line):
                counts[outcome[2]] += 1
                say(f"    {outcome[1]} {outcome[2].lower()}")
    wrong = counts["FAILED"] + counts["ERROR"]
    if wrong or not (counts["PASSED"] or (counts["SKIPPED"] and scale.device == "cpu")):
        say("".join(printed)[-6000:])
    if not counts or (scale.device == "cuda" and not counts["PASSED"] + wrong):
        raise RuntimeError(f"{' '.join(command[1:])}: exit code {tests.returncode}, and no test has run")
    yield Figure(part, f"tests/gpu {function}: pass", counts["PASSED"], "")
    yield Figure(part, f"tests/gpu {function}: fail", wrong, "", high=0, by="the definition")
