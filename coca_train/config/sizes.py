"""Sizes that no machine has room for, refused before anything is built, and how a batch is divided.

The bounds are generous: a model that passes may still be too large, which `plan` computes to the byte.
"""

import math
import os
from collections.abc import Iterator

from coca_train.config.messages import Problem
from coca_train.config.rules import TRAINING
from coca_train.config.schema import (
    GATED,
    EngineConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    StageConfig,
    TrainConfig,
)
from coca_train.runtime.printing import n_bytes, short

CLUSTER_BYTES = 10**16  # 100,000 GPUs of 100 GB
DEVICE_BYTES = 10**12  # more than three times what the largest GPU has
MOST_STEPS = 10**8 - 1  # a checkpoint's folder is called by eight digits
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
EXAMPLES = {"vocab_size": 32000, "d_model": 4096, "d_ff": 16384, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128}


def n_parameters(model: ModelConfig) -> int:
    """Return a lower bound: matrices alone, without the embedding where its rows are the tokenizer's."""
    head_dim = model.head_dim or -(-model.d_model // model.n_heads)
    attention = 2 * model.d_model * head_dim * (model.n_heads + (model.n_kv_heads or model.n_heads))
    feed_forward = (3 if model.activation in GATED else 2) * model.d_model * model.d_ff
    embedding = (1 if model.tie_embeddings else 2) * (model.vocab_size or 0) * model.d_model
    return model.n_layers * (attention + feed_forward) + embedding


@TRAINING.rule("model")
def check_weights(model: ModelConfig) -> list[Problem]:
    """Refuse a model that no cluster holds in half precision."""
    if (needed := 2 * (n := n_parameters(model))) <= CLUSTER_BYTES:
        return []
    key, value = _most_unusual(model)
    text = f"{short(n)} parameters x 2 bytes = {n_bytes(needed)} for the weights alone; the largest clusters hold 10 PB"
    return [Problem("E-CFG-72", (key,), text, f"write {key}={value}, for example")]


def _most_unusual(model: ModelConfig) -> tuple[str, int]:
    """Return the option that is furthest above its example, and the example."""
    name = max(EXAMPLES, key=lambda name: (getattr(model, name) or 0) / EXAMPLES[name])
    return f"model.{name}", EXAMPLES[name]


@TRAINING.rule("model", "train", "engine")
def check_window(model: ModelConfig, train: TrainConfig, engine: EngineConfig) -> Iterator[Problem]:
    """Refuse hidden states of one layer that no device holds."""
    each = BYTES[engine.dtype] * model.d_model
    rows, length = train.micro_batch_size, train.seq_len
    if (needed := rows * length * each) > DEVICE_BYTES and not check_weights(model):
        text = (
            f"{rows:,} sequences x {length:,} tokens x {model.d_model:,} wide x {BYTES[engine.dtype]} bytes = "
            f"{n_bytes(needed)} for the hidden states of a layer, on one device; the largest hold 0.3 TB"
        )
        if length > rows:
            keys, fix = ("train.seq_len", "train.micro_batch_size"), "write train.seq_len=4096, for example"
        else:
            keys, fix = ("train.micro_batch_size", "train.seq_len"), "write train.micro_batch_size=1"
        yield Problem("E-CFG-72", keys, text, fix)


@TRAINING.rule("model", "train", "eval")
def check_evaluation(model: ModelConfig, train: TrainConfig, eval: EvalConfig) -> Iterator[Problem]:
    """Refuse windows of the report, and a cache of its sample, that no device holds."""
    if check_weights(model):  # the problem that comes first
        return
    longest = max(eval.extrapolation.multiples) * train.seq_len
    if (needed := 2 * longest * model.d_model) > DEVICE_BYTES and eval.extrapolation.enabled:
        text = (
            f"windows of {longest:,} tokens x {model.d_model:,} wide x 2 bytes = {n_bytes(needed)} for the hidden "
            "states of a layer; the largest device holds 0.3 TB"
        )
        yield Problem("E-CFG-72", ("eval.extrapolation.multiples",), text, "write eval.extrapolation.multiples=[1,2]")
    if (needed := eval.sample_tokens * _cached_bytes(model)) > DEVICE_BYTES:
        text = (
            f"keys and values of {eval.sample_tokens:,} tokens are {n_bytes(needed)}; the largest device holds 0.3 TB"
        )
        yield Problem("E-CFG-72", ("eval.sample_tokens",), text, "write eval.sample_tokens=64")


def check_cache(model: ModelConfig, n_tokens: int) -> Iterator[Problem]:
    """Refuse keys and values of a text that this machine's memory has no room for."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (needed := n_tokens * _cached_bytes(model)) > total:
        text = f"max_new_tokens: keys and values of {n_tokens:,} tokens are {n_bytes(needed)}; this machine has less"
        yield Problem("E-CFG-74", (), f"{text}: {n_bytes(total)}", "write max_new_tokens=64")


def _cached_bytes(model: ModelConfig) -> int:
    """Return the bytes of keys and values of one token in all layers, in half precision."""
    head_dim = model.head_dim or -(-model.d_model // model.n_heads)
    return 4 * model.n_layers * (model.n_kv_heads or model.n_heads) * head_dim


@TRAINING.rule("train", "stages")
def check_steps(train: TrainConfig, stages: dict[str, StageConfig]) -> Iterator[Problem]:
    """Refuse more steps, in all stages together, than eight digits can count."""
    in_tokens = train.seq_len * train.global_batch_size
    lengths = {
        name: stage.max_steps or (-(-stage.tokens // in_tokens) if stage.tokens else train.max_steps)
        for name, stage in stages.items()
    }
    if (total := sum(lengths.values())) > MOST_STEPS:
        name = max(lengths, key=lambda name: lengths[name])
        own = "max_steps" if stages[name].max_steps else "tokens" if stages[name].tokens else ""
        key = f"stages.{name}.{own}" if own else "train.max_steps"
        text = f"{total:,} steps in all stages; a checkpoint counts to {MOST_STEPS:,}"
        yield Problem("E-CFG-73", (key,), text, f"write {key}=100000, for example, or larger batches")


def check_schedule(train: TrainConfig, optim: OptimConfig) -> Iterator[Problem]:
    """Refuse a warm-up and a cooldown that do not fit into a stage."""
    warmup, n_steps = optim.warmup_steps, train.max_steps
    if warmup >= n_steps:
        text, fix = (
            f"a warm-up of {warmup} steps does not fit into {n_steps}",
            f"write optim.warmup_steps={n_steps // 10}",
        )
        yield Problem("E-CFG-23", ("optim.warmup_steps", "train.max_steps"), text, fix)
    elif optim.schedule == "wsd" and warmup + (falling := cooldown_steps(optim.cooldown, n_steps)) > n_steps:
        text = f"a warm-up of {warmup} steps and a cooldown of {falling} do not fit into {n_steps}"
        fix = f"write optim.warmup_steps={n_steps // 10} or optim.cooldown=0.1"
        yield Problem("E-CFG-23", ("optim.warmup_steps", "optim.cooldown", "train.max_steps"), text, fix)


def cooldown_steps(cooldown: float, max_steps: int) -> int:
    """Return the steps of a wsd schedule in which the learning rate falls."""
    return max(1, round(cooldown * max_steps))


def check_machine(model: ModelConfig, train: TrainConfig, engine: EngineConfig) -> Iterator[Problem]:
    """Refuse a model or a batch that this machine has no room for when its CPU trains."""
    total, each = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), BYTES[engine.dtype]
    has = f"this machine has {n_bytes(total)}, and trains on its CPU"
    if (needed := each * (n := n_parameters(model))) > total:
        key, value = _most_unusual(model)
        text = f"{short(n)} parameters x {each} bytes = {n_bytes(needed)} for the weights alone; {has}"
        yield Problem("E-CFG-74", (key,), text, f"write {key}={value}, or start where there are GPUs")
    rows, length = train.micro_batch_size, train.seq_len
    if (needed := each * rows * length * model.d_model) > total:
        text = f"{rows:,} sequences x {length:,} tokens x {model.d_model:,} wide x {each} bytes = {n_bytes(needed)}; "
        fix = "write train.micro_batch_size=1 train.seq_len=1024, for example"
        yield Problem("E-CFG-74", ("train.seq_len", "train.micro_batch_size"), text + has, fix)


def prefetch_size(engine: EngineConfig, d_model: int) -> int:
    """Return how many parameters ZeRO 3 gathers at once ahead of their use: engine.prefetch_size, or transformers' rule
    for DeepSpeed's "auto": a square matrix, less a tenth, so that one is enough."""
    return int(0.9 * d_model**2) if engine.prefetch_size is None else engine.prefetch_size


def divisors(of: int, near: int) -> list[int]:
    """Return divisors, the nearest first; of numbers beyond a million only what a million is enough to find."""
    small = [n for n in range(1, min(math.isqrt(of), 1_000_000) + 1) if of % n == 0]
    return sorted({*small, *(of // n for n in small)}, key=lambda n: (abs(n - near), n))


def micro_batch_size(train: TrainConfig, engine: EngineConfig, n_devices: int) -> int:
    """Return the sequences of one forward on each device: the most that train.micro_batch_size allows and that divide
    the device's part of the global batch."""
    rows = train.global_batch_size * engine.sequence_parallel // n_devices
    return max(m for m in divisors(rows, train.micro_batch_size) if m <= train.micro_batch_size)
