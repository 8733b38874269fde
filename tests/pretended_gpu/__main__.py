"""What a pretended GPU shows; run by tests/outside/pretended.py in an environment that has one.

    python -m tests.pretended_gpu plain|kernels|compiled|attention|deterministic|loss [SHARE/SHARES [WORD …]]

Each tries its cases, prints every one, and ends with a line: tried N, passed M. Exit code 1 where one does not pass.
1/2: the first, third, fifth … of them. Words: only those that have them all.
"""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache, partial
from itertools import islice, product
from unittest import mock

import torch

from coca_train.attention import flex, scores
from coca_train.models.recompute import CHECKPOINTING
from coca_train.testing.parts import build, refused
from tests.cases import covering
from tests.pretended_gpu.attention import attention_cases
from tests.pretended_gpu.inductor import nothing_launched
from tests.pretended_gpu.loss import loss_cases
from tests.pretended_gpu.steps import ATTENTION_PATTERNS, SCHEMES, Case, step

Try = tuple[str, Callable[[], str]]
BESIDE = (
    "rope",
    "coca_strict",
    "t5",
    "transformer_xl",
)  # schemes that are tried with every attention pattern, compiled


def allowed(scheme: str, attention_pattern: str) -> bool:
    return not refused(ATTENTION_PATTERNS[attention_pattern], build(SCHEMES[scheme]))


def plain_cases() -> Iterator[Try]:
    """Every scheme x attention pattern x documents x checkpointing; of what is compiled, the graphs without their
    kernels."""
    for scheme, attention_pattern, documents, way in product(SCHEMES, ATTENTION_PATTERNS, (False, True), CHECKPOINTING):
        if allowed(scheme, attention_pattern):
            case = Case(scheme, attention_pattern, documents, way)
            yield str(case), lambda case=case: _kernels(step(case))


def compiled_cases(blocks: bool) -> Iterator[Try]:
    """With the kernels of attention and of hooks compiled, or whole blocks: every scheme, and every attention pattern
    with a few of them; every pair of two things is in one of the cases."""
    every = [
        case
        for case in product(SCHEMES, ATTENTION_PATTERNS, (False, True), CHECKPOINTING, (False, True))
        if (case[1] == "causal" or case[0] in BESIDE) and allowed(*case[:2])
    ]
    for case in (Case(*chosen) for chosen in covering(every, strength=2)):
        if case.compiled == blocks:
            yield str(case), lambda case=case: _written(case)


def deterministic_cases() -> Iterator[Try]:
    """Every scheme under `engine.deterministic`, its kernels of attention and of hooks or its blocks: in pairs."""
    for scheme, documents, blocks in covering(list(product(SCHEMES, (False, True), (False, True))), strength=2):
        case = Case(scheme, documents=documents, compiled=blocks)
        yield str(case), lambda case=case: _free_of_atomics(case)


def _free_of_atomics(case: Case) -> str:
    torch.use_deterministic_algorithms(True)
    try:
        with nothing_launched() as graphs:
            chosen = step(case)
    finally:
        torch.use_deterministic_algorithms(False)
    written = [kernel for graph in graphs for kernel in graph]
    adding = [kernel.name for kernel in written if "tl.atomic" in kernel.source]
    assert not adding, f"atomics in {adding}"
    return f"{len(written)} kernels; {_kernels(chosen)}"


def _written(case: Case) -> str:
    with nothing_launched() as graphs:
        chosen = step(case)
    assert all(graphs), "a graph without a kernel"
    assert graphs or not (case.compiled or "flex" in chosen), "nothing was compiled"
    return f"{len(graphs)} graphs, {sum(map(len, graphs))} kernels; {_kernels(chosen)}"


def _kernels(chosen: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(chosen.items()))


PROGRAMS: dict[str, Callable[[], Iterator[Try]]] = {
    "plain": plain_cases,
    "kernels": lambda: compiled_cases(blocks=False),
    "compiled": lambda: compiled_cases(blocks=True),
    "attention": attention_cases,
    "deterministic": deterministic_cases,
    "loss": loss_cases,
}


def main(name: str, share: str = "1/1", *only: str) -> int:
    tried, passed = 0, 0
    first, shares = map(int, share.split("/"))
    torch.cuda.init()
    with ExitStack() as patches:
        if name == "plain":
            for module in (flex, scores):
                compiled = partial(module._compiled.__wrapped__, backend="aot_eager")
                patches.enter_context(mock.patch.object(module, "_compiled", cache(compiled)))
        named = ((case, attempt) for case, attempt in PROGRAMS[name]() if set(only) <= set(case.split()))
        for case, attempt in islice(named, first - 1, None, shares):
            tried += 1
            try:
                print(f"ok    {case}: {attempt()}", flush=True)
                passed += 1
            except Exception as error:
                print(f"FAILS {case}: {type(error).__name__}: {str(error)[:500]}", flush=True)
                traceback.print_exc()
    print(f"tried {tried}, passed {passed}")
    return int(tried == 0 or passed < tried)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
