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
from coca_train.config.arguments import without_launcher_flags
from coca_train.config.fields import options
from coca_train.runtime import entry
from coca_train.runtime.errors import CheckpointError, UserError
from coca_train.settings import TRAIN

ROOT = Path(__file__).resolve().parents[2]


def cold(*arguments, cwd=None):
    """Run Python for real."""
    command, environment = [sys.executable, *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_wrong_config_is_one_line_and_exit_code_2_and_touches_nothing(tmp_path):
    code = (
        "import sys; from coca_train.commands import main; code = main(['optim.lr=abc']);"
        "assert 'deepspeed' not in sys.modules; import torch; assert not torch.distributed.is_initialized();"
        "sys.exit(code)"
    )
    done = cold("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("E-CFG-04 command line optim.lr=abc: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "environment", "n_lines", "start"),
    [
        ("optim.lr=abc train.max_steps=1e3 --no-such-flag", {}, 1, "E-CFG-38"),
        ("optim.lr=abc train.max_steps=1e3", {}, 3, "E-CFG-07"),
        ("optim.lr=abc", {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, 0, ""),  # rank 0 speaks
        ("", {"RANK": "x"}, 1, "E-RUN-01"),
        ("--cfg job optim.lr=abc", {}, 1, "E-CFG-04"),
        ("--train.lr=1", {}, 1, "E-CFG-38 command line --train.lr=1: "),
        ("--cfg everything", {}, 1, "E-CFG-38 command line --cfg everything"),
        ("--config-dir /nowhere", {}, 1, "E-CFG-15 command line --config-dir /nowhere"),
        ("--multirun optim.lr=1e-3,abc", {}, 1, "E-CFG-04 command line optim.lr=abc"),
        ("--multirun position=rope,coca", {"RANK": "0", "WORLD_SIZE": "2"}, 1, "E-RUN-23 command line --multirun"),
    ],
)
def test_refused_in_lines_without_a_traceback(words, environment, n_lines, start, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", lambda *a: pytest.fail("started"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert commands.main(words.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == n_lines
    assert shown.err.startswith(start)


def test_debug_shows_the_traceback(capsys):
    assert commands.main(["optim.lr=abc", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_cfg_job_shows_the_checked_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert commands.main(["+experiment=coca_350m", "--cfg", "job", "optim.lr=3e-4"]) == 0
    shown = capsys.readouterr().out
    assert "name: coca_350m" in shown
    assert "lr: 0.0003" in shown
    assert "${" not in shown


def test_cfg_job_shows_what_is_for_other_machines(capsys):
    assert commands.main(["+experiment=yarn_llama2_7b_64k", "--cfg", "job"]) == 0
    assert "sequence_parallel: 4" in capsys.readouterr().out
    assert commands.main(["+experiment=yarn_llama2_7b_64k"]) == 2
    assert "E-CFG-81" in capsys.readouterr().err


def test_help_tells_every_option_with_its_value():
    text = TRAINING.help_text(["position=rope", "train.max_steps=77"])
    for option in options(TRAIN):
        assert f"    {option.key}=" in text
        assert option.description.split(" ")[0] in text
    assert "train.max_steps=77   (a whole number > 0)\n        length " in text
    assert "position.rotary_pct=1.0\n        rotated " in text
    assert "   * rope " in text and "     coca " in text and "coca_strict_350m" in text
    assert not re.search(r"^ +\*? +_350m", text, re.MULTILINE)  # a part, no choice


def test_help_says_what_an_option_means_to_the_chosen_module():
    for scheme, meaning in ("path", "before w"), ("selective_rope", "of phases"):
        text = " ".join(TRAINING.help_text([f"position={scheme}"]).split())
        assert re.search(rf"position\.taps=\d tokens of the causal convolution {meaning};", text), scheme
    taps = next(line for line in TRAINING.markdown().splitlines() if line.startswith("| `position.taps`"))
    assert "path: tokens of" in taps and "; selective_rope: tokens of" in taps


def test_every_option_is_described():
    rows = [line.split(" | ") for line in TRAINING.markdown().splitlines() if re.match(r"\| `[a-z_]+\.", line)]
    assert len(rows) > 70
    for row in rows:
        assert all(cell.strip(" |") for cell in (row[0], row[2 if len(row) == 4 else 1])), row


def test_docs_are_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text() == TRAINING.markdown(), "run: make docs"


@pytest.mark.parametrize("flag", ["--local_rank=1", "--local-rank=1"])
def test_launcher_flags_are_tolerated(flag, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "to be restored to nothing")
    del os.environ["LOCAL_RANK"]
    assert without_launcher_flags([flag, "optim.lr=1"]) == ["optim.lr=1"]
    assert os.environ.pop("LOCAL_RANK") == "1"
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
        (RuntimeError("oops"), 1, "bug in coca_train"),
    ],
)
def test_exit_codes(error, code, text, capsys):
    assert entry.run(raises(error), []) == code
    err = capsys.readouterr().err
    assert text in err
    assert ("Traceback" in err) == (code == 1)


def test_sweep_names_and_overrides():
    planned = _sweep.jobs(["position=rope,coca", "optim.lr=1e-3,2e-3", "train.max_steps=50"], ())
    assert [job.point for job in planned[:2]] == [{"position": "rope", "optim.lr": lr} for lr in ("0.001", "0.002")]
    names = [f"quickstart-{position}-lr-{lr}" for position in ("rope", "coca") for lr in (0.001, 0.002)]
    assert [job.name for job in planned] == names
    assert planned[0].overrides == ["position=rope", "optim.lr=0.001", "train.max_steps=50", f"run.name={names[0]}"]
    (one, two) = _sweep.jobs(["+experiment=roformer_350m,coca_350m"], ())
    assert (one.name, two.name) == ("roformer_350m", "coca_350m")


def test_a_sweep_that_cannot_be_read_says_why(capsys):
    assert commands.main(["-m", "optim.lr =1,2"]) == 2
    assert "E-CFG-16" in capsys.readouterr().err


def test_a_sweep_is_honest(monkeypatch, capsys, tmp_path):
    """Three jobs in processes of their own, of which the second fails: all run, the exit code says so."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/started\ncase "$*" in *position=coca*) exit 5;; esac\n')
    python.chmod(0o755)
    monkeypatch.setattr(_sweep.sys, "executable", str(python))
    assert commands.main(["--multirun", "position=rope,coca,alibi", f"run.root={tmp_path}"]) == 5
    out = capsys.readouterr().out
    assert re.search(r"^\| rope +\| quickstart-rope +\| +done \|$", out, re.M)
    assert re.search(r"^\| coca +\| quickstart-coca +\| +exit code 5 \|$", out, re.M)
    started = [line.split() for line in (tmp_path / "started").read_text().splitlines()]
    assert all(words[:2] == ["-m", "coca_train"] for words in started)
    assert [words[-1] for words in started] == [f"run.name=quickstart-{n}" for n in ("rope", "coca", "alibi")]
