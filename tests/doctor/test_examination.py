"""Real ranks: what one measures, who is slow, who does not come; nothing is left behind."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from coca_train.doctor import examine
from coca_train.doctor.examine import Ranks, measure_disk, run_bounded
from coca_train.planning.outline import checkpoint_storage, outline
from coca_train.runtime.errors import StorageError, UserError
from coca_train.settings import load
from coca_train.stages import resolve
from tests.faults import real
from tests.faults.fork_server import ForkServer, Rank

QUICK = ["limit_s=20", "meet_s=20", "disk_mib=6", "reduce_mib=1"]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "runs").mkdir()
    return [*real.TINY, *real.prepare(folder), f"run.root={folder / 'runs'}"]


def examined(overrides: list[str], stopped_s: float = 0.0, stopped_at: float | None = None) -> None:
    """In a rank: the command. stopped_s: of each tenth of a second that this rank is stopped. stopped_at: seconds after
    which it stops for good."""
    from coca_train.commands import main

    if stopped_s or stopped_at is not None:
        _stopper(os.getpid(), stopped_s, stopped_at)
    code = main(["doctor", *overrides])
    if code:
        raise SystemExit(code)


def _stopper(pid: int, stopped_s: float, stopped_at: float | None) -> None:
    """A process beside this one that stops it and lets it go on, as long as it lives."""
    if os.fork():
        return
    if stopped_at is not None:
        time.sleep(stopped_at)
        os.kill(pid, signal.SIGSTOP)
        os._exit(0)
    try:
        while os.getppid() == pid:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1 - stopped_s)
    finally:
        os._exit(0)


def slowed(overrides: list[str]) -> None:
    examined(overrides, stopped_s=0.095 if os.environ["RANK"] == "2" else 0.0)


def stopping(overrides: list[str], victim: int, after_s: float) -> None:
    examined(overrides, stopped_at=after_s if os.environ["RANK"] == str(victim) else None)


def run(server: ForkServer, target: str, ranks: int, **arguments: object) -> list[Rank]:
    return server.run(f"tests.doctor.test_examination:{target}", dict(arguments), ranks, timeout_s=240, fail_fast_s=30)


def left_behind(folder: Path) -> list[str]:
    return [*os.listdir(folder), *(name for name in os.listdir("/dev/shm") if "doctor" in name)]


def test_one_process(words, capsys, monkeypatch):
    """The table of a machine, with an exit code of 0, from one process and in little time."""
    from coca_train.commands import main

    monkeypatch.setattr(examine, "MOMENT_S", 0.01)
    code = main(["doctor", *QUICK, *words])
    shown = capsys.readouterr()
    assert code == 0, shown.out
    for check in (
        "python",
        "data",
        "disk write",
        "compute",
        "free at run.root",
        "ulimit nofile",
        "/dev/shm free",
        "configuration",
    ):
        assert f"   {check} " in shown.out or f"~  {check} " in shown.out, check
    assert "4 token files" in shown.out
    assert shown.err.startswith("doctor    1 rank: about ")
    assert left_behind(Path(words[-1].partition("=")[2])) == []


def test_what_is_wrong_with_the_data_and_the_launch(words, capsys, monkeypatch):
    """Every mistake is told in one table, and the exit code is that of the first."""
    from coca_train.commands import main

    monkeypatch.setattr(examine, "MOMENT_S", 0.01)
    assert main(["doctor", *QUICK, *words, "data.dir=/nowhere"]) == 3
    assert "! E-TOK-01 " in capsys.readouterr().out
    assert main(["doctor", *QUICK, *words, "train.global_batch_size=3", "engine.sequence_parallel=2"]) == 2
    assert "! E-CFG-81 " in capsys.readouterr().out
    assert main(["doctor", *QUICK, "optim.lr=abc"]) == 2
    assert capsys.readouterr().err.startswith("E-CFG-04 command line optim.lr=abc")


def test_tasks_of_srun_without_ranks(words, capsys, monkeypatch):
    from coca_train.commands import main

    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert main(["doctor", *QUICK, *words]) == 2
    assert capsys.readouterr().err.startswith("E-DOC-02 environment SLURM_STEP_NUM_TASKS=4: ")


def test_storage_is_what_checkpoints_hold(words):
    """Weights once and both moments of what is trained, float32; `keep` of them, the one that is written, borders."""
    (stage,) = resolve(load([*words, "optim=adamw"]).config)
    of_stage = outline(stage.config, stage.trainable)
    need = checkpoint_storage([of_stage], keep=2)
    assert need.checkpoint == 4 * (of_stage.n_parameters + 2 * of_stage.n_trained) and need.kept == 3
    assert checkpoint_storage([of_stage] * 3, keep=2).kept == 5


def test_writing_leaves_nothing(tmp_path):
    disk = measure_disk(tmp_path / "not" / "yet", 12 << 20, 1, 30.0)
    assert (disk.folder, disk.kept) == (str(tmp_path), 0) and disk.free > 0
    assert len(disk.rates) == 12 and min(disk.rates) > 0 and os.listdir(tmp_path) == []
    assert measure_disk(tmp_path, 1 << 60, 1, 30.0).rates == []  # more than there is


def test_a_measurement_that_hangs_is_left_behind(capsys, monkeypatch):
    """And is a row of the table, while it says that it goes on."""
    release = threading.Event()
    monkeypatch.setattr(examine, "PROGRESS_S", 0.02)
    ranks = Ranks(0.05)
    assert ranks.measure("disk write", bool, release.wait, "look", StorageError) is None
    release.set()
    (row,) = ranks.rows
    assert ranks.hangs and [each.code for each in row.findings] == ["E-DOC-24"] and "0.05 s" in row.findings[0].what
    assert "disk write: 0 s of at most 0.05 s" in capsys.readouterr().err
    assert run_bounded("", lambda: 7, 5.0) == 7


def test_what_fails_is_a_row_with_its_own_words():
    def full() -> int:
        raise OSError("full")

    def refused() -> int:
        raise UserError("E-CFG-04 no. Fix: yes")

    ranks = Ranks(5.0)
    assert ranks.measure("disk write", int, full, "look", StorageError) is None
    assert ranks.measure("configuration", int, refused) is None
    assert ranks.measure("compute", int, lambda: 7) == [7] and not ranks.hangs
    assert [str(each) for row in ranks.rows for each in row.findings] == [
        "E-DOC-24 disk write, rank 0: failed (full). Fix: look",
        "E-CFG-04 no. Fix: yes (rank 0)",
    ]
    assert examine.exit_code(ranks.rows) == 7


@pytest.mark.slow
def test_a_slowed_rank_is_named(words, server: ForkServer):
    healthy = run(server, "examined", 4, overrides=[*QUICK, *words, "train.micro_batch_size=1"])
    assert [rank.code for rank in healthy] == [0] * 4, healthy[0].text
    assert "4 ranks" in healthy[0].text and "all-reduce 1 MiB" in healthy[0].text and "clock" in healthy[0].text
    slow = run(server, "slowed", 4, overrides=[*QUICK, *words, "limit_s=60", "train.micro_batch_size=1"])
    assert [rank.code for rank in slow] == [2] * 4, slow[0].text
    assert "! E-DOC-21 rank 2 on " in slow[0].text, slow[0].text
    assert not any(f"E-DOC-21 rank {other}" in slow[0].text for other in (0, 1, 3)), slow[0].text
    assert left_behind(Path(words[-1].partition("=")[2])) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_stops_is_named_and_the_others_leave_with_76(words, victim, server: ForkServer):
    words = ["limit_s=8", *QUICK[1:], *words]
    ended = run(server, "stopping", 3, overrides=words, victim=victim, after_s=3.0)
    others = [rank for number, rank in enumerate(ended) if number != victim]
    assert [rank.code for rank in others] == [76, 76], ended
    told = "".join(rank.text for rank in others)
    assert f"E-DOC-01 rank {victim}: " in told, told
    assert left_behind(Path(words[-1].partition("=")[2])) == []
