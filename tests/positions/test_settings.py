"""What a config may say about positions, and what it is told when it says something else."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from coca_train import positions
from coca_train.positions import rope_scaling
from coca_train.runtime.errors import UserError
from coca_train.testing import parts
from tests.positions import support

MODEL = replace(parts.MODEL, d_model=64)
FOREIGN = ["os", "torch.load", "_shared", "../base", "", "__init__", "registry", None, 3, ["rope"]]


@pytest.mark.parametrize("name", FOREIGN, ids=repr)
def test_only_files_of_the_folder_can_be_named(name):
    for call in (positions.scheme_class, rope_scaling.settings_class):
        with pytest.raises(UserError, match="is not one of"):
            call(name)
    with pytest.raises(UserError, match="alibi, coca"):
        positions.settings({"scheme": name})


@pytest.mark.parametrize("value", [None, 3, "rope", [], {}], ids=repr)
def test_what_is_no_mapping_with_a_scheme_is_refused(value):
    with pytest.raises(UserError, match="scheme"):
        positions.settings(value)


def test_errors_of_frequencies_carry_their_place():
    bad = {"name": "yarn", "theta": "big", "factor": 0.5, "original_seq_len": 512.5, "beta_fast": 32, "typo": 1}
    with pytest.raises(ValidationError) as caught:
        positions.settings(support.rope(bad) | {"rotary_pct": 0})
    places = {".".join(str(part) for part in error["loc"]) for error in caught.value.errors()}
    wrong = ("theta", "factor", "original_seq_len", "beta_slow", "convention", "typo")
    assert places == {"rotary_pct", *(f"rope_scaling.{name}" for name in wrong)}


@pytest.mark.parametrize("rope_scaling", [{"name": "os"}, {"theta": 1.0}, "plain", None], ids=repr)
def test_frequencies_that_name_nothing_are_refused(rope_scaling):
    with pytest.raises(ValidationError, match=r"name|mapping"):
        positions.settings(support.rope(rope_scaling))


def test_a_ramp_without_width_is_refused():
    with pytest.raises(ValidationError, match=r"beta_fast \(1.0\) must be greater than beta_slow \(1.0\)"):
        positions.settings(support.rope(support.scaling("yarn", beta_fast=1.0, beta_slow=1.0)))


def test_alibi_takes_no_frequencies():
    with pytest.raises(ValidationError, match="rope_scaling"):
        positions.settings(support.alibi() | {"rope_scaling": support.PLAIN})


def test_settings_are_frozen_and_pass_through():
    settings = positions.settings(support.coca())
    assert positions.settings(settings) is settings
    assert replace(settings, variant="strict").rope_scaling is settings.rope_scaling
    with pytest.raises(AttributeError):
        settings.variant = "strict"


def test_rotary_widths_that_cannot_be_computed_are_problems():
    rope = positions.settings(support.rope(rotary_pct=0.25))
    assert rope.problems(MODEL) == []
    ((key, message, fix),) = rope.problems(replace(MODEL, d_model=60))
    assert key == "model.head_dim"
    assert "head_dim 15 x rotary_pct 0.25 = 3.75" in message
    assert "0.25" in fix


def test_rotated_widths_of_coca_are_those_of_rope():
    assert positions.settings(support.coca(rotary_pct=0.25)).problems(replace(MODEL, d_model=60))
    assert positions.settings(support.coca()).problems(MODEL) == []
    assert positions.settings(support.coca()).problems(replace(MODEL, head_dim=15))
