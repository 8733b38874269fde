"""FlexAttention's kernels at sizes of real models, compiled for the pretended GPU: what a block shares fits its memory,
and with blocks of our own (none on Hopper) what a thread holds fits its registers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import torch

from coca_train.testing.parts import MODEL
from tests.cases import covering
from tests.outside.pretended import CAPABILITIES
from tests.pretended_gpu.inductor import Usage, Written, measured, nothing_launched
from tests.pretended_gpu.steps import Case, step

WIDTHS = (64, 128)
HEADS, SEQ_LEN = 16, 1024
BF16, GROUPED, FP32 = (HEADS, torch.bfloat16), (4, torch.bfloat16), (HEADS, torch.float32)  # groups and dtype
# (scheme, attention pattern, documents): every kind of term, hook and rule that is looked up at this length.
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
    ("dd_alibi", "causal", True),
    ("grape_a", "causal", False),
    ("rope", "dilated", False),
)
# Of a thread's numbers, what may go through memory [bytes]: as much as torch's own block leaves there of a causal mask
# alone, on H100 in heads of 128. Versions of Triton differ by as much.
FEW = 128


def attention_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """Forward and backward kernels: every triple of three things, so every term in every width on every capability."""
    every = [
        case
        for case in product(CAPABILITIES, WIDTHS, LOOKED_UP, (BF16, GROUPED, FP32))
        if case[3] == BF16 or case[2] in (("rope", "causal", True), ("t5", "causal", True))
    ]
    here = ".".join(map(str, torch.cuda.get_device_capability()))
    for case in covering(every, strength=3):
        if case[0] == here:
            yield _case(*case)


def _case(
    capability: str, width: int, looked_up: tuple[str, str, bool], form: tuple[int, torch.dtype]
) -> tuple[str, Callable[[], str]]:
    groups, dtype = form
    shape = replace(MODEL, n_layers=1, n_heads=HEADS, n_kv_heads=groups, d_model=HEADS * width, d_ff=HEADS * width)
    case = Case(*looked_up, dtype=dtype, seq_len=SEQ_LEN, model=shape)
    words = f"{case} width {width} groups {groups} {str(dtype).removeprefix('torch.')}"
    return words, lambda: _fits(case)


def _fits(case: Case) -> str:
    with nothing_launched() as graphs:
        step(case)
    used = _measured(graphs)
    assert sum(kernel.backward for kernel in used) * 2 == len(used) > 0, f"kernels: {used}"
    found = "; ".join(map(str, used))
    assert all(kernel.fits for kernel in used), found
    # float32 is multiplied without tensor cores, which takes all registers whatever the blocks.
    if case.dtype != torch.float32 and torch.cuda.get_device_capability()[0] != 9:
        assert max(kernel.stack for kernel in used) <= FEW, found
    return found


def _measured(graphs: list[list[Written]]) -> list[Usage]:
    written = [kernel for graph in graphs for kernel in graph if kernel.name.startswith("triton_tem_")]
    return [usage for kernel in written for usage in measured(kernel)]
