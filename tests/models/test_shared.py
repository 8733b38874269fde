"""Position parameters that all layers share (`shared`), beside the same scheme with numbers in every layer."""

import copy

import pytest
import torch

from coca_train import positions
from coca_train.attention.layer_types import UNIFORM
from coca_train.config.schema import LayersConfig, LayerTypeConfig
from coca_train.models.transformer import Transformer
from coca_train.planning.outline import outline
from coca_train.settings import load
from tests.models.conftest import LLAMA, SCHEMES, build

TWO_KINDS = LayersConfig(
    pattern=["default", "near"],
    types={"near": LayerTypeConfig(attention_pattern={"name": "sliding_window", "window": 9})},
)
NAMES = {"kerple_log": ("r1", "r2"), "kerple_power": ("r1", "r2"), "transformer_xl": ("u", "v")}


def settings(scheme: str, shared: bool) -> dict[str, object]:
    return SCHEMES[scheme] | {"shared": shared} | ({"memory_len": 0} if scheme == "transformer_xl" else {})


def pair(scheme: str, layers: LayersConfig) -> tuple[Transformer, Transformer]:
    """One function: shared, and with the shared numbers written into every layer of their kind. Float64."""
    shared, apart = (build(LLAMA, settings(scheme, each), layers=layers).double() for each in (True, False))
    state = apart.state_dict() | {k: v for k, v in shared.state_dict().items() if not k.startswith("position")}
    for layer, kind in enumerate(apart.layer_types):
        for name in NAMES[scheme]:
            value = copy.deepcopy(shared.position_of(kind).get_parameter(name).data)
            state[f"blocks.{layer}.attention.position.{name}"] = value
    apart.load_state_dict(state)
    return shared, apart


@pytest.mark.parametrize("layers", [UNIFORM, TWO_KINDS], ids=["uniform", "two_kinds"])
@pytest.mark.parametrize("scheme", NAMES)
def test_the_gradient_of_what_is_shared_is_the_sum_over_its_layers(scheme, layers, tokens_BT):
    shared, apart = pair(scheme, layers)
    losses = [model(tokens_BT()[:, :-1], tokens_BT()[:, 1:]) for model in (shared, apart)]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    for loss in losses:
        loss.backward()
    for kind in dict.fromkeys(shared.layer_types):
        for name in NAMES[scheme]:
            parts = [
                block.attention.position.get_parameter(name).grad
                for block, its in zip(apart.blocks, apart.layer_types, strict=True)
                if its == kind
            ]
            assert all(part.abs().max() > 0 for part in parts)
            torch.testing.assert_close(
                shared.position_of(kind).get_parameter(name).grad, sum(parts), rtol=1e-9, atol=1e-12
            )


@pytest.mark.parametrize(("scheme", "numbers"), [("kerple_log", 32), ("kerple_power", 32), ("transformer_xl", 2048)])
def test_counts_on_the_shape_of_the_350m_class(scheme, numbers):
    """A pair per head for all 24 layers, and 24 times that in each; u and v are as wide as the heads together."""
    shape = ["model=neox_350m", *(["position.memory_len=0"] if scheme == "transformer_xl" else [])]
    counts = {}
    for shared in ("true", "false"):
        sizes = outline(load([*shape, f"position={scheme}", f"position.shared={shared}"]).config, ["*"]).sizes
        counts[shared] = sum(n for name, n in sizes.items() if name.rpartition(".")[2] in NAMES[scheme])
    assert counts == {"true": numbers, "false": 24 * numbers}


@pytest.mark.parametrize("scheme", NAMES)
def test_one_is_not_put_in_the_place_of_the_other(scheme):
    model = build(LLAMA, settings(scheme, True))
    with pytest.raises(ValueError, match="cannot replace"):
        model.set_position(positions.settings(settings(scheme, False)))
