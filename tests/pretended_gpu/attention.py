"""FlexAttention's kernels at sizes of real models, compiled for the pretended GPU: what a thread holds fits its
registers, and what a block shares fits its memory."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import torch

from coca_train.extending.parts import MODEL
from tests.pretended_gpu.inductor import Usage, measured, nothing_launched
from tests.pretended_gpu.steps import Case, step

WIDTHS = (64, 128)
HEADS, SEQ_LEN = 16, 1024
# What torch's own blocks leave in memory at most: forward 24 B of T5 with documents on 8.0; backward 328 B of
# disentangled on 9.0, 56 B of documents on 10.0.
FORWARD_STACK, BACKWARD_STACK = 24, 328
# (scheme, visibility, documents): every kind of term, hook and rule that is looked up at this length.
LOOKED_UP = (
    ("rope", "causal", True),
    ("coca", "causal", True),
    ("coca_strict", "sliding_window", True),
    ("rope", "sliding_window", False),
    ("rope", "sinks", False),
    ("rope", "lambda_mask", False),
    ("rope", "rerope", False),
    ("alibi", "causal", True),
    ("sandwich", "causal", False),
    ("t5", "causal", False),
    ("t5", "causal", True),
    ("t5", "sliding_window", False),
    ("kerple_log", "causal", False),
    ("kerple_power", "causal", True),
    ("tupe", "causal", False),
    ("disentangled", "causal", False),
    ("fox", "causal", False),
)


def attention_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """Forward and backward kernels in bfloat16, some with grouped heads, some in float32."""
    for width, (scheme, visibility, documents) in product(WIDTHS, LOOKED_UP):
        yield _case(scheme, visibility, documents, width)
    for width, scheme in product(WIDTHS, ("rope", "t5")):
        yield _case(scheme, "causal", True, width, groups=4)
        yield _case(scheme, "causal", True, width, dtype=torch.float32)


def _case(
    scheme: str,
    visibility: str,
    documents: bool,
    width: int,
    groups: int = HEADS,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[str, Callable[[], str]]:
    shape = replace(MODEL, n_layers=1, n_heads=HEADS, n_kv_heads=groups, d_model=HEADS * width, d_ff=HEADS * width)
    case = Case(scheme, visibility, documents, dtype=dtype, seq_len=SEQ_LEN, model=shape)
    words = f"{case} width {width} groups {groups} {str(dtype).removeprefix('torch.')}"
    return words, lambda: _fits(case)


def _fits(case: Case) -> str:
    used = _compiled(case)
    assert sum("backward" in kernel.kernel for kernel in used) * 2 == len(used) > 0, f"kernels: {used}"
    for kernel in used:
        allowed = BACKWARD_STACK if "backward" in kernel.kernel else FORWARD_STACK
        # float32 is multiplied without tensor cores, which takes more than all registers whatever the blocks.
        assert kernel.fits and (kernel.stack <= allowed or case.dtype == torch.float32), f"{kernel}"
    return "; ".join(map(str, used))


def _compiled(case: Case) -> list[Usage]:
    with nothing_launched() as graphs:
        step(case)
    written = [kernel for graph in graphs for kernel in graph if kernel.name.startswith("triton_tem_")]
    return [usage for kernel in written for usage in measured(kernel)]
