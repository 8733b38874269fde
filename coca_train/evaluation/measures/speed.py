"""How fast a model reads, writes and learns, and in how much memory, against models of its shape with other positions.

One sequence of L random tokens, the run's kernel, precision and device.

* prefill: L tokens are read into a cache, and the logits of the next token computed [s].
* decode: one more token with a cache that holds L tokens and those decoded before, at dynamic length L + new [s].
* training: loss of L predictions, forward and backward, no optimizer step [s].

Competitors take turns (A B C A B C), after one turn each that does not count, so that what disturbs the machine
disturbs all of them. A ratio is the median, lowest and highest over the turns of mine / theirs within one turn.

A twin has the same network and plain causal attention under another scheme. It shares every parameter of the same name
and shape with the model, so it takes no further memory for them; other values would take the same time.

Memory is the most that one work holds at once, above the model's weights [bytes]. On a GPU: torch's peak of
allocated memory less what was allocated before. On a CPU, Linux only: the highest resident memory less that before the
work, in a fresh process with random weights of the same shapes, where freed blocks go back to the system at once and a
small warm-up came first. Elsewhere it cannot be measured. The cache of a prefill counts.

Shape legend: T tokens.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from coca_train.attention import patterns
from coca_train.config.schema import LayersConfig, ModelConfig
from coca_train.models.cache import KVCache
from coca_train.models.init import init_weights
from coca_train.models.transformer import Transformer
from coca_train.positions import settings as position_settings

Work = Literal["prefill", "decode", "training"]
Baseline = Literal["rope", "nope"]
Turn = Callable[[], object]

PLAIN: dict[str, dict[str, Any]] = {
    "rope": {"scheme": "rope", "rotary_pct": 1.0, "rope_scaling": {"name": "plain", "theta": 10000.0}},
    "nope": {"scheme": "nope"},
}


def twin(model: Transformer, baseline: Baseline) -> Transformer:
    """Return a model of the same shape with plain causal attention; parameters that fit are the model's own."""
    with torch.device("meta"):
        other = Transformer(
            model.config,
            position_settings(PLAIN[baseline]),
            patterns.settings({"name": "causal"}),
            vocab_size=model.embed.num_embeddings,
            max_seq_len=model.shape.max_seq_len,
            attention=model.attention,
            activation_checkpointing=model.activation_checkpointing,
        )
    like, own = model.embed.weight, dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in list(other.named_parameters(remove_duplicate=False)):
        shared = own.get(name)
        if shared is None or shared.shape != parameter.shape:
            values = torch.randn(parameter.shape, device=like.device) * model.config.init_std
            shared = nn.Parameter(values.to(like.dtype))
        place, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(place), leaf, shared)
    return other.train(model.training)


def turn(model: Any, work: Work, length: int, new_tokens: int, rounds: int) -> Turn:
    """Return one repeatable turn of this work. decode: its cache is filled here, and holds as many turns as there are
    rounds, with one before them."""
    device = model.embed.weight.device
    tokens_1T = torch.arange(length + 1, device=device)[None] * 7919 % model.embed.num_embeddings
    if work == "prefill":
        return lambda: _prefill(model, tokens_1T[:, :-1], length)
    if work == "training":
        return lambda: _train(model, tokens_1T)
    total = length + (rounds + 1) * new_tokens
    cache = _prefill(model, tokens_1T[:, :-1], total)
    return lambda: _decode(model, cache, tokens_1T[:, :1], total, new_tokens)


@torch.no_grad()
def _prefill(model: Any, tokens_1T: Tensor, total: int) -> KVCache:
    cache = model.new_cache(total, at_length=total)
    model.head(model.hidden(tokens_1T, length=total, cache=cache)[:, -1:])
    return cache


@torch.no_grad()
def _decode(model: Any, cache: KVCache, token_11: Tensor, total: int, new_tokens: int) -> None:
    for _ in range(new_tokens):
        model.head(model.hidden(token_11, length=total, cache=cache))


def _train(model: Any, tokens_1T: Tensor) -> None:
    model.train()
    try:
        with torch.enable_grad():
            model(tokens_1T[:, :-1], tokens_1T[:, 1:]).backward()
    finally:
        model.zero_grad(set_to_none=True)
        model.eval()


def in_turns(turns: Mapping[str, Turn], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of each, `rounds` times in turn, after one warm-up each."""
    # In turns, not one after the other: a machine that is slower for a minute is slower for all of them.
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, once in turns.items():
            _synchronize(device)
            begin = time.perf_counter()
            once()
            _synchronize(device)
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the spread of mine / theirs, turn by turn."""
    return spread([a / b for a, b in zip(mine, theirs, strict=True)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


# malloc gives freed blocks back at once, so that resident memory is what is alive.
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WARM_UP = 16  # [tokens]
KILLED = -9  # by the system, when memory runs out


def peak_bytes(model: Transformer, works: Sequence[Work], length: int) -> dict[str, int]:
    """Return the peak bytes by work; empty where they cannot be measured. Raises MemoryError when a process of its own
    was killed."""
    if model.embed.weight.is_cuda:
        return {work: _gpu_peak(turn(model, work, length, 1, 1)) for work in works}
    return _peaks_in_child(model, works, length) if RESET.exists() else {}


def _gpu_peak(once: Turn) -> int:
    once()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    once()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _child_task(model: Transformer, works: Sequence[Work], length: int) -> dict[str, Any]:
    """Return what a process of its own needs to build the same model and to measure it."""
    return {
        "model": asdict(model.config),
        "position": asdict(model.position.settings),
        "attention_pattern": asdict(model.attention_pattern.settings),
        "layers": asdict(model.layers),
        "vocab_size": model.embed.num_embeddings,
        "max_seq_len": model.shape.max_seq_len,
        "attention": model.attention,
        "activation_checkpointing": model.activation_checkpointing,
        "dtype": str(model.embed.weight.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "works": list(works),
        "length": length,
    }


def _peaks_in_child(model: Transformer, works: Sequence[Work], length: int) -> dict[str, int]:
    task = json.dumps(_child_task(model, works, length))
    command = [sys.executable, "-m", "coca_train.evaluation.measures.speed", task]
    alone = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = subprocess.run(command, env={**alone, **GIVING_BACK}, capture_output=True, text=True, check=False)
    if done.returncode == KILLED or "can't allocate memory" in done.stderr:
        raise MemoryError(f"{', '.join(works)} of {length} tokens ran out of memory in a process of its own")
    if done.returncode:
        raise RuntimeError(f"memory could not be measured:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _resident(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _child(task: Mapping[str, Any]) -> dict[str, int]:
    torch.set_num_threads(task["threads"])
    shared = {key: task[key] for key in ("vocab_size", "max_seq_len", "attention", "activation_checkpointing")}
    config = TypeAdapter(ModelConfig).validate_json(json.dumps(task["model"]))
    layers = TypeAdapter(LayersConfig).validate_json(json.dumps(task["layers"]))
    position, attention_pattern = position_settings(task["position"]), patterns.settings(task["attention_pattern"])
    model = Transformer(config, position, attention_pattern, layers=layers, **shared)
    init_weights(model, config, seed=0)
    model = model.to(getattr(torch, task["dtype"])).eval()
    peaks = {}
    for work in task["works"]:
        # What libraries keep after their first call (thread pools, workspaces) is not the work's.
        turn(model, work, min(WARM_UP, task["length"]), 1, 1)()
        once = turn(model, work, task["length"], 1, 1)
        before = _resident("VmRSS")
        RESET.write_text("5")  # the peak counts from here on, see proc(5)
        once()
        peaks[work] = _resident("VmHWM") - before
    return peaks


if __name__ == "__main__":
    print(json.dumps(_child(json.loads(sys.argv[1]))))
