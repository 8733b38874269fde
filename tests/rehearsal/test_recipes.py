"""Every experiment by its own documented commands: raw text, tokenizer, data, weights, every stage, export.

Small but real: width 64, windows of 32 tokens, two steps of every stage, and the recipe's own vocabulary.
"""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from coca_train.data.readers import hub
from coca_train.settings import load
from tests.cases import experiments, slow_unless
from tests.rehearsal.walk import SIZES, SIZES_OF_DATA, STEPS, Head, Walk, last_step, of_released, stages
from tests.stages.support import leave_out

datasets = pytest.importorskip("datasets")
pytest.importorskip("transformers")
EXPERIMENTS = experiments()
OF_A_FAMILY = [
    "coca_350m",
    "coca_llama_7b",
    "yarn_llama2_7b_128k",
    "yarn_mistral_7b_128k",
]
IMPORTED_ONCE = [name for name in EXPERIMENTS if any(of_released(c) for c in Head("experiment", name).commands[1:])]
FINISHED = re.compile(r"From a finished (\w+): (\S+=\w+)")
GOING_ON = {name: match for name in EXPERIMENTS if (match := FINISHED.search(Head("experiment", name).sentences))}


@pytest.fixture(scope="module")
def made() -> dict[str, Path]:
    return {}


@pytest.fixture
def walk(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Walk:
    torch.set_num_threads(1)
    leave_out(monkeypatch.setattr)
    monkeypatch.delenv("COCA_TRAIN_DATA", raising=False)
    monkeypatch.delenv("COCA_TRAIN_RAW", raising=False)
    folder = tmp_path_factory.mktemp("user")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    hub._load.cache_clear()  # by names that are folders of the walk before
    return Walk(folder, made)


@pytest.mark.parametrize("name", slow_unless(OF_A_FAMILY, EXPERIMENTS))
def test_an_experiment_runs_from_its_own_documentation(name: str, walk: Walk) -> None:
    config = load([f"+experiment={name}"], launch=False).config
    run_dir = walk.experiment(name)
    assert stages(run_dir) == list(config.stages)
    assert last_step(run_dir) == STEPS * len(config.stages)
    # Of whole words, which no tokenizer of transformers has (E-IOP-20 says so, with this fix).
    words = ["tokenizer=none"] if config.data.prepare == "diagnostics" else []
    exported = json.loads((walk.export(run_dir, *words) / "config.json").read_text())
    if config.model.vocab_size is not None:
        assert exported["vocab_size"] == config.model.vocab_size


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPORTED_ONCE)
def test_the_released_model_imported_once(name: str, walk: Walk) -> None:
    assert last_step(walk.imported_once(name)) >= STEPS


@pytest.mark.slow
@pytest.mark.parametrize("name", GOING_ON)
def test_a_second_stage_goes_on_from_the_finished_first(name: str, walk: Walk) -> None:
    first = walk.experiment(GOING_ON[name][1])
    assert last_step(first) == STEPS
    assert walk.experiment(name, GOING_ON[name][2]) == first
    assert (stages(first), last_step(first)) == (["all", "to_128k"], 2 * STEPS)


@pytest.mark.slow
def test_data_in_other_tokens_and_its_fix_as_it_is_typed(walk: Walk) -> None:
    """E-TOK-09's fix was model.vocab_size=null, whose error (E-STA-02) led back to it."""
    walk.made.clear()  # its raw text is read twice
    walk.corpus("pile_code")
    command = [*Head("experiment", "coca_llama_7b").commands[0], "run.name=own_tokens"]
    code, text = walk.attempt([*command, "data=pile_code"], SIZES)
    assert code == 3 and "E-TOK-09" in text
    fix = text[text.rindex("E-TOK-09") :]
    for typed in re.findall(r"python -m data_prep [^;]+", fix):
        walk.type(shlex.split(typed), SIZES_OF_DATA)
    words = re.search(r"train with (--config-dir \S+) (data=\S+)", fix)
    assert words is not None
    walk.type([*command, *shlex.split(words[1]), words[2]], SIZES)
