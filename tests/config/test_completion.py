"""Completion: what is offered for the words typed so far, and that bash with our script offers it."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from coca_train.commands import main, verbs
from coca_train.commands.completion import candidates

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("evalu", {"evaluate"}),
        ("position=coca", {"position=coca", "position=coca_strict"}),
        ("position=rope pos", {"position=", "position.", "position.rope_scaling.", "position/rope_scaling="}),
        ("train.max", {"train.max_steps="}),
        ("train train.max", {"train.max_steps="}),
        ("trai", {"train", "train."}),
        ("position.variant", {"position.variant="}),
        ("run.resume=", {"run.resume=auto", "run.resume=must", "run.resume=never"}),
        ("+experiment=llama", {"+experiment=llama_tiny"}),
        ("--multirun optim.bet", {"optim.betas="}),
        ("--cfg ", {"job"}),
        ("plan --config-dir ", set()),
        ("plan gpu=a100", {"gpu=a100_40gb", "gpu=a100_80gb"}),
        ("plan engine=lo", {"engine=local"}),
        ("evaluate +eval=passkey_c", {"+eval=passkey_coca"}),
        ("evaluate train.", set()),
        ("generate use_cache=", {"use_cache=false", "use_cache=true"}),
        ("generate attention_pattern=si", {"attention_pattern=sinks"}),
        ("generate model", set()),
        ("compare schemes=rope,xp", {"schemes=rope,xpos"}),
        ("schemes scheme=al", {"scheme=alibi"}),
        ("export dtype=as", {"dtype=as_run"}),
        ("export --", {"--cfg", "--debug", "--help", "--version"}),
        ("completion f", {"fish"}),
        ("nonsense nonsense=", set()),
    ],
)
def test_what_is_offered(typed, offered):
    assert set(candidates(typed.split(" "))) == offered


def test_every_verb_is_offered_first():
    assert set(verbs()) <= set(candidates([""]))


def test_more_folders_offer_more_choices(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\nrun:\n  name: mine\n")
    assert candidates(["--config-dir", str(tmp_path), "+experiment=mi"]) == [
        "+experiment=mine",
        "+experiment=mistral_tiny",
    ]


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """bash(line, breaks): what bash puts in place of the word under the cursor, with `coca-train` on its path."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "coca-train"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {shlex.quote(sys.executable)} -m coca_train "$@"\n')
    command.chmod(0o755)
    subprocess.run(f"{command} completion bash > {folder}/script", shell=True, check=True)

    def run(line: str, breaks: str = " \t\n\"'><=;|&(:") -> list[str]:
        script = (
            'PATH="$1:$PATH"; source $1/script; COMP_WORDBREAKS=$2; COMP_LINE=$3;'
            'COMP_POINT=${#COMP_LINE}; _coca_train; printf "%s\\n" "${COMPREPLY[@]}"; complete -p coca-train >&2'
        )
        arguments = ["bash", "--norc", "-c", script, "bash", str(folder), breaks, line]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert done.stderr == "complete -o default -F _coca_train coca-train\n"
        return done.stdout.splitlines()

    return run


def test_bash_completes(bash):
    assert bash("coca-train evalu") == ["evaluate"]
    assert bash("coca-train evaluate +eval=passkey_c") == ["passkey_coca"]  # readline keeps `+eval=`
    assert bash("coca-train evaluate +eval=passkey_c", breaks=" ") == ["+eval=passkey_coca"]
    assert bash("coca-train position=coca train.max") == ["train.max_steps="]
    assert {"bash", "zsh", "fish"} <= set(bash("coca-train completion "))
    assert bash("coca-train generate run=") == [""]  # nothing of ours: bash then offers files


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "coca-train completion -- " in capsys.readouterr().out
    assert main(["completion", f"shell={shell}"]) == 0


def test_no_such_shell(capsys):
    assert main(["completion", "tcsh"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("E-CFG-31 command line shell=tcsh: ") and "bash, zsh, fish" in error
