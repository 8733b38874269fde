"""The loss's own kernel: equal to the definition (by Triton's interpreter), compiled for both generations of GPUs, and
counted on the meta device as a step on CUDA has it."""

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coca_train.models import fused_loss
from coca_train.models.loss import summed_cross_entropy
from coca_train.runtime.device import pretend_device

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason='needs triton: pip install -c constraints.txt -e ".[kernels]"'
)

runs_loops = pytest.mark.skipif(
    find_spec("triton") is not None and version("triton") < "3.7",
    reason="the interpreter of Triton before 3.7 has no loops up to a number with numpy 2.4",
)

INTERPRETED = """
import torch
from torch.nn import functional as F
from coca_train.models import fused_loss
from coca_train.models.loss import score_in_passes, summed_cross_entropy
torch.manual_seed(0)
targets = torch.randint(0, 9001, (7,))
targets[3] = -100
for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 4e-3)):
    logits = (torch.randn(7, 9001, dtype=torch.float64) * 3).to(dtype)
    nll, gradient = score_in_passes(logits.double(), targets)
    own = fused_loss.score_in_place(logits, targets)
    torch.testing.assert_close(own.double(), nll, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits.double(), gradient, rtol=0, atol=tolerance)
    assert not logits[3].any()
x, w = (torch.randn(n, 16, requires_grad=True) for n in (7, 9001))
score = lambda logits, targets, device: (fused_loss.score_in_place(logits, targets), logits)
(summed_cross_entropy(x, w, targets, score) * 0.25).backward()
expected = F.cross_entropy(x.double() @ w.double().T, targets, reduction="sum") * 0.25
for mine, theirs in zip((x.grad, w.grad), torch.autograd.grad(expected, (x, w))):
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
"""


def interpret(code):
    """Run code in a process of its own: Triton decides at its import whether it interprets."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_triton
@runs_loops
@pytest.mark.slow
def test_the_kernel_equals_the_definition():
    interpret(INTERPRETED)


HIDDEN_BLOCKS = """
import torch
from coca_train.models import fused_loss
from coca_train.models.loss import score_in_passes
torch.manual_seed(0)
block = fused_loss.BLOCK = 64
for hidden in (slice(0, block), slice(0, 2 * block), slice(block, 2 * block), slice(2 * block, None), slice(0, 149)):
    logits = torch.randn(3, 150)
    logits[:, hidden] = -torch.inf
    targets = torch.tensor([149, 70, -100])
    nll, gradient = score_in_passes(logits.double(), targets)
    own = fused_loss.score_in_place(logits, targets)
    torch.testing.assert_close(own.double(), nll.masked_fill(targets == -100, 0.0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits.double(), gradient, rtol=0, atol=1e-6)
nothing = torch.full((1, 150), -torch.inf)
assert fused_loss.score_in_place(nothing, torch.tensor([3])).isnan().all() and nothing.isnan().all()
"""


@needs_triton
@runs_loops
def test_logits_of_minus_infinity_count_for_nothing_wherever_they_lie():
    """As words that a model may not say; a row of nothing else is NaN, as in the definition."""
    interpret(HIDDEN_BLOCKS)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("logits", ["*bf16", "*fp16", "*fp32"])
def test_the_kernel_compiles_ahead_of_time(capability, logits):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {"IGNORE": -100, "BLOCK": fused_loss.BLOCK}
    signature = {"logits": logits, "targets": "*i64", "nll": "*fp32", "n_words": "i32"}
    source = ASTSource(
        fn=fused_loss.kernel(), signature=signature | dict.fromkeys(constants, "constexpr"), constexprs=constants
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_warps": fused_loss.N_WARPS}
    )
    assert compiled.asm["cubin"]


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func._schema.name.split("::")[1], args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def test_a_step_on_cuda_goes_over_logits_thrice_and_over_dw_once_a_chunk():
    """2 products with W and one that adds to dW in place, in float32, for each of 4 chunks of 2,048 tokens."""
    x = torch.empty(8192, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    w = torch.empty(100_864, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    targets = torch.empty(8192, dtype=torch.int64, device="meta")
    with Operations() as operations, pretend_device("cuda"):
        summed_cross_entropy(x, w, targets, fused_loss.score).backward()
    wide = [
        name
        for name, args, _ in operations.seen
        if any(isinstance(a, torch.Tensor) and set(a.shape) == {2048, 100_864} for a in args)
    ]
    assert [name for name in wide if name not in ("t", "permute", "transpose")] == [
        "score_in_place",
        "mm",
        "add_wider_product",
    ] * 4
    sums = [args[0] for name, args, _ in operations.seen if name == "add_wider_product"]
    assert len({id(total) for total in sums}) == 1 and sums[0].dtype == torch.float32
