"""Every row of the atlas can be trained, and every variant put on the weights of its row."""

from dataclasses import asdict

import pytest

from coca_train.atlas.methods import METHODS, THETA, VARIANTS, WINDOW, title_of, variants_of
from coca_train.commands._training import load
from coca_train.evaluation.variants import Choice, variants
from coca_train.runtime.trees import flatten

AXES = {"rope_scalings": "rope_scaling", "attention_patterns": "attention_pattern", "logit_scales": "logit_scale"}
TRAINED = {each.name: each for each in METHODS}


def configuration(method):
    return load(["+experiment=atlas", *method.words]).config


@pytest.mark.parametrize("name", TRAINED)
def test_a_row_can_be_configured(name):
    assert configuration(TRAINED[name]).train.seq_len == WINDOW


@pytest.mark.parametrize("name", TRAINED)
def test_rotations_have_the_base_of_the_window(name):
    """In every layer, but of positions that are drawn from further, and of the row that is about the base."""
    config = configuration(TRAINED[name])
    values = flatten({"position": asdict(config.position), "layers": asdict(config.layers)})
    bases = {value for key, value in values.items() if key.endswith("theta") and value is not None}
    assert bases <= ({10000.0} if name in ("random", "pose", "rope_10000") else {float(THETA)})


@pytest.mark.parametrize("of", sorted({each.of for each in VARIANTS}))
def test_variants_go_on_the_weights_of_their_row(of):
    config = configuration(TRAINED[of])
    tried = [Choice(**{AXES[each.axis]: each.choice}) for each in variants_of(of)]
    assert [found.problem for found in variants(config, tried).values()] == [""] * len(tried)


def test_rows_are_called_by_names_of_their_own():
    names = [each.name for each in (*METHODS, *VARIANTS)]
    titles = [title_of(name) for name in names]
    assert len(set(names)) == len(names) >= 40
    assert len(set(titles)) == len(titles)
    assert title_of("mine") == "mine"
