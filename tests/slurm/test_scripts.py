"""The scripts as text and without a scheduler: checked, printed, in the wheel; torchrun on two machines, here one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coca_train.commands import launch, main
from tests.faults import real
from tests.slurm import campaign
from tests.slurm.cluster import ROOT, free

SCRIPTS = [path for path in sorted((ROOT / "launch").rglob("*")) if path.suffix in (".sh", ".sbatch")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shells_find_nothing_wrong(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", launch.FILES)
def test_the_verb_prints_what_is_shipped(name, capsys):
    assert main(["launch", name]) == 0
    assert capsys.readouterr().out == (ROOT / "launch" / launch.FILES[name]).read_text(encoding="utf-8")


def test_the_lead_is_an_argument(capsys):
    assert main(["launch", "slurm", "lead_s=300"]) == 0
    assert re.findall(r"^LEAD_S=.*", capsys.readouterr().out, re.M) == ["LEAD_S=${LEAD_S:-300}"]


def test_every_script_is_printed_by_a_name():
    assert {ROOT / "launch" / file for file in launch.FILES.values()} == set(SCRIPTS)


def test_a_campaign_holds_every_kind_busy_and_quiet_on_two_and_four_ranks():
    jobs = [job for each in campaign.drawn(40, seed=1) for job in each]
    assert {job.kind for job in jobs} == set(campaign.KINDS)
    assert {job.ranks for job in jobs} == {2, 4} and len({job.name for job in jobs}) == len(jobs) == 40
    assert 15 <= sum(job.busy for job in jobs) <= 25
    assert all(len({job.kind in campaign.OF_ALL_JOBS for job in each}) == 1 for each in campaign.drawn(40, seed=1))


@pytest.mark.slow
def test_an_installed_package_has_them(tmp_path):
    """In a wheel they lie inside of the package."""
    source = tmp_path / "source"  # a build leaves files in it
    packages = ("coca_train", "data_prep", "configs", "launch")
    for name in packages:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run([sys.executable, "-m", *build], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    command = [sys.executable, "-m", "coca_train", "launch", "slurm"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    printed = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert printed.stdout == (ROOT / "launch/slurm/train.sbatch").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", ["3000", "1000000000", "9" * 30, "0", "-1", "many", "2.5", "2 3"])
def test_what_no_machine_serves_is_refused_before_a_rank_is_started(number, tmp_path):
    """The number that the message names is one that is taken."""

    def start(number: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NPROC": number}
        command = ["bash", str(ROOT / "launch/local.sh"), "train.max_steps=1"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)

    for name, text in {"torchrun": 'echo "torchrun $*"', "python": f'exec {sys.executable} "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    refused = start(number)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"NPROC={number}: " in refused.stderr and len(refused.stderr.splitlines()) == 1
    taken = start(re.findall(r"Fix: NPROC=(\d+)", refused.stderr)[0])
    assert taken.returncode == 0 and "--nproc-per-node" in taken.stdout and taken.stderr == ""


@pytest.mark.slow
def test_two_machines_without_a_scheduler(tmp_path):
    """`launch/local.sh` typed on each: two agents of torchrun on loopback. All bits as of one agent with two ranks."""
    data = tmp_path / "data"
    data.mkdir()
    words = [*real.prepare(data), *real.TINY, f"run.root={tmp_path}"]
    port = next(port for port in range(29500 + os.getpid() % 1000, 31000) if free(port))
    path = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }

    def start(name: str, **more: str) -> subprocess.Popen[str]:
        command = ["bash", str(ROOT / "launch/local.sh"), *words, f"run.name={name}"]
        environment = {**os.environ, **path, **more}
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    agents = [start("apart", NPROC="1", NODES="2", HEAD=f"localhost:{port}") for _ in range(2)]
    said = [agent.communicate(timeout=300)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    together = start("together", NPROC="2")
    assert (together.communicate(timeout=300)[0], together.returncode)[1] == 0
    assert real.final_state(tmp_path / "apart") == real.final_state(tmp_path / "together")
