"""The recipes begin from the released models: their sections are those of the released config.json."""

import pytest

from coca_train.config.load import assemble, load
from coca_train.hub import config_json, conversions, starting
from coca_train.hub.architecture import Architecture
from coca_train.hub.weights import Source
from coca_train.settings import TRAIN
from tests.hub import models

SHARED = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA = SHARED | {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048}
LARGER = SHARED | {
    "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "intermediate_size": 13824,
}  # fmt: skip
MISTRAL = SHARED | {
    "model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096,
    "rope_theta": 10000.0, "max_position_embeddings": 32768,
}  # fmt: skip
RECIPES = {
    "coca_llama_7b": (LLAMA, ["position.scheme", "rope_to_coca"]),
    "pi_llama_7b_32k": (LLAMA, ["position.frequencies.factor", "position.frequencies.name"]),
    "yarn_llama2_7b_64k": (SHARED, ["position.frequencies.name"]),
    "yarn_llama2_13b_64k": (LARGER, ["position.frequencies.name"]),
    "pi_llama2_7b_8k": (SHARED, ["position.frequencies.name"]),
    "ntk_llama2_7b_8k": (SHARED, ["position.frequencies.theta", "new_theta"]),
    "yarn_llama2_7b_8k": (SHARED, ["position.frequencies.name"]),
    "yarn_mistral_7b_64k": (MISTRAL, ["position.frequencies.name", "visibility.name"]),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_begins_from_its_model(recipe, tmp_path):
    """Nothing to be refused; what is announced is what the recipe is about."""
    released, announced = RECIPES[recipe]
    models.edit_new(tmp_path, released)
    words = [f"+experiment={recipe}", f"start.path={tmp_path}"]
    config = load(assemble(TRAIN, words), launch=False).config
    source = Source(tmp_path, "huggingface", "llama", config_json.architecture(tmp_path), {}, {}, never)
    mine = Architecture.of(config, config.model.vocab_size)
    converted, done = conversions.apply(source, mine, config.start, seed=0)
    assert done == config.start.convert
    starting._refuse_other(config, converted.architecture, mine)
    changed = "".join(starting._changes(source.architecture, converted.architecture, mine, done))
    assert all(key in changed for key in announced)
    assert bool(changed) == bool(announced)


def never(name):
    raise AssertionError(f"{name} was read")
