"""`python -m coca_train atlas`: what it refuses, and a whole study in miniature."""

import json
import os
import subprocess
import sys
import time

import pytest

from coca_train.atlas.methods import METHODS, Method
from coca_train.atlas.study import EXPERIMENT, Study
from coca_train.atlas.trials import of_protocol, read_all, write
from coca_train.checkpoint.lock import RunLock
from coca_train.commands import _atlas_trainings, main
from coca_train.commands._atlas_trainings import Runner, Work
from coca_train.commands._children import Job
from coca_train.commands._training import load
from coca_train.commands.atlas import USAGE, AtlasConfig
from data_prep.verbs.diagnostics import DiagnosticsConfig, make
from tests.atlas.trials import trial

TINY = (
    "engine=local", "seeds=2", "rates=[1,2]", "sweep_steps=2", "train.max_steps=3", "n_cases=2", "lengths=[63,128]",
    "model.d_model=32", "model.n_heads=2", "model.d_ff=48", "optim.warmup_steps=1", "eval.max_tokens=64",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["methods=[rop]"], "E-CFG-32"),
        (["name=mine"], "E-CFG-31"),
        (["scheme=alibi", "name=rope"], "E-CFG-31"),
        (["position.theta=3"], "E-CFG-31"),
        (["scheme=rope", "position=coca"], "E-CFG-31"),
        (["methods=[rope]", "run.seed=4"], "E-CFG-31"),
        (["again=2", "methods=[rope]"], "E-CFG-31"),
        (["lengths=[128,64]"], "E-CFG-31"),
        (["lengths=[128,256]"], "E-CFG-31"),
        (["methods=[rope]", "train.seq_len=128"], "E-CFG-31"),
        (["methods=[rope]", "data=embedded"], "E-CFG-"),
        (["scheme=alibi", "name=rope_yarn"], "E-CFG-31"),
        (["scheme=nothing"], "E-CFG-32"),
        (["train.max_steps=7"], "E-ATL-01"),
        (["reference=rop"], "E-CFG-32"),
        (["again=1", "train.max_steps=7"], "E-ATL-03"),
        (["scheme=alibi", "name=mine", "reference=nobody"], "E-CFG-32"),
        (["scheme=alibi", "name=mine", "position.wrong=1"], "E-CFG-01"),
        (["scheme=alibi", "name=my/row"], "E-CFG-29"),
        (["root="], "E-CFG-05"),
    ],
)
def test_what_is_refused(words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["atlas", *words]) == 2
    assert code in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_two_commands_do_not_train_in_one_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(DiagnosticsConfig(dir="data/diagnostics", n_documents=20, n_valid_documents=20), progress=False)
    monkeypatch.setattr(_atlas_trainings, "run_jobs", lambda *_: pytest.fail("trained"))
    with RunLock(tmp_path / "runs" / "atlas"):
        assert main(["atlas", "methods=[alibi]", *TINY]) == 6
    said = capsys.readouterr().err
    assert "E-RUN-08 runs/atlas: " in said and "or root=<another>" in said


TYPED = [line.split("  ")[1].split()[4:] for line in USAGE.splitlines() if line.startswith("  python -m")]


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_the_commands_of_its_help_are_read(words, tmp_path, monkeypatch):
    """Down to the configuration of each training that they would start."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mypackage" / "configs").mkdir(parents=True)
    trained = []
    monkeypatch.setattr(Runner, "train", lambda self, methods: trained.extend(methods))
    monkeypatch.setattr(Runner, "repeat", lambda self, n: 0)
    monkeypatch.setattr(Runner, "show", lambda self, command, methods: 0)
    assert main(["atlas", *(word.replace("=mine", "=alibi") for word in words)]) == 0
    for method in trained:
        load([EXPERIMENT, *method.words], ())
    assert bool(trained) == any(word.startswith(("scheme=", "methods=")) for word in words)


def test_a_damaged_trial_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write(trial(), tmp_path / "runs" / "atlas" / "trials")
    path.write_text(path.read_text()[:40])
    assert main(["atlas"]) == 3
    assert f"E-ATL-02 {path.relative_to(tmp_path)}" in capsys.readouterr().err


def test_what_makes_another_protocol_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["atlas", "n_cases=10", "lengths=[63,128]", "train.max_steps=7"]) == 2
    said = capsys.readouterr().err
    assert "of the protocol of lengths=[63,128] n_cases=10 train.max_steps=7. Fix: omit these words" in said


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("RoPE", "did you mean rope?"),
        ("LM-Infinit", "one of alibi, "),
        ("rope_widow", "did you mean rope_window"),
        ("path", "it has no trial of this protocol. Fix: methods=[path]"),
    ],
)
def test_a_reference_is_named_as_its_row(asked, meant, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["atlas", f"reference={asked}"]) == 2
    assert meant in capsys.readouterr().err


def test_files_with_other_names_are_no_trials(tmp_path):
    path = write(trial(), tmp_path)
    write(trial("rope_0.5"), tmp_path)
    for name in ("notes.json", "rope.rates.json", "rope_0.5.rates.json"):
        path.with_name(name).write_text("{}")
    assert [each.row for each in read_all(tmp_path)] == ["rope", "rope_0.5"]


def test_a_row_of_the_table_is_asked_by_its_words_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained = []
    monkeypatch.setattr(Runner, "train", lambda self, methods: trained.extend(methods))
    monkeypatch.setattr(Runner, "show", lambda self, command, methods: 0)
    assert main(["atlas", "scheme=rope"]) == 0
    assert "rope: the row of the table, with position.rope_scaling.theta=100" in capsys.readouterr().out
    assert main(["atlas", "scheme=rope", "position.rope_scaling.theta=100"]) == 0
    ssmax = next(each for each in METHODS if each.name == "ssmax")
    assert main(["atlas", "scheme=rope", "name=ssmax", *reversed(ssmax.words[1:])]) == 0
    assert trained == [METHODS[0], METHODS[0], ssmax]


@pytest.mark.slow
def test_a_study_in_miniature(tmp_path):
    """Two rows, killed on its way and gone on; every trial the same when it is made again."""
    data = tmp_path / "data"
    make(DiagnosticsConfig(dir=str(data / "diagnostics"), n_documents=60, n_valid_documents=5), progress=False)
    environment = {**os.environ, "COCA_TRAIN_DATA": str(data)}

    def atlas(*words, **options):
        command = [sys.executable, "-m", "coca_train", "atlas", *words, *TINY]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, **options
        )

    with pytest.raises(subprocess.TimeoutExpired):
        atlas("methods=[rope,nope]", timeout=25)
    done = atlas("methods=[rope,nope]", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "runs" / "atlas"
    assert (folder / "report.html").is_file()
    protocol = json.loads((folder / "trials" / "rope.1.json").read_text())["protocol"]
    trials = of_protocol(read_all(folder / "trials"), protocol)
    assert {row for row, _ in trials} >= {"rope", "nope", "rope_yarn", "rope_rerope", "rope_log_n", "nope_log_n"}
    for seed in (1, 2):
        rope, nope = trials["rope", seed], trials["nope", seed]
        assert rope.batches == nope.batches
        assert rope.start == nope.start
        assert trials["rope_yarn", seed].weights == rope.weights != nope.weights
        assert trials["rope_ntk1", seed].tasks["copy"].right[0] == rope.tasks["copy"].right[0]
    again = atlas("again=1", timeout=300)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "the same bits" in again.stdout + again.stderr


def test_the_time_left_is_by_steps(tmp_path, capsys):
    """Sweeps are shorter than trainings, and what is gone on with had steps before: 1,500 in 10 minutes, 7,500 left."""
    study = Study((63, 128), 2, (1.0,), 2, (), load([EXPERIMENT], ()).config)
    runner = Runner(study, AtlasConfig(root=str(tmp_path)), ())
    (tmp_path / "runs" / "rope-2-1-abc").mkdir(parents=True)
    (tmp_path / "runs" / "rope-2-1-abc" / "metrics.jsonl").write_text('{"step": 490}\n{"step": 500}\n')
    runner.ended, runner.ahead, runner.n_done, runner.n_all = 2000, 10_000, 3, 8
    runner.first = (time.monotonic() - 600, 1000)
    runner.works = {"rope-2-1-abc": Work(METHODS[0], 2, 1.0, None)}
    runner._watch([Job("rope-2-1-abc", [], tmp_path / "log")])
    assert "about 50 min left: 3 of 8 trainings done; rope seed 2 at step 500" in capsys.readouterr().err


TRAINED = 99  # an exit code that nothing else has


def _own(tmp_path, monkeypatch, *words):
    """Type an atlas of one's own row, of which nothing is trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_atlas_trainings, "run_jobs", lambda *_: (TRAINED, None))
    return main(["atlas", "scheme=alibi", "name=mine", *words, *TINY])


def test_what_is_to_be_trained_is_said(tmp_path, monkeypatch, capsys):
    assert _own(tmp_path, monkeypatch) == TRAINED
    said = capsys.readouterr().err
    assert "4 trainings, " in said and "base" not in said
    assert main(["atlas", "scheme=rope", "name=mine", *TINY]) == TRAINED
    assert "mine: its rotations have base 10,000, those of the table 100." in capsys.readouterr().err
    assert main(["atlas", "scheme=rope", "name=mine", "position.rope_scaling.theta=10000", *TINY]) == TRAINED
    assert "base" not in capsys.readouterr().err


def test_trials_of_another_protocol_are_not_replaced(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "runs" / "atlas" / "trials"
    write(trial("mine", 3, words=["position=alibi"], protocol="another"), folder)
    assert _own(tmp_path, monkeypatch) == TRAINED  # of seeds 1 and 2
    path = write(trial("mine", 2, words=["position=alibi"], protocol="another"), folder)
    before = path.read_bytes()
    for words, option in ((["root=runs/atlas"], "root"), (["root=.", f"trials={folder}"], "trials")):
        assert _own(tmp_path, monkeypatch, *words) == 2
        said = capsys.readouterr().err
        assert "E-ATL-05 " in said and f"{path.name}: of another protocol" in said
        assert f"Fix: {option}=<another folder>" in said
    assert path.read_bytes() == before
    assert _own(tmp_path, monkeypatch, "root=runs/atlas_2") == TRAINED


@pytest.mark.parametrize("option", ["root", "trials"])
def test_a_place_that_cannot_be_written_is_found_first(option, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    assert _own(tmp_path, monkeypatch, f"{option}=file/below") == 7
    assert f"E-ATL-06 {option}=file/below: cannot be written" in (said := capsys.readouterr().err)
    assert "trainings" not in said


def test_trials_of_other_settings_are_replaced_and_that_is_said(tmp_path, capsys):
    """Also where nothing but a plugin's file of configuration differs."""
    configs = tmp_path / "configs"
    (configs / "position").mkdir(parents=True)
    mine, method = configs / "position" / "mine.yaml", Method("mine", "mine", ("position=mine",))
    study = Study((63, 128), 2, (1.0,), 2, (), load([EXPERIMENT], ()).config)

    def runner_with(fold):
        mine.write_text(f"scheme: alibi\nfold: {fold}\n")
        return Runner(study, AtlasConfig(root=str(tmp_path)), (configs,))

    runner = runner_with("auto")
    stored = trial("mine", 1, words=method.words, protocol=study.protocol, source=runner._source(method))
    runner.trials["mine", 1] = stored
    assert runner._has(method, 1)
    runner = runner_with("never")
    runner.trials["mine", 1] = stored
    assert not runner._has(method, 1)
    runner._say_what_is_done([method], [(method, 1)])
    assert "mine: 1 of its trials in " in capsys.readouterr().err
