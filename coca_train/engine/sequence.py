"""Which ranks share a sequence, and a model that knows it: `engine.sequence_parallel` (models/ulysses.py).

The ranks of a sequence are neighbours, so that what they exchange in every layer stays within a machine where it can.
To ZeRO they are ranks like all others: weights and optimizer are sharded over all of them, and the gradient of a step,
the sum of what every rank has from its slice, is summed over the whole world.
"""

from collections.abc import Callable

import torch.distributed as torch_dist
from torch import nn

from coca_train.models.transformer import Transformer
from coca_train.models.ulysses import AllToAll, SequenceShare
from coca_train.runtime import dist


def share_of(size: int) -> SequenceShare | None:
    """This rank's share of its sequences; None: it has them alone. COLLECTIVE. size: ranks of a sequence."""
    if size == 1:
        return None
    # Every rank makes all groups, in the same order, and keeps its own.
    group, _ = torch_dist.new_subgroups(group_size=size)
    return SequenceShare(dist.rank() % size, size, AllToAll(group))


def shared(model_fn: Callable[[], nn.Module], size: int) -> Callable[[], nn.Module]:
    """A maker of models whose ranks share sequences. COLLECTIVE."""
    share = share_of(size)
    if share is None:
        return model_fn

    def make() -> nn.Module:
        model = model_fn()
        assert isinstance(model, Transformer), "only a model of ours can cut a sequence"
        model.sequence = share
        return model

    return make
