"""The recipes begin from the released models: their sections are those of the released config.json."""

import pytest

from coca_train.config.load import assemble, load
from coca_train.hub import config_json, conversions, initial_weights
from coca_train.hub.architecture import Architecture
from coca_train.hub.weights import Source
from coca_train.settings import TRAIN
from tests.hub import models
from tests.hub.published import LLAMA2, MISTRAL, READ

LARGER = LLAMA2 | {
    "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "intermediate_size": 13824,
    "num_key_value_heads": 40,
}  # fmt: skip
RECIPES = {
    "coca_llama_7b": (READ["LLaMA 1 7B"], ["position.scheme", "rope_to_coca"]),
    "pi_llama_7b_32k": (READ["LLaMA 1 7B"], ["position.rope_scaling.factor", "position.rope_scaling.name"]),
    "yarn_llama2_7b_64k": (LLAMA2, ["position.rope_scaling.name"]),
    "yarn_llama2_13b_64k": (LARGER, ["position.rope_scaling.name"]),
    "pi_llama2_7b_8k": (LLAMA2, ["position.rope_scaling.name"]),
    "ntk_llama2_7b_8k": (LLAMA2, ["position.rope_scaling.theta", "new_theta"]),
    "yarn_llama2_7b_8k": (LLAMA2, ["position.rope_scaling.name"]),
    "yarn_mistral_7b_64k": (MISTRAL, ["position.rope_scaling.name", "attention_pattern.name"]),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_begins_from_its_model(recipe, tmp_path):
    """Nothing to be refused; what is announced is what the recipe is about."""
    released, announced = RECIPES[recipe]
    models.edit_new(tmp_path, released)
    words = [f"+experiment={recipe}", f"start.path={tmp_path}"]
    config = load(assemble(TRAIN, words), launch=False).config
    source = Source(tmp_path, "huggingface", "llama", config_json.read_architecture(tmp_path), {}, {}, never)
    mine = Architecture.of(config, config.model.vocab_size)
    converted, done = conversions.apply(source, mine, config.start, seed=0)
    assert done == config.start.convert
    initial_weights._refuse_incompatible(config, converted.architecture, mine)
    changed = "".join(initial_weights._changes(source.architecture, converted.architecture, mine, done))
    assert all(key in changed for key in announced)
    assert bool(changed) == bool(announced)


def never(name):
    raise AssertionError(f"{name} was read")
