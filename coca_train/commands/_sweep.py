"""`--multirun`: a sweep, one process and one run directory a job, one after the other, and a page of their results."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from hydra.errors import HydraException

from coca_train.commands._children import refuse_torchrun, run_child
from coca_train.commands._training import load, short
from coca_train.config.hydra_internals import split_sweep
from coca_train.runtime.errors import Preempted, UserError
from coca_train.runtime.printing import markdown
from coca_train.runtime.shutdown import INTERRUPTED
from coca_train.settings import folder_flags
from coca_train.tracking.records import read_jsonl

LONGEST_NAME = 100
COMMAND = ("python", "-m", "coca_train")
REPORT = "report/report.html"  # of a finished run


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
    return _letters(f"{key.rsplit('.', 1)[-1]}-{value}" if "." in key else value)


def _letters(text: str) -> str:
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
    show_results(planned, ends, again(overrides, config_dirs))
    return max(codes.values(), default=0)


def again(overrides: list[str], config_dirs: tuple[Path, ...]) -> str:
    """Return the command of the whole sweep."""
    return shlex.join([*COMMAND, "--multirun", *folder_flags(config_dirs), *overrides])


def commands(overrides: list[str], config_dirs: tuple[Path, ...]) -> str:
    """Return the command of every job, a line for each, quoted for a shell."""
    return "\n".join(
        shlex.join([*COMMAND, *folder_flags(config_dirs), *job.overrides]) for job in jobs(overrides, config_dirs)
    )


def show_results(planned: list[Job], ends: dict[str, str], command: str) -> None:
    """Print the table of results, and write their page beside the runs. ends: how each job of this process ended."""
    from coca_train.evaluation.trainings import SweepRun, results, sweep_page
    from coca_train.report.render import write_index, write_report

    root = planned[0].root
    runs = [
        SweepRun(
            name=job.name,
            point=job.point,
            records=list(read_jsonl(job.root / job.name / "metrics.jsonl")),
            ended=ends.get(job.name, "not started") if ends else "",
        )
        for job in planned
    ]
    done = [str(job.root / job.name) for job in planned if (job.root / job.name / REPORT).is_file()]
    comparing = shlex.join([*COMMAND, "compare", f"runs={','.join(done)}", f"run.root={root}"]) if len(done) > 1 else ""
    paths = write_report(sweep_page(runs, command, comparing), place(planned))
    write_index(root)
    table = results(runs)
    cells = [[*row.label, *(value.text for value in row.values)] for row in table.rows]
    header = [*table.label_columns, *table.columns]
    print(f"\n{markdown(header, cells, n_left=len(table.label_columns))}\nReport: {paths['report.html']}", flush=True)


def place(planned: list[Job]) -> Path:
    """Return the folder of a sweep's page, named by what was swept, so that another one does not overwrite it."""
    values: dict[str, dict[str, None]] = {}
    for job in planned:
        for option, value in job.point.items():
            values.setdefault(option, {})[value] = None
    words = [planned[0].base, *(word for option, swept in values.items() for word in (option, *swept))]
    return planned[0].root / "sweeps" / short(_letters("-".join(words)))
