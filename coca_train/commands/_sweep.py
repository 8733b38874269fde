"""`--multirun`: a sweep, one process and one run directory a job, one after the other, and a table of their results."""

import math
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from coca_train.commands._children import refuse_torchrun, run_child
from coca_train.commands._training import load
from coca_train.config.hydra_internals import split_sweep
from coca_train.runtime.durable import write_text
from coca_train.runtime.errors import Preempted, UserError
from coca_train.runtime.leaving import INTERRUPTED
from coca_train.runtime.printing import markdown
from coca_train.settings import folder_flags
from coca_train.tracking.writers import read_jsonl

LONGEST_NAME = 100
COMMAND = ("python", "-m", "coca_train")
NONE = "–"


@dataclass(frozen=True)
class Job:
    """One point of a sweep.

    base: name of the run if it were alone. point: what this job sets differently from others, option -> value.
    """

    name: str
    base: str
    root: Path
    point: dict[str, str]
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
    planned: list[Job] = []
    for overrides_of_point in points:
        # What all points have in common is not swept, and has no place in the name of a run.
        swept = [text for text in overrides_of_point if any(text not in other for other in points)]
        base = name = load(overrides_of_point, config_dirs).config.run.name
        if not any(text.startswith("run.name=") for text in swept):
            name = "-".join([name, *(label for label in map(_label, swept) if label != name)])
        if len(name) > LONGEST_NAME:
            raise UserError(
                f"E-CFG-29 run name {name}: longer than {LONGEST_NAME}. Fix: a shorter run.name, or a smaller sweep"
            )
        job = [text for text in overrides_of_point if not text.startswith("run.name=")] + [f"run.name={name}"]
        # Loaded anew with the name: run.root and other options may be made of ${run.name}.
        root = Path(load(job, config_dirs).config.run.root)
        point = {key: value for key, _, value in (text.lstrip("+").partition("=") for text in swept)}
        planned.append(Job(name, base, root, point, job))
    names = [job.name for job in planned]
    if len(set(names)) < len(names):
        raise UserError(
            f"E-CFG-29 run names {', '.join(names)}: two jobs would share a directory. Fix: sweep run.name too"
        )
    return planned


def _label(override: str) -> str:
    """`+experiment=coca_350m` -> coca_350m, `optim.lr=1e-3` -> lr-1e-3: letters a run name may have."""
    key, _, value = override.lstrip("+").partition("=")
    text = f"{key.rsplit('.', 1)[-1]}-{value}" if "." in key else value
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "empty"


def sweep(overrides: list[str], config_dirs: tuple[Path, ...]) -> int:
    """Run every job; the exit code is the worst. Stops where a job was preempted."""
    refuse_torchrun(" --multirun: a sweep", "python -m coca_train --multirun …, or one torchrun a job")
    planned, codes = jobs(overrides, config_dirs), {}
    for number, job in enumerate(planned, 1):
        print(f"[{number}/{len(planned)}] {job.name}: {' '.join(job.overrides)}", flush=True)
        command = [sys.executable, *COMMAND[1:], *folder_flags(config_dirs), *job.overrides]
        codes[job.name] = run_child(command)
        if codes[job.name] in (Preempted.exit_code, INTERRUPTED):
            break
    ends = {name: "done" if code == 0 else f"exit code {code}" for name, code in codes.items()}
    show_results(planned, ends)
    return max(codes.values(), default=0)


def commands(overrides: list[str], config_dirs: tuple[Path, ...]) -> str:
    """The command of every job, a line for each, quoted for a shell."""
    return "\n".join(
        shlex.join([*COMMAND, *folder_flags(config_dirs), *job.overrides]) for job in jobs(overrides, config_dirs)
    )


def show_results(planned: list[Job], ends: dict[str, str]) -> None:
    """Print the table of results, and keep it beside the runs. ends: how each job of this process ended."""
    table = results(planned, ends)
    path = planned[0].root / f"{planned[0].base}-sweep.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, table)
    print(f"\n{table}\nThis table: {path}", flush=True)


def results(planned: list[Job], ends: dict[str, str]) -> str:
    """A row for each job: its point of the sweep, its last step, training loss and validations, as Markdown."""
    options = list(dict.fromkeys(key for job in planned for key in job.point))
    measured = [_measured(job) for job in planned]
    columns = list(dict.fromkeys(column for row in measured for column in row))
    rows = [
        [
            job.name,
            *(job.point.get(option, NONE) for option in options),
            *(row.get(column, NONE) for column in columns),
            *([ends.get(job.name, "not started")] if ends else []),
        ]
        for job, row in zip(planned, measured, strict=True)
    ]
    return markdown(["run", *options, *columns, *(["ended"] if ends else [])], rows, n_left=1 + len(options))


def _measured(job: Job) -> dict[str, str]:
    """The last of everything in the run's metrics: losses [nats per token] and the perplexities that belong to them."""
    last: dict[str, Any] = {}
    for record in read_jsonl(job.root / job.name / "metrics.jsonl"):
        last |= record
    if not last:
        return {}
    cells = {"step": f"{last['step']:,}", "loss": _loss(last.get("loss"))}
    for key in sorted(key for key in last if key.startswith("valid/")):
        loss, text = last[key], key.removeprefix("valid/")
        cells |= {
            f"validation {text}": _loss(loss),
            f"perplexity {text}": NONE if loss is None else f"{math.exp(loss):.4g}",
        }
    return cells


def _loss(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"
