"""Initial weights: what each kind of parameter starts as, and that seed and name alone decide."""

from dataclasses import replace

import pytest
import torch

from coca_train.models.init import init_parameter, init_weights
from tests.models.conftest import LLAMA, NEOX, build, settings

SCHEME, _ = settings("kerple_log")


def filled(name: str, shape: tuple[int, ...], model: object = NEOX, seed: int = 3) -> torch.Tensor:
    tensor = torch.full(shape, 7.0)
    init_parameter(name, tensor, model, SCHEME, seed)  # type: ignore[arg-type]
    return tensor


@pytest.mark.parametrize(("name", "high"), [("r1", 2.0), ("r2", 1.0)])
def test_a_scheme_says_how_its_own_parameters_start(name: str, high: float) -> None:
    values = filled(f"blocks.0.attention.position.{name}", (4096,))
    assert 0 <= values.min() < 0.05 * high
    assert 0.95 * high < values.max() <= high  # uniform, as KERPLE has it
    assert abs(float(values.mean()) - high / 2) < 0.03 * high


def test_the_same_name_elsewhere_is_an_ordinary_matrix() -> None:
    values = filled("blocks.0.mlp.r1", (64, 64))
    assert abs(float(values.std()) - NEOX.init_std) < 0.05 * NEOX.init_std
    assert values.min() < 0


def test_norms_biases_and_matrices() -> None:
    assert filled("final_norm.weight", (5,)).tolist() == [1.0] * 5
    assert filled("blocks.1.mlp.up.bias", (5,)).tolist() == [0.0] * 5
    assert abs(float(filled("blocks.1.mlp.up.weight", (64, 64)).std()) - 0.2) < 0.01


@pytest.mark.parametrize("output", ["attention.out.weight", "mlp.down.weight"])
def test_residual_outputs_shrink_with_depth(output: str) -> None:
    deep = replace(LLAMA, n_layers=8, init_depth_scaled=True)
    assert torch.equal(filled(f"blocks.0.{output}", (64, 64), deep), filled(f"blocks.0.{output}", (64, 64)) / 4)
    assert torch.equal(filled("blocks.0.mlp.up.weight", (9, 9), deep), filled("blocks.0.mlp.up.weight", (9, 9)))


def test_seed_and_name_decide() -> None:
    name = "blocks.0.mlp.up.weight"
    assert torch.equal(filled(name, (8, 8)), filled(name, (8, 8)))
    assert not torch.equal(filled(name, (8, 8)), filled(name, (8, 8), seed=4))
    assert not torch.equal(filled(name, (8, 8)), filled("blocks.1.mlp.up.weight", (8, 8)))


def test_a_model_is_its_parameters_filled_one_by_one() -> None:
    model = build(NEOX, "kerple_log")
    init_weights(model, NEOX, seed=11)
    for name, parameter in model.named_parameters():
        alone = torch.empty_like(parameter)
        init_parameter(name, alone, NEOX, model.position.settings, 11)
        assert torch.equal(alone, parameter), name
