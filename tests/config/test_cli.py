"""The command line as a user meets it: exit codes, output, what is imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coca_train import commands
from coca_train.commands import _sweep
from coca_train.commands.train import VERB as TRAINING
from coca_train.config.command_line import without_launcher_flags
from coca_train.config.fields import options
from coca_train.runtime import entry
from coca_train.runtime.errors import CheckpointError, UserError
from coca_train.settings import TRAIN

ROOT = Path(__file__).resolve().parents[2]


def shell(*arguments, cwd=ROOT, **environment):
    """Run `python -m coca_train` for real."""
    return subprocess.run(
        [sys.executable, "-m", "coca_train", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_wrong_config_is_one_line_and_exit_code_2(tmp_path):
    done = shell("optim.lr=abc", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("E-CFG-04 command line optim.lr=abc: ")
    assert os.listdir(tmp_path) == []


def test_several_problems_and_no_traceback():
    done = shell("optim.lr=abc", "train.max_steps=1e3", "--no-such-flag")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    done = shell("optim.lr=abc", "train.max_steps=1e3")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 3)
    assert "Traceback" not in done.stderr
    assert "Traceback" in shell("optim.lr=abc", "--debug").stderr


def test_only_rank_0_speaks():
    done = shell("optim.lr=abc", RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    assert (done.returncode, done.stderr) == (2, "")
    assert shell(RANK="x").stderr.startswith("E-RUN-01")


def test_cfg_job_shows_the_checked_config(tmp_path):
    done = shell("+experiment=coca_350m", "--cfg", "job", "optim.lr=3e-4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "name: coca_350m" in done.stdout
    assert "lr: 0.0003" in done.stdout
    assert "${" not in done.stdout
    assert shell("--cfg", "job", "optim.lr=abc").returncode == 2


def test_help_is_torch_free_and_quick():
    code = (
        "import sys, resource; from coca_train.commands import main; code = main(['--help']);"
        "used = resource.getrusage(resource.RUSAGE_SELF); seconds = used.ru_utime + used.ru_stime;"
        "assert code == 0; assert not {'torch', 'deepspeed'} & set(sys.modules); assert seconds < 2, seconds"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_a_config_error_touches_nothing():
    code = (
        "import sys; from coca_train.commands import main; code = main(['model.n_heads=7']);"
        "assert code == 2; assert 'deepspeed' not in sys.modules;"
        "import torch; assert not torch.distributed.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)


def test_help_tells_every_option_with_its_value():
    text = TRAINING.help_text(["position=rope", "train.max_steps=77"])
    for option in options(TRAIN):
        assert f"    {option.key}=" in text
        assert option.description.split(" ")[0] in text
    assert "train.max_steps=77   (a whole number > 0)\n        length of the training [optimizer steps]" in text
    assert "   * rope " in text
    assert "     coca " in text
    assert "position.rotary_pct=1.0\n        rotated share" in text
    assert "experiment" in text
    assert "coca_strict_350m" in text
    assert not re.search(r"^ +\*? +_350m", text, re.MULTILINE)  # a part, no choice


def test_every_option_is_described():
    rows = [line.split(" | ") for line in TRAINING.markdown().splitlines() if re.match(r"\| `[a-z_]+\.", line)]
    assert len(rows) > 70
    for row in rows:
        assert all(cell.strip(" |") for cell in (row[0], row[2 if len(row) == 4 else 1])), row


def test_docs_are_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text() == TRAINING.markdown(), "run: make docs"


def test_hydra_still_answers():
    assert "Hydra" in shell("--hydra-help").stdout
    assert "position/frequencies" in shell("--info", "defaults-tree", "position=coca").stdout
    assert shell("--version").stdout.startswith("coca_train ")


@pytest.mark.parametrize("flag", ["--local_rank=1", "--local-rank=1"])
def test_launcher_flags_are_tolerated(flag, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert without_launcher_flags([flag, "optim.lr=1"]) == ["optim.lr=1"]
    assert os.environ["LOCAL_RANK"] == "1"
    monkeypatch.delenv("LOCAL_RANK")
    assert without_launcher_flags(["--local_rank", "3", "optim.lr=1"]) == ["optim.lr=1"]
    assert os.environ["LOCAL_RANK"] == "3"


def raises(error):
    def command(argv):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UserError("E-X-01 a: b. Fix: c"), 2, "E-X-01 a: b. Fix: c"),
        (CheckpointError("E-X-02 a: b. Fix: c"), 4, "E-X-02"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (RuntimeError("oops"), 1, "This is a bug in coca_train"),
    ],
)
def test_exit_codes(error, code, text, capsys):
    assert entry.run(raises(error), []) == code
    err = capsys.readouterr().err
    assert text in err
    assert ("Traceback" in err) == (code == 1)


def test_flags_that_do_not_exist(capsys):
    assert commands.main(["--train.lr=1"]) == 2
    assert "options have no dashes: train.lr=1" in capsys.readouterr().err
    assert commands.main(["--cfg", "everything"]) == 2
    assert commands.main(["--config-dir", "/nowhere"]) == 2


def test_sweep_names_and_overrides():
    planned = _sweep.jobs(["position=rope,coca", "optim.lr=1e-3,2e-3", "train.max_steps=50"], ())
    assert [job.point for job in planned[:2]] == [
        {"position": "rope", "optim.lr": "0.001"},
        {"position": "rope", "optim.lr": "0.002"},
    ]
    assert [job.name for job in planned] == [
        "quickstart-rope-lr-0.001",
        "quickstart-rope-lr-0.002",
        "quickstart-coca-lr-0.001",
        "quickstart-coca-lr-0.002",
    ]
    assert planned[0].overrides == [
        "position=rope",
        "optim.lr=0.001",
        "train.max_steps=50",
        f"run.name={planned[0].name}",
    ]
    (one, two) = _sweep.jobs(["+experiment=roformer_350m,coca_350m"], ())
    assert (one.name, two.name) == ("roformer_350m", "coca_350m")


def test_a_sweep_with_one_wrong_point_starts_nothing(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", lambda *a: pytest.fail("started"))
    assert commands.main(["--multirun", "optim.lr=1e-3,abc"]) == 2
    assert "optim.lr=abc" in capsys.readouterr().err
    assert commands.main(["-m", "optim.lr =1,2"]) == 2
    assert "E-CFG-16" in capsys.readouterr().err


def test_a_sweep_is_honest(monkeypatch, capsys, tmp_path):
    codes = iter([0, 5, 0])
    started = []

    def start(command):
        started.append(command)

    monkeypatch.setattr(_sweep.subprocess, "Popen", start)
    monkeypatch.setattr(_sweep, "_wait", lambda child: next(codes))
    assert commands.main(["--multirun", "position=rope,coca,alibi", f"run.root={tmp_path}"]) == 5
    out = capsys.readouterr().out
    assert re.search(r"^\| quickstart-rope +\| rope +\| +done \|$", out, re.M)
    assert re.search(r"^\| quickstart-coca +\| coca +\| +exit code 5 \|$", out, re.M)
    assert [command[-1] for command in started] == [f"run.name=quickstart-{n}" for n in ("rope", "coca", "alibi")]


def test_a_sweep_under_torchrun_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert commands.main(["--multirun", "position=rope,coca"]) == 2
    assert "cannot run under torchrun" in capsys.readouterr().err


def test_a_sweep_in_real_processes(tmp_path):
    """Two jobs that each fail in their own process: both run, the exit code says so."""
    done = shell("-m", "run.seed=1,2", "data.prepare=none", "data.dir=nowhere", cwd=tmp_path)
    assert done.returncode not in (0, 1), done.stderr
    assert re.search(r"^\| quickstart-seed-1 +\| 1 +\| exit code \d", done.stdout, re.M)
    assert re.search(r"^\| quickstart-seed-2 +\| 2 +\| exit code \d", done.stdout, re.M)
