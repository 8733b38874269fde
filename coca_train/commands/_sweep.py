"""`--multirun`: a sweep, one process and one run directory a job, one after the other."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hydra.errors import HydraException

from coca_train.config.hydra_internals import split_sweep
from coca_train.runtime.errors import Preempted, UserError
from coca_train.settings import load

LONGEST_NAME = 100


@dataclass(frozen=True)
class Job:
    """One point of a sweep."""

    name: str
    overrides: list[str]


def jobs(overrides: list[str], config_dirs: tuple[Path, ...]) -> list[Job]:
    """Split a sweep and check every point of it before anything starts.

    A job's run name tells its point of the sweep, so that the same sweep, or a longer one, finds the
    same run directories again. Raises UserError.
    """
    try:
        points = split_sweep(overrides)
    except HydraException:
        load(overrides, config_dirs)  # says what cannot be read
        raise
    found: list[Job] = []
    for point in points:
        swept = [text for text in point if any(text not in other for other in points)]
        name = load(point, config_dirs).config.run.name
        if not any(text.startswith("run.name=") for text in swept):
            name = "-".join([name, *(label for label in map(_label, swept) if label != name)])
        if len(name) > LONGEST_NAME:
            raise UserError(
                f"E-CFG-29 run name {name}: longer than {LONGEST_NAME}. Fix: a shorter run.name, or a smaller sweep"
            )
        job = [text for text in point if not text.startswith("run.name=")] + [f"run.name={name}"]
        load(job, config_dirs)
        found.append(Job(name, job))
    names = [job.name for job in found]
    if len(set(names)) < len(names):
        raise UserError(
            f"E-CFG-29 run names {', '.join(names)}: two jobs would share a directory. Fix: sweep run.name too"
        )
    return found


def _label(override: str) -> str:
    """`+experiment=coca_350m` -> coca_350m, `optim.lr=1e-3` -> lr-1e-3: letters a run name may have."""
    key, _, value = override.lstrip("+").partition("=")
    text = f"{key.rsplit('.', 1)[-1]}-{value}" if "." in key else value
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "empty"


def sweep(overrides: list[str], config_dirs: tuple[Path, ...], show_only: bool = False) -> int:
    """Run every job of a sweep; the exit code is the worst. Stops where a job was preempted."""
    if "RANK" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            "E-RUN-23 command line --multirun: a sweep starts its jobs itself, it cannot run under torchrun. "
            "Fix: python -m coca_train --multirun …, or one torchrun a job"
        )
    planned, codes = jobs(overrides, config_dirs), {}
    folders = [part for folder in config_dirs for part in ("--config-dir", str(folder))]
    for number, job in enumerate(planned, 1):
        command = ["-m", "coca_train", *folders, *job.overrides]
        print(f"[{number}/{len(planned)}] {job.name}: {' '.join(job.overrides)}", flush=True)
        if show_only:
            continue
        codes[job.name] = _wait(subprocess.Popen([sys.executable, *command]))
        if codes[job.name] in (Preempted.exit_code, 130):
            break
    for name, code in codes.items():
        print(f"{name}: {'done' if code == 0 else f'exit code {code}'}", flush=True)
    return max(codes.values(), default=0)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """The child's exit code. SIGTERM goes on to it; Ctrl-C reaches it by itself."""
    before = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        code = child.wait()
    except KeyboardInterrupt:
        code = child.wait() or 130
    finally:
        signal.signal(signal.SIGTERM, before)
    return code if code >= 0 else 128 - code
