"""How fast a model reads, writes and learns, and in how much memory, against models of its shape with other positions.

One sequence of L random tokens, the run's kernel, precision and device.

* prefill: L tokens are read into a cache, and the logits of the next token computed [s].
* decode: one more token with a cache that holds L tokens and those decoded before, at dynamic length L + new [s].
* training: loss of L predictions, forward and backward, no optimizer step [s].

Competitors take turns (A B C A B C), after one turn each that does not count, so that what disturbs the machine
disturbs all of them. A ratio is the median, lowest and highest over the turns of mine / theirs within one turn.

A twin has the same network and plain causal attention under another scheme. It shares every parameter of the same name
and shape with the model, so it takes no further memory for them; other values would take the same time.

Memory is the most that one work holds at once on a GPU, above the model's weights [bytes]: torch's peak of allocated
memory less what was allocated before. The cache of a prefill counts.

Shape legend: T tokens.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from coca_train.attention import patterns
from coca_train.models.cache import KVCache
from coca_train.models.transformer import Transformer
from coca_train.positions import settings as position_settings

Work = Literal["prefill", "decode", "training"]
Baseline = Literal["rope", "nope"]
Turn = Callable[[], object]

PLAIN: dict[Baseline, dict[str, object]] = {
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


def turn(model: Transformer, work: Work, length: int, new_tokens: int, rounds: int) -> Turn:
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
def _prefill(model: Transformer, tokens_1T: Tensor, total: int) -> KVCache:
    cache = model.new_cache(total, at_length=total)
    model.head(model.hidden(tokens_1T, length=total, cache=cache)[:, -1:])
    return cache


@torch.no_grad()
def _decode(model: Transformer, cache: KVCache, token_11: Tensor, total: int, new_tokens: int) -> None:
    for _ in range(new_tokens):
        model.head(model.hidden(token_11, length=total, cache=cache))


def _train(model: Transformer, tokens_1T: Tensor) -> None:
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


class Turns(TypedDict):
    """What several turns took."""

    median: float
    low: float
    high: float


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> Turns:
    """Return the spread of mine / theirs, turn by turn."""
    return spread([a / b for a, b in zip(mine, theirs, strict=True)])


def spread(values: Sequence[float]) -> Turns:
    """Return median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def peak_bytes(model: Transformer, works: Sequence[Work], length: int) -> dict[Work, int]:
    """Return the peak bytes by work; empty where there is no GPU."""
    return {work: _gpu_peak(turn(model, work, length, 1, 1)) for work in works} if model.embed.weight.is_cuda else {}


def _gpu_peak(once: Turn) -> int:
    once()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    once()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
