"""The four recipes of the 350M class differ in their position scheme and in nothing they begin with."""

import pytest

from tests.models.alike import RECIPES, start, std_of_t

SMALL = ("model.n_layers=1", "model.vocab_size=64", "model.d_model=256", "model.n_heads=4", "model.d_ff=64")


def alike(*overrides: str) -> None:
    first, *others = (start(recipe, *overrides) for recipe in RECIPES)
    assert all(other == first for other in others)


def test_they_begin_with_the_same_tensors() -> None:
    alike(*SMALL)


def test_the_effective_t_has_the_authors_std() -> None:
    """They project full width at std 0.02 and average the halves."""
    stds = {width: std_of_t("coca_350m", 0, *SMALL, f"position.t_width={width}") for width in ("full_mean", "half")}
    assert stds["full_mean"] == pytest.approx(0.02 / 2**0.5, rel=0.02)
    assert stds["half"] == stds["full_mean"]


@pytest.mark.slow
def test_they_begin_with_the_same_tensors_at_full_width() -> None:
    assert start(RECIPES[0]).n_parameters == 508_880_896
    alike()
