"""An exported config.json makes transformers rotate as the run does; on other versions: tests/outside/rotations.py."""

import pytest

from coca_train.hub import rope_check, rope_engines
from tests.cases import experiments
from tests.hub import rope_cases
from tests.outside import rotations

CASES = rope_cases.cases()


@pytest.mark.parametrize("name", CASES)
def test_the_installed_transformers_rotates_as_we_do(name):
    case = CASES[name]
    assert rope_check.outcome(case, rope_engines.ask("transformers", case.config, case.lengths)) == "same"


def test_every_recipe_with_rope_exports_natively():
    """Those of CoCA and ALiBi, of encoders, and of windows of other kinds, do not."""
    others = [name for name in experiments() if name not in CASES]
    known = ("_", "atlas", "coca", "alibi", "encoder", "quickstart", "reach", "sketch", "transformer_xl")
    assert all(name.startswith(known) for name in others)


@pytest.mark.parametrize("name", [name for name in CASES if "yarn" in name or "by-parts" in name])
def test_the_length_is_the_extended_one(name):
    """transformers 4.51 to 4.55 compute YaRN's factor from both lengths; 5.x warns where they do not fit it."""
    config = CASES[name].config
    scaling = config["rope_scaling"]
    longest = scaling["factor"] * scaling["original_max_position_embeddings"]
    assert config["max_position_embeddings"] == longest


@pytest.mark.parametrize("name", ["llama longrope", "llama longrope-one-list"])
def test_longrope_says_its_lengths_wherever_a_version_looks(name):
    """transformers 4 looks for the original length beside rope_scaling, 5 in it."""
    config = CASES[name].config
    assert config["original_max_position_embeddings"] == rope_cases.L
    assert config["rope_scaling"]["original_max_position_embeddings"] == rope_cases.L
    assert config["max_position_embeddings"] == 8 * rope_cases.L


@pytest.mark.parametrize("case", [("4.46.3", "llama plain"), ("4.46.3", "llama yarn"), ("5.3.0", "llama partial")])
def test_what_is_known_to_differ_goes_by_version(case):
    assert rotations.known(*case) == {"llama plain": "same", "llama yarn": "differs"}.get(case[1], "refused")
    assert rotations.known("5.24.0", case[1]) == "same"
