"""A real Transformer under the engines: for position schemes with parameters of their own."""

from functools import partial
from typing import Any

import torch

from coca_train import engine, positions
from coca_train.models.init import init_parameter
from coca_train.models.transformer import Transformer
from coca_train.positions import visibilities
from coca_train.runtime import dist
from tests.engine.scenarios import GLOBAL_BATCH, OPTIM, VOCAB, batches, engine_config, lr_of
from tests.models.conftest import LLAMA


def train(
    steps: int, scheme: dict[str, Any], micro: int = 2, activation_checkpointing: bool = False, **changes: Any
) -> dict[str, Any]:
    """Losses of some steps, and how far each of the scheme's parameters has moved."""
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
