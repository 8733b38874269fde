"""The command: what is trained, in which words, and what is refused before anything is."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from coca_train.checkpoint.record import made_with
from coca_train.commands import compare, main
from coca_train.config.files import choices, config_dir
from coca_train.config.load import assemble
from coca_train.config.load import load as load_options
from coca_train.positions import SCHEMES
from coca_train.settings import TRAIN, load
from coca_train.training.ending import FORMAT


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("schemes=rope, coca", ["rope", "coca"]),
        ("schemes=rope coca,alibi  kerple_log", ["rope", "coca", "alibi", "kerple_log"]),
        ("schemes=[rope,coca:clex]", ["rope", "coca:clex"]),
        ("run.root=/x", ["rope", "alibi", "coca", "coca_strict"]),
    ],
)
def test_a_list_of_schemes(word, expected):
    assert load_options(assemble(compare.COMPARE, [word])).config.schemes == expected


def test_a_list_of_runs():
    assert load_options(assemble(compare.COMPARE, ["runs=runs/a,runs/b (2)"])).config.runs == ["runs/a", "runs/b (2)"]


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["position=rope"], "E-CFG-31"),
        (["run.name=x"], "E-CFG-31"),
        (["schemes="], "one or more"),
        (["schemes=rope,rope"], "there twice"),
        (["runs=runs/a,runs/b", "seeds=3"], "runs=runs/a,runs/b: "),
        (["schemes=rope,coka"], "mean coca"),
        (["schemes=rope coca:clexx"], "mean clex"),
        (["schemes=rope coca:"], "no ''"),
        (["schemes=alibi:yarn"], "rope_scaling"),
        (["schemes=rope:yarn:ntk"], "position/rope_scaling twice"),
        (["schemes=rope:yarn@factor:8:ntk"], "position/rope_scaling twice"),
        (["schemes=rope:yarn@factor"], "choice@option:value"),
        (["schemes=rope:yarn@factor:x"], "a number >= 1"),
        (["schemes=rope:segments"], "for evaluation only"),
        (["schemes=rope", "eval.extrapolation.attention_patterns=[sink]"], "sinks"),
        (["schemes=rope", "train.max_step=3"], "max_step"),
        (["schemes=rope", "eval.extrapolation.enabled=false"], "leave it true"),
        (["schemes=rope", "+experiment=encoder_tiny"], "train each scheme by itself"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(words, phrase, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "run_child", lambda command: pytest.fail("trained"))
    assert main(["compare", *words, f"run.root={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert phrase in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "overrides", "name", "words"),
    [
        ("coca", [], "coca", ["position=coca"]),
        ("coca:clex", [], "coca-clex", ["position=coca", "position/rope_scaling=clex"]),
        ("rope:sliding_window", [], "rope-sliding_window", ["position=rope", "attention_pattern=sliding_window"]),
        (
            "rope:yarn:sinks",
            [],
            "rope-yarn-sinks",
            ["position=rope", "position/rope_scaling=yarn", "attention_pattern=sinks"],
        ),
        (
            "rope:yarn@factor:8@convention:code:sinks@window:64",
            [],
            "rope-yarn-factor-8-convention-code-sinks-window-64",
            [
                "position=rope",
                "position/rope_scaling=yarn",
                "position.rope_scaling.factor=8",
                "position.rope_scaling.convention=code",
                "attention_pattern=sinks",
                "attention_pattern.window=64",
            ],
        ),
        ("transformer_xl", [], "transformer_xl", ["position=transformer_xl", "position.memory_len=0"]),
        ("transformer_xl", ["data.order=stream"], "transformer_xl", ["position=transformer_xl"]),
        (
            "transformer_xl",
            ["data.order=shuffled"],
            "transformer_xl",
            ["position=transformer_xl", "position.memory_len=0"],
        ),
        ("transformer_xl", ["position.memory_len=8"], "transformer_xl", ["position=transformer_xl"]),
    ],
)
def test_what_a_name_of_the_list_stands_for(text, overrides, name, words):
    assert compare.entry(text, overrides) == compare.SchemeRun(name, words)
    load(
        [
            *words,
            *overrides,
            f"run.name={name}",
            *(["data.order=stream"] if "position.memory_len=8" in overrides else []),
        ]
    )


def test_every_scheme_can_be_listed_and_a_memory_is_announced(monkeypatch, tmp_path, capsys):
    commands = []
    monkeypatch.setattr(compare, "run_child", lambda command: commands.append(command) or 0)
    monkeypatch.setattr(compare, "compare", lambda *_: None)
    schemes = choices("position", (config_dir(),))
    assert main(["compare", f"schemes={' '.join(schemes)}", f"run.root={tmp_path}"]) == 0
    assert [next(word for word in c if word.startswith("position=")) for c in commands] == [
        f"position={scheme}" for scheme in schemes
    ]
    assert ["position.memory_len=0" in c for c in commands] == [scheme == "transformer_xl" for scheme in schemes]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("transformer_xl:")]
    assert len(lines) == 1
    assert "position.memory_len=0" in lines[0]


def test_not_under_torchrun(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(compare, "run_child", lambda command: pytest.fail("trained"))
    assert main(["compare", f"run.root={tmp_path}"]) == 2
    assert "E-RUN-23" in capsys.readouterr().err


def test_trains_in_turn_skips_the_finished_and_stops_with_the_child_s_code(monkeypatch, tmp_path, capsys):
    commands = []

    def child(command):
        commands.append(command)
        return 75 if "position=coca" in command else 0

    monkeypatch.setattr(compare, "run_child", child)
    monkeypatch.setattr(compare, "finished", lambda run_dir, loaded: loaded.config.position.scheme == "rope")
    words = ["schemes=rope,alibi,coca,nope", f"run.root={tmp_path}", "train.max_steps=300"]
    assert main(["compare", *words]) == 75
    common = [sys.executable, "-m", "coca_train", "train.max_steps=300"]
    assert commands == [[*common, f"position={s}", f"run.name={s}", f"run.root={tmp_path}"] for s in ("alibi", "coca")]
    assert "rope: finished before" in capsys.readouterr().err


def test_seeds_are_trainings_of_their_own_and_only_new_ones_are_trained(monkeypatch, tmp_path):
    commands, compared = [], []

    def child(command):
        commands.append(command)
        name = next(word.removeprefix("run.name=") for word in command if word.startswith("run.name="))
        run_dir, loaded = tmp_path / name, load(command[3:])
        (run_dir / "report").mkdir(parents=True)
        (run_dir / "config.yaml").write_text(loaded.record)
        (run_dir / "report" / "done.json").write_text(json.dumps({"step": 300, "format": FORMAT}))
        return 0

    def started(n_seeds):
        commands.clear()
        words = ["schemes=rope,alibi", f"seeds={n_seeds}", f"run.root={tmp_path}", "train.max_steps=300", "run.seed=7"]
        assert main(["compare", *words]) == 0
        return commands

    monkeypatch.setattr(compare, "run_child", child)
    monkeypatch.setattr(compare, "compare", lambda runs, *_: compared.append(list(runs)))
    common = [sys.executable, "-m", "coca_train", "train.max_steps=300", "run.seed=7"]
    first = [[*common, f"position={s}", f"run.name={s}", f"run.root={tmp_path}"] for s in ("rope", "alibi")]
    assert started(1) == first  # as without seeds
    assert started(2) == [
        [*common, f"position={s}", "run.seed=8", "data.seed=1235", f"run.name={s}-seed2", f"run.root={tmp_path}"]
        for s in ("rope", "alibi")
    ]
    assert [next(word for word in each if word.startswith("run.name=")) for each in started(3)] == [
        "run.name=rope-seed3",
        "run.name=alibi-seed3",
    ]
    assert started(3) == []
    assert compared[-1] == ["rope", "alibi", "rope-seed2", "alibi-seed2", "rope-seed3", "alibi-seed3"]
    third = load_options(assemble(TRAIN, [f"run.root={tmp_path}"])).config  # what a training is without any of it
    loaded = (tmp_path / "alibi-seed3" / "config.yaml").read_text()
    assert f"seed: {third.data.seed + 2}" in loaded and "seed: 9" in loaded


def test_help_tells_of_seeds(capsys):
    assert main(["compare", "--help"]) == 0
    shown = capsys.readouterr().out
    for words in ("schemes=rope,coca seeds=3", "<scheme>-seed2", "seeds="):
        assert words in shown


@pytest.mark.parametrize("word", ["seeds=0", "seeds=two", "seeds=101"])
def test_a_number_of_seeds(word, capsys):
    assert main(["compare", word]) == 2
    assert "seeds" in capsys.readouterr().err


def test_finished_means_this_very_configuration_and_its_last_step(tmp_path):
    loaded = load(["train.max_steps=300"])
    (tmp_path / "report").mkdir()
    (tmp_path / "config.yaml").write_text(loaded.record)
    assert not compare.finished(tmp_path, loaded)
    for mark in ({"step": 200, "format": FORMAT}, {"step": 300, "format": FORMAT - 1}, {"step": 300}):
        (tmp_path / "report" / "done.json").write_text(json.dumps(mark))
        assert not compare.finished(tmp_path, loaded)
    (tmp_path / "report" / "done.json").write_text(json.dumps({"step": 300, "format": FORMAT}))
    assert compare.finished(tmp_path, loaded)
    assert not compare.finished(tmp_path, load(["train.max_steps=300", "optim.lr=0.1"]))


CHILD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *a: sys.exit(75))
print('up', flush=True)
time.sleep(30)
"""
PARENT = """
import signal, sys
from coca_train.commands._children import run_child
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests in the background had it ignored
sys.exit(run_child([sys.executable, '-c', sys.argv[1]]))
"""


def test_sigterm_reaches_the_training():
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        begin = time.monotonic()
        os.kill(parent.pid, signal.SIGTERM)
        assert parent.wait(20) == 75
        assert time.monotonic() - begin < 10


def test_ctrl_c_stops_what_would_come_next_though_the_training_ended_well(tmp_path):
    at_work = tmp_path / "at-work"  # the child's end comes after the signal, however busy the machine is
    at_work.touch()
    child = f"import os, time; print('up', flush=True)\nwhile os.path.exists({str(at_work)!r}): time.sleep(0.02)"
    with subprocess.Popen([sys.executable, "-c", PARENT, child], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        os.kill(parent.pid, signal.SIGINT)
        at_work.unlink()
        assert parent.wait(20) == 130


def test_a_killed_child_is_no_success():
    assert compare.run_child([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


@pytest.mark.parametrize(
    ("words", "root"),
    [
        ([], "runs/compare"),
        (["+experiment=sketch"], "runs/compare-sketch"),
        (["run.root=x", "+experiment=sketch"], "x"),
    ],
)
def test_each_experiment_has_a_folder_of_its_own(words, root, monkeypatch, tmp_path):
    """Or the second of two comparisons would be told that its model had changed."""
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(compare, "train_all", lambda schemes, root, *rest: seen.append(root) or 1)
    assert main(["compare", *words]) == 1
    assert seen == [root]


def test_a_scheme_that_has_been_filled_in_since_is_another_one(monkeypatch, tmp_path, capsys):
    """A stub had been trained; the same command took its figures for the scheme's."""
    loaded = load(["position=alibi"])
    digest = made_with(loaded)["source of alibi"]
    (tmp_path / "alibi").mkdir()
    monkeypatch.setattr(compare, "run_child", lambda command: 9)
    for source, code in ((digest, 9), ("0" * 12, 2)):
        (tmp_path / "alibi/run.json").write_text(json.dumps({"versions": {"source of alibi": source}}))
        assert main(["compare", "schemes=alibi", f"run.root={tmp_path}"]) == code
        assert ("E-CKP-30" in capsys.readouterr().err) == (code == 2)


def test_a_digest_of_a_source_is_of_what_it_computes(monkeypatch, tmp_path):
    path = tmp_path / "alibi.py"
    monkeypatch.setattr(SCHEMES.__class__, "source", lambda self, name: path)
    digests = []
    for text in ('"""One."""\nx = 1  # so\n', '"""Other."""\nx = 1\n', '"""One."""\nx = 2\n'):
        path.write_text(text)
        digests.append(SCHEMES.digest("alibi"))
    assert digests[0] == digests[1] != digests[2]
