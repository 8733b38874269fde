"""Position schemes with parameters: shared ones and each layer's train the same on every engine, ZeRO 3 included."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from coca_train import engine, positions
from coca_train.attention import patterns
from coca_train.attention.layer_types import UNIFORM
from coca_train.config.schema import LayersConfig, LoraConfig
from coca_train.models.init import init_parameter
from coca_train.models.trainable import adapt
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist
from coca_train.testing.parts import shipped
from tests.cases import slow_unless
from tests.engine.scenarios import GLOBAL_BATCH, OPTIM, VOCAB, batches, engine_config, lr_of
from tests.faults.fork_server import ForkServer, values
from tests.models.conftest import LLAMA
from tests.states import full_state

PLAIN = {"name": "plain", "theta": 10000.0}
CLEX = {"name": "clex", "theta": 10000.0, "original_seq_len": 6, "max_factor": 4, "param_factor": 1, "ode_step": 0.5}
SHIPPED = dict(shipped())


def learns(scheme: dict[str, Any]) -> bool:
    """Whether it has parameters; those without any are what the other engine tests stand for."""
    built = patterns.outline(positions.settings(scheme), LLAMA)
    return any(True for module in (built, built.layer()) for _ in module.parameters())


SCHEMES = {name: scheme for name, scheme in SHIPPED.items() if learns(scheme)} | {
    "rope_clex": {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": CLEX},
    "coca_clex": SHIPPED["coca"] | {"rope_scaling": CLEX},
    "dape_fire": SHIPPED["dape"] | {"bias": "fire"},
}


def train_model(
    steps: int,
    scheme: dict[str, Any],
    micro: int = 2,
    activation_checkpointing: str = "none",
    layers: dict[str, Any] | None = None,
    trainable: tuple[str, ...] = ("*",),
    lora_rank: int | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """In a forked rank: losses and gradient norms of a real Transformer, and how far each of the scheme's parameters
    has moved.

    layers: of several kinds, and queries and keys normalised. lora_rank: of adapters for what is trainable.
    """
    torch.set_num_threads(1)
    settings = positions.settings(scheme)
    causal = patterns.settings({"name": "causal"})
    schedule = UNIFORM if layers is None else TypeAdapter(LayersConfig).validate_json(json.dumps(layers))
    config = LLAMA if layers is None else replace(LLAMA, n_layers=4, qk_norm="head")

    def model() -> Transformer:
        built = Transformer(
            config, settings, causal, layers=schedule, vocab_size=VOCAB, max_seq_len=12,
            activation_checkpointing=activation_checkpointing,
        )  # fmt: skip
        if lora_rank is not None:
            adapt(built, trainable, LoraConfig(rank=lora_rank, alpha=2.0 * lora_rank))
        return built

    init = partial(init_parameter, model=config, position=settings, seed=1, layers=schedule)
    built = engine.build(
        engine_config(**changes), OPTIM, model, init,
        trainable=trainable, micro_batch_size=micro, accumulation=GLOBAL_BATCH // dist.world_size() // micro,
    )  # fmt: skip
    own = {name: tensor.clone() for name, tensor in full_state(built).items() if _of_position(name)}
    with built.eval_module() as module, torch.no_grad():
        module(batches(0, micro)[0].tokens_BT)  # as a run is certified: ZeRO 3 knows by then what it will gather
    losses, norms = [], []
    for step in range(steps):
        torch.manual_seed(step)  # the same draw on every rank and engine, for schemes that sample
        result = built.train_step(batches(step, micro), lr_of(step))
        losses.append(result.loss)
        norms.append(result.grad_norm)
    moved = {name: float((tensor - own[name]).abs().max()) for name, tensor in full_state(built).items() if name in own}
    built.close()
    return {"losses": losses, "norms": norms, "moved": moved}


def _of_position(name: str) -> bool:
    part, _, parameter = name.partition("/")
    return part == "model" and any(name.startswith("position") for name in parameter.split("."))


# A table of all layers, tables of each, vectors, a hook's network, frequencies with parameters.
@pytest.mark.parametrize("name", slow_unless(["t5", "shaw", "cope", "dape_fire", "rope_clex"], SCHEMES))
def test_zero_3_equals_local(server: ForkServer, name: str) -> None:
    run, job = "tests.engine.test_schemes:train_model", {"steps": 3, "micro": 4, "scheme": SCHEMES[name]}
    local = values(server.run(run, job | {"kind": "local"}))[0]
    sharded = values(server.run(run, job | {"zero_stage": 3, "activation_checkpointing": "full"}, ranks=2))
    assert all(result["losses"] == sharded[0]["losses"] for result in sharded)
    for ours, theirs in zip(sharded[0]["losses"], local["losses"], strict=True):
        # clex draws per micro batch, and two ranks have another number of them; the first draw is the same
        assert ours == pytest.approx(theirs, rel=1e-5 if "clex" not in name else 0.1)
    assert local["moved"]
    assert all(change > 0 for change in (*local["moved"].values(), *sharded[0]["moved"].values()))


def test_layers_of_several_kinds(server: ForkServer) -> None:
    """T5's table of the run, another of a kind with a window, KERPLE's numbers in a third; all of them learn."""
    window = {"name": "sliding_window", "window": 4}
    kinds = {"local": {"attention_pattern": window}, "kerple": {"position": SHIPPED["kerple_log"]}, "nope": {}}
    kinds["nope"] = {"position": {"scheme": "nope"}, "logit_scale": {"name": "steps", "length": 4}}
    job = {"steps": 4, "scheme": SHIPPED["t5"], "layers": {"pattern": ["default", *kinds], "types": kinds}}
    local = values(server.run("tests.engine.test_schemes:train_model", job | {"kind": "local"}))[0]
    sharded = values(server.run("tests.engine.test_schemes:train_model", job | {"zero_stage": 3}, ranks=2))
    assert all(result["losses"] == sharded[0]["losses"] for result in sharded)
    assert sharded[0]["losses"] == pytest.approx(local["losses"], rel=1e-5)
    moved = {name.removeprefix("model/") for name, change in local["moved"].items() if change > 0}
    assert {"position.table", "position_local.table", "position_kerple.r1"} <= moved
    assert moved == {name.removeprefix("model/") for name in sharded[0]["moved"] if sharded[0]["moved"][name] > 0}
