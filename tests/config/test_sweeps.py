"""What a sweep comes to: the table of its results, the commands of its points, its Slurm job array."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from coca_train.commands import _sweep, main
from coca_train.runtime.durable import write_text

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ["position=rope,coca", "optim.lr=1e-3,2e-3"]


def cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def measured(run_dir: Path, *records: dict) -> None:
    run_dir.mkdir(parents=True)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_the_table_has_each_point_with_the_last_of_its_metrics(tmp_path, capsys):
    """exp(2) is 7.389, exp(3) 20.09."""
    words = ["--multirun", "--results", "position=rope,coca", f"run.root={tmp_path}"]
    measured(
        tmp_path / "quickstart-rope",
        {"step": 10, "loss": 5.0},
        {"step": 10, "valid/text": 4.0, "valid/code": 4.5},
        {"step": 20, "loss": 2.5},
        {"step": 20, "valid/text": 2.0, "valid/code": 3.0},
    )
    assert main(words) == 0
    header, _, rope, coca = cells(capsys.readouterr().out)
    assert header == [
        *("position", "run", "step", "loss"),
        *("validation code", "validation text", "perplexity code", "perplexity text"),
    ]
    assert rope == ["rope", "quickstart-rope", "20", "2.5000", "3.0000", "2.0000", "20.09", "7.389"]
    assert coca == ["coca", "quickstart-coca", *["–"] * 6]
    page = tmp_path / "sweeps" / "quickstart-position-rope-coca"
    assert cells((page / "report.md").read_text(encoding="utf-8"))[-2:] == [rope, coca]


def test_a_loss_that_is_not_finite_is_a_dash(tmp_path, capsys):
    measured(tmp_path / "quickstart-seed-1", {"step": 3, "loss": None}, {"step": 3, "valid/text": None})
    assert main(["-m", "--results", "run.seed=1,2", f"run.root={tmp_path}"]) == 0
    assert cells(capsys.readouterr().out)[2] == ["1", "quickstart-seed-1", "3", "–", "–", "–"]


def test_the_commands_of_the_points_can_be_typed_as_they_are(tmp_path, capsys):
    (tmp_path / "a folder").mkdir()
    words = ["-m", "--cfg", "job", f"--config-dir={tmp_path}/a folder", *SWEEP, "eval.sample_prompt='a, b'"]
    assert main(words) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    jobs = _sweep.jobs(words[4:], ())
    head = ["python", "-m", "coca_train", "--config-dir", f"{tmp_path}/a folder"]
    assert commands == [[*head, *job.overrides] for job in jobs]
    assert len(commands) == 4


def test_each_task_of_a_job_array_trains_its_point(tmp_path):
    """Without Slurm: `srun` runs here, `scontrol` and `squeue` know of no more, `python` says what would be trained."""
    python = shlex.quote(sys.executable)
    tools = {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"',
        "scontrol": "echo localhost",
        "squeue": "echo UNLIMITED UNLIMITED",
        # What the points are is the same for each task: the first to ask keeps it.
        "python": 'case "$*" in *--multirun*) '
        f'[ -f "$0.points" ] || {python} "$@" > "$0.points"; exec cat "$0.points";; '
        f'*runtime.job*) exec {python} "$@";; esac; printf \'<%s>\' "$@"',
    }
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    words = [*SWEEP, "eval.sample_prompt='it is (x, y)'"]

    def task(number: int) -> subprocess.CompletedProcess[str]:
        slurm = {"ARRAY_JOB_ID": 7, "ARRAY_TASK_ID": number, "JOB_ID": 7, "JOB_NODELIST": "x", "NTASKS": 1}
        environment = {f"SLURM_{name}": str(value) for name, value in {**slurm, "PROCID": 0, "LOCALID": 0}.items()}
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        command = ["bash", str(ROOT / "launch/slurm/train.sbatch"), *words]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **path, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    job = _sweep.jobs(words, ())[2]
    done = task(3)
    assert done.returncode == 0, done.stderr
    first, trained = done.stdout.splitlines()
    assert first.startswith("job 7_3, start 0: 1 ranks on x, localhost:")
    assert trained == "".join(f"<{word}>" for word in ["-m", "coca_train", *job.overrides]) + "no requeue: done"
    past = task(5)
    assert (past.returncode, past.stderr) == (2, "task 5: the sweep has 4 points\n")


def test_the_index_beside_the_runs_lists_the_sweep(tmp_path, capsys):
    """With what it found, and how to compare its runs once two have a report."""
    for name, losses in (("rope", (5.0, 4.5)), ("coca", (5.1, 4.25))):
        run = tmp_path / f"quickstart-{name}"
        measured(run, *({"step": step, "valid/text": loss} for step, loss in zip((10, 20), losses, strict=True)))
        if name == "rope":
            write_text(run / "report" / "report.html", "")
    words = ["-m", "--results", "position=rope,coca", f"run.root={tmp_path}"]
    page = tmp_path / "sweeps" / "quickstart-position-rope-coca"
    assert main(words) == 0
    assert "compare runs=" not in (page / "report.md").read_text(encoding="utf-8")
    write_text(run / "report" / "report.html", "")
    assert main(words) == 0
    assert str(page / "report.html") in capsys.readouterr().out
    finding = json.loads((page / "summary.json").read_text())["finding"][0]
    assert "coca, 4.250 on text" in finding
    assert f"compare runs={tmp_path}/quickstart-rope,{tmp_path}/quickstart-coca" in (page / "report.md").read_text()
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "sweeps/quickstart-position-rope-coca/report.html" in index and finding in index


def test_another_sweep_of_the_option_has_a_page_of_its_own():
    one, other = (_sweep.place(_sweep.jobs([f"optim.lr={values}"], ())) for values in ("1e-3,2e-3", "1e-3,3e-3"))
    assert one != other and one.name == "quickstart-optim.lr-0.001-0.002"
    many = _sweep.place(_sweep.jobs([f"run.seed={','.join(map(str, range(60)))}"], ()))
    assert len(many.name) < 120
