"""Cores that a process may use, and what its threads are told before torch is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coca_train.runtime import machine


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """write(membership, files): control groups as a kernel shows them, on a machine of 16 cores."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def write(membership: str, files: dict[str, str]) -> None:
        (tmp_path / "membership").write_text(membership, encoding="utf-8")
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    return write


def version_1(group: str, quota: int) -> dict[str, str]:
    return {f"{group}/cpu.cfs_quota_us": f"{quota}\n", f"{group}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {}, 16),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 16),
        ("0::/jobs/mine\n", {"jobs/mine/cpu.max": "max 100000\n", "jobs/cpu.max": "300000 100000\n"}, 3),
        ("0::/jobs/mine\n", {"jobs/mine/cpu.max": "100000 50000\n", "jobs/cpu.max": "300000 100000\n"}, 2),
        ("0::/of/the/host\n", {"cpu.max": "400000 100000\n"}, 4),
        ("4:cpuset:/\n2:cpu,cpuacct:/mine\n", version_1("cpu,cpuacct/mine", 200000), 2),
        ("1:cpu:/docker/0f3\n", version_1("cpu", 500000), 5),
        ("1:cpu:/\n0::/\n", version_1("cpu", -1), 16),
        ("3:cpuset:/mine\n", version_1("cpuset/mine", 100000), 16),
    ],
)
def test_cores_are_those_of_the_control_groups(groups, membership, files, cores):
    groups(membership, files)
    assert machine.cores() == cores


def test_no_control_groups_are_no_limit(groups):
    assert machine.cores() == 16


def test_threads_sleep_soon_and_are_no_more_than_their_time_allows(groups):
    groups("0::/\n", {"cpu.max": "200000 100000\n"})
    told: dict[str, str] = {}
    machine.limit_threads(told)
    assert told == {"GOMP_SPINCOUNT": "3000", "OMP_NUM_THREADS": "2"}


def test_without_a_limit_torch_counts_its_threads(groups):
    told: dict[str, str] = {}
    machine.limit_threads(told)
    assert told == {"GOMP_SPINCOUNT": "3000"}


@pytest.mark.parametrize(
    "set_by_user",
    [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "infinity"}, {"OMP_NUM_THREADS": "9", "GOMP_SPINCOUNT": "1"}],
)
def test_what_users_have_set_stays(groups, set_by_user):
    groups("0::/\n", {"cpu.max": "200000 100000\n"})
    told = dict(set_by_user)
    machine.limit_threads(told)
    assert told == {"OMP_NUM_THREADS": "2"} | set_by_user


def test_a_verb_says_it_before_torch_is_there():
    program = """if True:
        import os, sys
        from coca_train import commands
        commands.main = lambda argv: print(os.environ["GOMP_SPINCOUNT"], "torch" in sys.modules)
        commands.entry([])
    """
    environment = {name: value for name, value in os.environ.items() if name not in machine.SET_BY_USERS}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3000", "False"]


def test_a_limit_of_this_kernel_is_seen():
    """A control group with half a core, made and left again."""
    for root, files in (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}),
        (Path("/sys/fs/cgroup"), {"cpu.max": "50000 100000"}),
    ):
        group = root / f"coca_train_test_{os.getpid()}"
        try:
            group.mkdir()
            try:
                for name, text in files.items():
                    (group / name).write_text(text, encoding="utf-8")
                assert "1 1" in _inside(group)
                return
            finally:
                group.rmdir()
        except OSError:
            continue
    pytest.skip("control groups cannot be made here (root, and a cgroup file system that may be written to)")


def _inside(group: Path) -> str:
    program = (
        f"open('{group}/cgroup.procs', 'w').write('0'); import os; from coca_train.runtime import machine; "
        "told = {}; machine.limit_threads(told); print(machine.cores(), told['OMP_NUM_THREADS'])"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
