"""The loss kernel compiled for the pretended GPU, for every dtype of logits."""

from collections.abc import Callable, Iterator
from itertools import product

import torch
import triton  # pyright: ignore[reportMissingImports]
from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

from coca_train.models import fused_loss
from coca_train.runtime import IGNORE
from tests.pretended_gpu.inductor import Written, read

DTYPES = ("bf16", "fp16", "fp32")
DIVISIBLE = [["tt.divisibility", 16]]  # what Triton notes of pointers and numbers that are multiples of 16


def loss_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    for dtype, aligned in product(DTYPES, (True, False)):
        yield f"{dtype} {'aligned' if aligned else 'unaligned'}", lambda case=(dtype, aligned): _fits(*case)


def _fits(dtype: str, aligned: bool) -> str:
    constants = {"IGNORE": IGNORE, "BLOCK": fused_loss.BLOCK}
    given = {"logits": f"*{dtype}", "targets": "*i64", "nll": "*fp32", "n_words": "i32"}
    source = ASTSource(
        fn=fused_loss.kernel(),
        signature=given | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={(place,): DIVISIBLE for place in range(len(given))} if aligned else None,
    )
    target = triton.runtime.driver.active.get_current_target()
    binary = triton.compile(source, target=target, options={"num_warps": fused_loss.N_WARPS})
    used = read(Written("loss", ""), triton.Config({}, num_warps=fused_loss.N_WARPS), binary)
    assert used.stack == 0 and used.fits and not used.atomics, f"{used}"
    # A block's threads share the registers of a processor: fewer than this, and one program fits.
    registers = used.registers * fused_loss.N_WARPS * 32
    assert registers <= torch.cuda.get_device_properties(0).regs_per_multiprocessor, f"{used}"
    return str(used)
