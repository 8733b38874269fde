"""`python -m benchmarks.host`: what a step takes of the host, as `plan` counts it (coca_train/planning/hardware.py).

A model as deep as the 350M recipe's and so narrow that computing is next to nothing, in each engine, in one process of
one thread: what is left is the dispatch of operations, autograd, and the engine's own bookkeeping. Steps of one and of
four micro batches tell what a micro batch takes, and what an update.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from typing import Any

import torch

from benchmarks.measure import ROOT, say
from coca_train import engine
from coca_train.data.batch import Batch
from coca_train.models.transformer import build_model
from coca_train.planning.cost import count_step
from coca_train.planning.count import RECOMPUTED
from coca_train.planning.meta_step import Flops
from coca_train.planning.outline import outline
from coca_train.runtime.printing import plain
from coca_train.settings import load

SEQ_LEN, VOCAB_SIZE, ROUNDS, MICRO_BATCHES = 16, 512, 15, 4
NARROW = (
    *("model.d_model=64", "model.n_heads=4", "model.d_ff=96", f"model.vocab_size={VOCAB_SIZE}", "data=embedded"),
    *(f"train.seq_len={SEQ_LEN}", "train.micro_batch_size=1", "train.global_batch_size=4", "engine.device=cpu"),
)
# In float32: a CPU's bfloat16 products of a few numbers take longer than their dispatch.
ENGINES = {
    "local": ("engine=local", "engine.dtype=fp32"),
    **{f"ZeRO {stage}": ("engine=deepspeed_fp32", f"engine.zero_stage={stage}") for stage in range(4)},
}
CHECKPOINTING = ("none", "full")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host", description=__doc__)
    parser.add_argument("--of-words", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of_words is not None:
        n_micro_batches, *words = options.of_words
        print(json.dumps(measured(int(n_micro_batches), words)))
        return
    rows, by_way = [], {}
    for name, words in ENGINES.items():
        for way in CHECKPOINTING:
            say(f"{name}, recomputing {way}")
            words_of_way = [*words, f"engine.activation_checkpointing={way}"]
            one, many = (_child(n, words_of_way) for n in (1, MICRO_BATCHES))
            micro_s = (many["seconds"] - one["seconds"]) / (MICRO_BATCHES - 1)
            by_way[name, way] = micro_s, one["seconds"] - micro_s, one
    (plain_s, _, told), (again_s, _, more) = (by_way["local", way] for way in CHECKPOINTING)
    operation_s = plain_s / told["operations"]
    recomputed_s = (again_s - plain_s) / more["recomputed"]
    for (name, way), (micro_s, update_s, told) in by_way.items():
        of_operations_s = told["operations"] * operation_s + told["recomputed"] * recomputed_s
        of_tensors = [(micro_s - of_operations_s) / told["tensors"], update_s / told["tensors"]]
        took = [f"{1e3 * micro_s:.1f}", f"{1e3 * update_s:.1f}"]
        rows.append([name, way, f"{told['operations']:,}", *took, *(f"{1e6 * each:.1f}" for each in of_tensors)])
    header = ("engine", "recomputed", "operations", "micro batch [ms]", "update [ms]", "tensor, micro batch [us]")
    print(plain([*header, "tensor, update [us]"], rows))
    print(f"an operation: {1e6 * operation_s:.1f} us; computed again: {1e6 * recomputed_s:.1f} us (engine local)")


def _child(n_micro_batches: int, words: list[str]) -> dict[str, Any]:
    """Measured in a process of its own: engines leave process groups behind."""
    command = [sys.executable, "-m", "benchmarks.host", "--of-words", str(n_micro_batches), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measured(n_micro_batches: int, words: list[str]) -> dict[str, Any]:
    """Seconds of a step of so many micro batches, the least of some; operations of a micro batch as `plan` counts them
    for a GPU, those that are computed again apart, and trained tensors."""
    torch.set_num_threads(1)
    config = load(["+experiment=coca_350m", *NARROW, *words]).config
    step = count_step(outline(config, ("*",)), Flops(0.0, 0.0), 1, "cuda")
    engine.start(config.engine)
    build = partial(build_model, config, VOCAB_SIZE, ("*",), None)
    built = engine.build(
        config.engine, config.optim, build, _fill,
        trainable=("*",), micro_batch_size=1, accumulation=n_micro_batches, memory=None,
    )  # fmt: skip
    tokens_BT = torch.randint(VOCAB_SIZE, (1, SEQ_LEN))
    batch = Batch(tokens_BT, tokens_BT, torch.arange(SEQ_LEN).expand_as(tokens_BT).clone(), None)

    def taken() -> float:
        began = time.perf_counter()
        built.train_step([batch] * n_micro_batches, 1e-4)
        return time.perf_counter() - began

    seconds = min(taken() for _ in range(ROUNDS))
    built.release()
    n_again = sum(kernel.part == RECOMPUTED for kernel in step.kernels)
    counted = {"operations": len(step.kernels) - n_again, "recomputed": n_again, "tensors": len(step.outline.trained)}
    return {"seconds": seconds} | counted


def _fill(name: str, tensor: torch.Tensor) -> None:
    tensor.normal_(std=0.02)


if __name__ == "__main__":
    main()
