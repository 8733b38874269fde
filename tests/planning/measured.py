"""What real training steps need on this CPU, beside what the plan says: the tables of docs/plan.md.

`python -m tests.planning.measured`; two minutes, 3 GB. Each run is a process of its own (two for two ranks).
"""

import ctypes
import gc
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from coca_train import engine
from coca_train.config.schema import Config
from coca_train.engine.base import Engine
from coca_train.models.transformer import build_model
from coca_train.planning.memory import gpu_memory
from coca_train.planning.outline import outline
from coca_train.runtime import dist
from coca_train.runtime.printing import markdown
from coca_train.tracking.throughput import MIB, PeakMemory
from tests.engine.scenarios import Batch
from tests.faults.fork_server import ForkServer, values
from tests.planning.conftest import TINY, configure

CPU = torch.device("cpu")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
# A LLaMA of 8 layers, width 512, vocabulary 32,000: 58M parameters. Its keys are 4 %, of a small vocabulary's 8 %.
LLAMA = ("model=llama_tiny", "model.n_layers=8", "model.d_model=512", "model.n_heads=8", "model.n_kv_heads=null",
         "model.d_ff=1408", "model.vocab_size=32000", "train.seq_len=256", "train.micro_batch_size=4", "position=rope",
         "engine.device=cpu", "eval.extrapolation.enabled=false")  # fmt: skip
DEEP = ("model.n_layers=16", "model.vocab_size=2048")
PHASES = ("start", "a step", "between steps", "validation")
KEYS = ["blocks.*.attention.k.weight"]


class Case(NamedTuple):
    """A run to be measured: its words over LLAMA, what it trains, ranks."""

    words: tuple[str, ...]
    trainable: list[str]
    n_ranks: int


def once(*words: str, n_ranks: int = 1, trainable: Sequence[str] = ("*",)) -> Case:
    """One micro batch a step."""
    return Case((*words, f"train.global_batch_size={4 * n_ranks}"), list(trainable), n_ranks)


def twice(*words: str, n_ranks: int = 1, trainable: Sequence[str] = ("*",)) -> Case:
    """Two micro batches a step, added up."""
    return Case((*words, f"train.global_batch_size={8 * n_ranks}"), list(trainable), n_ranks)


FP32, BF16 = ("engine=local", "engine.dtype=fp32"), ("engine=local", "engine.dtype=bf16")
ZERO = {stage: (f"engine.zero_stage={stage}", "engine.dtype=bf16") for stage in (1, 2, 3)}
WIDE = {stage: (f"engine.zero_stage={stage}", "engine.dtype=fp32") for stage in (2, 3)}
ENGINES = {
    "local fp32": once(*FP32),
    "local fp32, two micro batches": twice(*FP32),
    "local fp32, checkpointing, coca": once(*FP32, "position=coca", "engine.activation_checkpointing=full"),
    "local bf16": once(*BF16),
    "local bf16, two micro batches": twice(*BF16),
    "ZeRO 1 bf16, two micro batches": twice(*ZERO[1]),
    "ZeRO 1 bf16, two micro batches, 2 ranks": twice(*ZERO[1], n_ranks=2),
    "ZeRO 2 bf16, two micro batches, 2 ranks": twice(*ZERO[2], n_ranks=2),
    "ZeRO 3 bf16, two micro batches, 2 ranks": twice(*ZERO[3], n_ranks=2),
    "ZeRO 2 fp32, two micro batches, 2 ranks": twice(*WIDE[2], n_ranks=2),
    "ZeRO 3 fp32, two micro batches, 2 ranks": twice(*WIDE[3], n_ranks=2),
}
SHARES = {
    "local fp32": once(*FP32, *DEEP),
    "local fp32, keys": once(*FP32, *DEEP, trainable=KEYS),
    "local bf16": once(*BF16, *DEEP),
    "local bf16, keys": once(*BF16, *DEEP, trainable=KEYS),
    "ZeRO 1 bf16": once(*ZERO[1], *DEEP),
    "ZeRO 1 bf16, keys": once(*ZERO[1], *DEEP, trainable=KEYS),
}


def measured(words: list[str], trainable: list[str]) -> dict[str, float]:
    """Peak resident memory of each phase, and what stays between two steps [MiB], above what the process held before.

    A small engine of the same kind has trained and gone by then, so that libraries are no part of it.
    """
    torch.set_num_threads(1)
    libc = ctypes.CDLL(None)
    for setting in (MMAP_THRESHOLD, TRIM_THRESHOLD):
        libc.mallopt(setting, 65536)  # freed memory goes back
    config = configure(*words)
    kind = [word for word in words if word.startswith(("engine", "position="))]
    warm = configure(*TINY, *kind, f"train.global_batch_size={2 * dist.world_size()}", "train.micro_batch_size=1")
    engine.start(warm.engine)
    built = _engine(warm, ["*"])
    _steps(warm, built)
    built.release()
    del built  # its weights
    before = _resident(libc)
    peaks = {}
    meter = PeakMemory(CPU)
    built = _engine(config, trainable)
    peaks["start"] = meter.record()["peak_memory_mib"]
    meter = PeakMemory(CPU)
    _steps(config, built)
    peaks["step"] = meter.record()["peak_memory_mib"]
    peaks["steady"] = _resident(libc)
    meter = PeakMemory(CPU)
    batch = _batch(config)
    with built.eval_module() as module, torch.no_grad():
        module(batch.tokens_BT, batch.targets_BT, batch.pos_BT)
    peaks["validation"] = meter.record()["peak_memory_mib"]
    built.close()
    return {name: peak - before for name, peak in peaks.items()}


def planned(case: Case) -> dict[str, float]:
    """The same of the plan [MiB]; steady: weights, optimizer, and gradients that stay."""
    plan = gpu_memory(outline(configure(*LLAMA, *case.words), case.trainable), case.n_ranks, "cpu")
    return {
        "start": plan.phases["start"] / MIB,
        "step": plan.training / MIB,
        "steady": (plan.states.lasting + plan.states.between) / MIB,
        "validation": plan.phases["validation"] / MIB,
    }


def measurement(server: ForkServer, case: Case) -> dict[str, float]:
    """`measured` in new processes: of the rank that needed most in a step."""
    given = {"words": [*LLAMA, *case.words], "trainable": case.trainable}
    ranks = server.run("tests.planning.measured:measured", given, ranks=case.n_ranks, timeout_s=300)
    return max(values(ranks), key=lambda rank: rank["step"])


def table(server: ForkServer, cases: dict[str, Case]) -> str:
    """Planned and measured of every phase [MiB]."""
    rows = []
    for name, case in cases.items():
        plan, real = planned(case), measurement(server, case)
        rows.append((name, *(f"{plan[each]:,.0f} / {real[each]:,.0f}" for each in plan)))
    return markdown(("run", *PHASES), rows)


def _engine(config: Config, trainable: list[str]) -> Engine:
    train = config.train
    assert config.model.vocab_size is not None
    return engine.build(
        config.engine,
        config.optim,
        partial(build_model, config, config.model.vocab_size),
        _fill,
        trainable=trainable,
        micro_batch_size=train.micro_batch_size,
        accumulation=train.global_batch_size // (train.micro_batch_size * dist.world_size()),
    )


def _fill(name: str, tensor: torch.Tensor) -> None:
    tensor.fill_(0.01)


def _steps(config: Config, built: Engine) -> None:
    n = config.train.global_batch_size // (config.train.micro_batch_size * dist.world_size())
    for _ in range(2):
        built.train_step([_batch(config) for _ in range(n)], 1e-4)


def _batch(config: Config) -> Batch:
    tokens_BT = torch.ones(config.train.micro_batch_size, config.train.seq_len, dtype=torch.int64)
    return Batch(tokens_BT, tokens_BT, torch.arange(config.train.seq_len).expand_as(tokens_BT).clone())


def _resident(libc: Any) -> float:
    """What the process holds now [MiB]."""
    gc.collect()
    libc.malloc_trim(0)
    match = re.search(r"^VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.M)
    assert match is not None
    return int(match[1]) / 1024


if __name__ == "__main__":
    with ForkServer() as server:
        for cases in (ENGINES, SHARES):
            print(table(server, cases))
