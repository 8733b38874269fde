"""Time and memory, fairly: competitors take turns; each one's memory is measured in a process of its own."""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.cases import KINDS, Setup, Work
from coca_train.runtime.machine import processor

MIB = 2**20
ROOT = Path(__file__).resolve().parents[1]
# Freed blocks go back to the system at once, so that resident memory is what is alive.
CHILD_ENV = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def say(message: str) -> None:
    """Progress, to stderr."""
    print(message, file=sys.stderr, flush=True)


def machine(setup: Setup) -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "device": torch.cuda.get_device_name() if setup.device == "cuda" else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def interleaved_seconds(
    works: Mapping[str, Work], setup: Setup, rounds: int, at_least_s: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each work, `rounds` times in turn (A B A B), after one warm-up each.

    Short works are repeated within a turn until at_least_s have passed; the mean of the turn counts.
    """
    repeats = {}
    for name, work in works.items():
        work()
        single = max(_timed(work, setup, 1), 1e-6)
        repeats[name] = max(1, round(at_least_s / single))
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(_timed(work, setup, repeats[name]))
    return seconds


def _timed(work: Work, setup: Setup, repeats: int) -> float:
    synchronize = torch.cuda.synchronize if setup.device == "cuda" else lambda: None
    synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    synchronize()
    return (time.perf_counter() - begin) / repeats


def median_ratio(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest of mine / theirs, turn by turn."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


@dataclass(frozen=True)
class Alone:
    """What a case takes in a process of its own."""

    peak_bytes: int  # most memory it holds at once, above a process that has only imported and warmed up
    seconds: float  # of one repetition


def peak_bytes(kind: str, name: str, setup: Setup) -> int:
    """Most memory the case holds at once [bytes]."""
    return alone(kind, name, setup).peak_bytes


def alone(kind: str, name: str, setup: Setup, repeats: int = 2, enough_s: float = math.inf) -> Alone:
    """Measure a case in a fresh process. The fastest repetition counts; after enough_s there is no further one.

    Raises RuntimeError with the end of what the process said when it failed.
    """
    task = {"kind": kind, "name": name, "setup": asdict(setup), "threads": torch.get_num_threads()}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", json.dumps(task | {"repeats": repeats, "enough_s": enough_s})],
        cwd=ROOT,
        env={**os.environ, **CHILD_ENV},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        how = f"exit code {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
        raise RuntimeError(f"{kind} {name} could not be measured ({how}):\n{done.stderr[-2000:]}")
    return Alone(**json.loads(done.stdout.splitlines()[-1]))


def _status(field: str) -> int:
    """A line of /proc/self/status [bytes]."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status: memory can be measured on Linux only")


def _child(task: Mapping) -> Alone:
    """In the child: build a small version first, so that imports, thread pools and code caches do not count."""
    torch.set_num_threads(task["threads"])
    setup, build = Setup(**task["setup"]), KINDS[task["kind"]]
    small = replace(setup, batch=1, seq_len=16, vocab_size=128, attention_tokens=16, prompt_tokens=4, new_tokens=2)
    parts = task["name"].split("/")
    name = "/".join([*parts[:-1], "16"]) if parts[-1].isdigit() else task["name"]
    build(name, small)()
    before = _start(setup)
    work: Callable = build(task["name"], setup)
    seconds: list[float] = []
    while len(seconds) < task["repeats"] and sum(seconds) < task["enough_s"]:
        seconds.append(_timed(work, setup, 1))
    return Alone(_peak(setup) - before, min(seconds))


def _start(setup: Setup) -> int:
    """Memory in use [bytes]; the peak counts from here on."""
    if setup.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, see proc(5)
    return _status("VmRSS")


def _peak(setup: Setup) -> int:
    return torch.cuda.max_memory_allocated() if setup.device == "cuda" else _status("VmHWM")


if __name__ == "__main__":
    print(json.dumps(asdict(_child(json.loads(sys.argv[1])))))
