"""What one token costs while a text is written, counted and not timed: operations given to torch, numbers written.

Shape legend: L layers.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coca_train.models.generation import generate
from tests.generation.test_decoding import WINDOW, build, trained

# Of GPT-NeoX in transformers 5 it is 52 for a layer, and 21 around the layers. Each 64th token makes tables as well.
OF_A_LAYER = {"rope": 41, "coca": 45}
AROUND = {"rope": 15, "coca": 15}


class Dispatched(TorchDispatchMode):
    """Operations, and how many numbers those wrote that made new tensors of floating point."""

    def __init__(self):
        super().__init__()
        self.operations, self.written = 0, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        self.operations += 1
        if not operation.is_view:
            made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.is_floating_point()]
            self.written += sum(x.numel() for x in made)
        return out


def of_a_token(scheme, n_layers, n_prompt):
    """The fourth token after a prompt."""
    seen, steps = Dispatched(), []

    def stop(new):
        """Called between tokens: count from the third to the fourth."""
        steps.append((seen.operations, seen.written))
        return len(steps) == 4

    with seen:
        generate(build(trained(scheme, n_layers=n_layers), torch.float32), [1] * n_prompt, 6, stop=stop)
    return tuple(after - before for before, after in zip(*steps[-2:], strict=True))


@pytest.mark.parametrize("scheme", OF_A_LAYER)
def test_operations_of_a_token(scheme):
    """At most so many, and as many whatever is held."""
    one, two, three = (of_a_token(scheme, n_layers, 5)[0] for n_layers in (1, 2, 3))
    assert three - two == two - one <= OF_A_LAYER[scheme]
    assert one - (two - one) <= AROUND[scheme]
    assert of_a_token(scheme, 1, 2 * WINDOW)[0] == one


@pytest.mark.parametrize("scheme", OF_A_LAYER)
def test_nothing_is_made_anew_for_the_keys_that_are_held(scheme):
    """Neither rotated keys nor tables for them: as many numbers are written behind 40 tokens as behind 5."""
    few, many = (of_a_token(scheme, 2, n_prompt)[1] for n_prompt in (5, 40))
    assert few == many
