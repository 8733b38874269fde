"""Position schemes with parameters: shared ones and each layer's train the same on every engine, ZeRO 3 included."""

from functools import partial
from typing import Any

import pytest
import torch

from coca_train import engine, positions
from coca_train.models.init import init_parameter
from coca_train.models.transformer import Transformer
from coca_train.positions import visibilities
from coca_train.runtime import dist
from tests.engine.scenarios import GLOBAL_BATCH, OPTIM, VOCAB, batches, engine_config, lr_of
from tests.faults.fork_server import ForkServer, values
from tests.models.conftest import LLAMA
from tests.positions.support import shipped

PLAIN = {"name": "plain", "theta": 10000.0}
CLEX = {"name": "clex", "theta": 10000.0, "original_seq_len": 6, "max_factor": 4, "param_factor": 1, "ode_step": 0.5}
SHIPPED = dict(shipped())
LEARNED = ["learned", "t5", "kerple_log", "kerple_power", "shaw", "transformer_xl", "tupe", "disentangled"]
LEARNED += ["cope", "dape", "fire", "fox"]
SCHEMES = {name: SHIPPED[name] for name in LEARNED} | {
    "rope_clex": {"scheme": "rope", "rotary_pct": 1.0, "frequencies": CLEX},
    "coca_clex": SHIPPED["coca"] | {"frequencies": CLEX},
    "dape_fire": SHIPPED["dape"] | {"bias": "fire"},
}


def test_every_scheme_with_parameters_is_tested() -> None:
    """But for those that have none, which the other engine tests stand for."""
    without = {"alibi", "coca", "coca_strict", "nope", "rope", "sandwich", "sinusoidal", "xpos"}
    assert set(SHIPPED) - without == set(LEARNED)


def train_model(
    steps: int, scheme: dict[str, Any], micro: int = 2, activation_checkpointing: bool = False, **changes: Any
) -> dict[str, Any]:
    """In a forked rank: losses of a real Transformer, and how far each of the scheme's parameters has moved."""
    torch.set_num_threads(1)
    settings = positions.settings(scheme)
    causal = visibilities.settings({"name": "causal"})

    def model() -> Transformer:
        return Transformer(
            LLAMA, settings, causal, vocab_size=VOCAB, max_seq_len=12, activation_checkpointing=activation_checkpointing
        )

    init = partial(init_parameter, model=LLAMA, position=settings, seed=1)
    built = engine.build(
        engine_config(**changes), OPTIM, model, init,
        trainable=["*"], micro_batch_size=micro, accumulation=GLOBAL_BATCH // dist.world_size() // micro,
    )  # fmt: skip
    own = {name: tensor.clone() for name, tensor in built.named_state() if _of_position(name)}
    losses = []
    for step in range(steps):
        torch.manual_seed(step)  # the same draw on every rank and engine, for schemes that sample
        losses.append(built.train_step(batches(step, micro), lr_of(step)).loss)
    moved = {name: float((tensor - own[name]).abs().max()) for name, tensor in built.named_state() if name in own}
    built.close()
    return {"losses": losses, "moved": moved}


def _of_position(name: str) -> bool:
    part, _, parameter = name.partition("/")
    return part == "model" and "position" in parameter.split(".")


@pytest.mark.parametrize("name", SCHEMES)
def test_zero_3_equals_local(server: ForkServer, name: str) -> None:
    run, job = "tests.engine.test_schemes:train_model", {"steps": 3, "micro": 4, "scheme": SCHEMES[name]}
    local = values(server.run(run, job | {"kind": "local"}))[0]
    sharded = values(server.run(run, job | {"zero_stage": 3, "activation_checkpointing": True}, ranks=2))
    assert all(result["losses"] == sharded[0]["losses"] for result in sharded)
    for ours, theirs in zip(sharded[0]["losses"], local["losses"], strict=True):
        # clex draws per micro batch, and two ranks have another number of them; the first draw is the same
        assert ours == pytest.approx(theirs, rel=1e-5 if "clex" not in name else 0.1)
    assert local["moved"]
    assert all(change > 0 for change in (*local["moved"].values(), *sharded[0]["moved"].values()))
