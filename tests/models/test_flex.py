"""What torch's kernels for GPUs ask of FlexAttention's callers, which a CPU does not show. The kernels themselves are
compiled by tests/pretended_gpu, in `make outside`."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from coca_train.attention import flex
from coca_train.attention.pattern import CAUSAL, AttentionPattern, Rule
from coca_train.attention.scores import Part, part_of
from coca_train.testing.parts import build, layer_of, mapped, random_qkv, shipped, start

N = 9
SCHEMES = dict(shipped())


def part_and_values(name: str, head_dim: int = 16) -> tuple[Part, Tensor]:
    scheme = build(SCHEMES[name], head_dim=head_dim)
    q, k, v = random_qkv(scheme, N)
    (layout,) = AttentionPattern(None).layouts(start(N), start(N))
    return part_of(mapped(scheme, q, k, start(N), start(N), N, layer_of(scheme)), layout), v


SERVED = [name for name in SCHEMES if flex.is_supported([part_and_values(name)[0]])]


class Lookups(TorchFunctionMode):
    """How often each tensor that learns is indexed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[int] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and args[0].requires_grad:
            self.seen[id(args[0])] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", SERVED)
def test_what_learns_is_looked_up_once(name):
    """torch has no gradient of two look-ups of one tensor: FoX ended in its first backward pass on a GPU."""
    modify = flex.score_mod(part_and_values(name)[0], 0.25)
    index = torch.tensor(0)
    with Lookups() as lookups:
        if modify is not None:
            modify(torch.tensor(0.0), index, index, index, index)
    assert set(lookups.seen.values()) <= {1}


@pytest.mark.parametrize("name", ["rope", "t5", "tupe"])
def test_heads_are_as_wide_as_torch_has_kernels_for(name, monkeypatch):
    widths = []

    def record(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        widths.extend(x.shape[-1] for x in (q, k, v))
        return torch.zeros_like(v), SimpleNamespace(lse=torch.zeros(v.shape[:-1]))

    monkeypatch.setattr(flex, "flex_attention", record)
    part, v = part_and_values(name, head_dim=12)
    assert flex.flex([part], v, 0.25).shape[-1] == 12
    assert min(widths) >= flex.MIN_WIDTH == 16


@pytest.mark.parametrize(
    ("capability", "width", "dtype", "modifies", "expected"),
    [
        (90, 64, torch.bfloat16, False, None),
        (90, 128, torch.float16, True, None),
        (90, 64, torch.float32, True, None),
        (90, 136, torch.bfloat16, False, flex.SMALL_BACKWARD),
        (86, 136, torch.bfloat16, False, flex.SMALL_BACKWARD | flex.LITTLE_SHARED),
        (86, 128, torch.float32, False, flex.FLOAT32_LITTLE_SHARED),
        (86, 128, torch.bfloat16, True, flex.SMALL_FORWARD | flex.SMALL_BACKWARD),
        (80, 64, torch.bfloat16, False, flex.FORWARD | flex.SMALL_BACKWARD),
        (80, 128, torch.bfloat16, True, flex.SMALL_FORWARD | flex.SMALL_BACKWARD),
        (100, 64, torch.bfloat16, False, flex.FORWARD | flex.BACKWARD),
        (100, 128, torch.bfloat16, True, flex.SMALL_FORWARD | flex.SMALL_BACKWARD),
        (100, 32, torch.bfloat16, False, None),
        (120, 64, torch.bfloat16, False, None),
    ],
)
def test_blocks_are_smaller_where_torchs_do_not_fit_the_registers(
    capability, width, dtype, modifies, expected, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: divmod(capability, 10))
    q: Any = SimpleNamespace(is_cuda=True, dtype=dtype, shape=(2, 4, 9, width), device="cuda")
    assert flex.options(q, modifies) == expected


def test_on_hopper_further_look_ups_fit_shared_memory(monkeypatch):
    """Measured on an H100: with torch's own blocks of 128 x 128 the kernel needs 240 KB of 227, and is refused."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    q: Any = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, shape=(2, 4, 9, 64), device="cuda")
    assert flex.options(q, True, True) == flex.FORWARD
    assert flex.options(q, False, True) is None
    q.dtype = torch.float32
    assert flex.options(q, True, True) is None


@pytest.mark.parametrize(
    ("name", "rule", "looks_far"),
    [("t5", CAUSAL, False), ("t5", Rule(window=3), True), ("disentangled", CAUSAL, True)],
)
def test_what_is_looked_up_decides_the_blocks(name, rule, looks_far, monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr(flex, "options", lambda q, modifies, far: asked.append(far))
    part, v = part_and_values(name)
    nothing = SimpleNamespace(lse=torch.zeros(v.shape[:-1]))
    monkeypatch.setattr(flex, "flex_attention", lambda q, k, v, **options: (torch.zeros_like(v), nothing))
    flex.flex([part._replace(layout=part.layout._replace(rule=rule))], v, 0.25)
    assert asked == [looks_far]
