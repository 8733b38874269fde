"""What forked ranks do: train with every step rechecked, while one of them has a faulty memory."""

import random
from typing import Any

import torch
from torch import Tensor

from coca_train.models.lora import named_parameters
from coca_train.runtime import dist
from coca_train.training.recheck import BITS, Recheck
from tests.engine.scenarios import batches, build, digest, lr_of

STEPS = 4


def flip(tensor: Tensor, choose: random.Random) -> None:
    """Flip one bit of one element."""
    bits = tensor.detach().view(-1).view(BITS[tensor.element_size()])
    place, bit = choose.randrange(len(bits)), choose.randrange(8 * tensor.element_size() - 1)
    bits[place] ^= 1 << bit


def flip_in_state(built: Any, what: str, choose: random.Random) -> None:
    """what: computing, a weight that computes; master or moment, a part of the state."""
    if what == "computing":
        tensors = [each for each in built.computing() if each.numel()]
    else:
        named = [(name, values) for name, _, values in built.slices() if len(values)]
        tensors = [values for name, values in named if name.startswith("model/") == (what == "master")]
        tensors = tensors or [values for _, values in named]  # a share without any
    flip(choose.choice(tensors), choose)


def train(fault: dict[str, Any] | None = None, every: int = 1, **changes: Any) -> dict[str, Any]:
    """Train with rechecks. fault: {what, step, rank, seed}."""
    built = build(**changes)
    choose = random.Random(fault["seed"] if fault else 0)
    faulty = FaultyGradient(built, choose)  # first, so that digests see what is used
    recheck, losses = Recheck(built, every) if every else None, []
    for step in range(STEPS):
        if recheck is not None and step:
            recheck.unchanged(step)
        if fault is not None and (step, dist.rank()) == (fault["step"], fault["rank"]):
            if fault["what"] == "gradient":
                faulty.calls_left = choose.choice([1, 2, 4, 5])
            else:
                flip_in_state(built, fault["what"], choose)
        if recheck is not None:
            recheck.before(step + 1, batches(step, 2), lambda: torch.manual_seed(0))
        result = built.train_step(batches(step, 2), lr_of(step))
        if recheck is not None:
            recheck.after(step + 1, result)
        losses.append(result.loss)
    if recheck is not None:
        recheck.unchanged(STEPS)  # as before a save
    answer = {"losses": losses, "digest": digest(built), "skipped": built.skipped_steps}
    built.close()
    return answer


class FaultyGradient:
    """Flips a bit of the gradient of one parameter, in the call of this number from then on: of two micro batches the
    first two are computed, the third is dropped, and two more are used."""

    def __init__(self, built: Any, choose: random.Random) -> None:
        trained = [each for name, each in named_parameters(built.model) if name in set(built.trainable)]
        self.calls_left, self._choose = 0, choose
        choose.choice(trained).register_hook(self._hook)

    def _hook(self, gradient: Tensor) -> Tensor | None:
        if not self.calls_left:
            return None
        self.calls_left -= 1
        if self.calls_left:
            return None
        flipped = gradient.clone()
        flip(flipped, self._choose)
        return flipped
