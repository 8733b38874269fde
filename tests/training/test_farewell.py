"""Every command that a finished run proposes can be typed: it composes, and has the run's own data and experiment."""

import shlex
from pathlib import Path

from coca_train.settings import load
from coca_train.training.ending import next_commands, written_files


def commands(words: list[str], folders: tuple[Path, ...] = ()) -> list[list[str]]:
    config = load(words, folders, launch=False).config
    return [shlex.split(each)[3:] for each in next_commands(config, Path("runs/mine"), words, folders)]


def test_trainings_that_are_proposed_compose_with_the_words_of_the_run() -> None:
    words = ["position=coca", "position/rope_scaling=yarn", "run.name=mine", "data.seed=7", "train.max_steps=300"]
    generate, evaluate, other, compare, help = commands(words)
    assert generate == ["generate", "run=runs/mine", "prompt=The"]
    assert evaluate == ["evaluate", "checkpoint=runs/mine"]
    assert other == ["data.seed=7", "train.max_steps=300", "position=rope", "run.name=rope"]
    assert load(other, launch=False).config.position.scheme == "rope"
    assert compare[0] == "compare" and compare[2:] == ["data.seed=7", "train.max_steps=300"]
    assert help == ["--help"]


def test_another_scheme_than_the_runs_own_is_proposed() -> None:
    assert "position=coca" in commands(["position=rope"])[2]


def test_of_an_encoder_nothing_is_proposed_that_asks_for_next_tokens() -> None:
    proposed = commands(["+experiment=encoder_tiny", "position=rope"])
    assert [each[0] for each in proposed] == ["show", "+experiment=encoder_tiny", "--help"]
    staged = commands(["+experiment=encoder_tiny", "position=coca", "stages=coca_three"])
    assert [each[0] for each in staged] == ["show", "--help"]


def test_no_evaluation_is_proposed_without_held_out_text() -> None:
    words = ["data.sources.text.valid_path=null", "data.sources.code.valid_path=null"]
    assert "evaluate" not in [each[0] for each in commands(words)]


def test_trackers_are_named_with_what_opens_them(tmp_path: Path) -> None:
    config = load([f"run.root={tmp_path}", "tracking=wandb"], launch=False).config
    for name in ("tensorboard", "wandb"):
        (tmp_path / "run" / name).mkdir(parents=True)
    said = written_files(config, tmp_path / "run")
    assert f"tensorboard --logdir {tmp_path}\n" in said and f"wandb sync {tmp_path}/run/wandb/offline-run-*\n" in said
