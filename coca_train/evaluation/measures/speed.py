"""How fast a model reads, writes and learns, beside models of its own shape with other positions.

One sequence of L random tokens, the run's kernel, precision and device.

* prefill: L tokens are read into a cache, and the logits of the next token computed [s].
* decode: one more token with a cache that holds L tokens and those decoded before, at dynamic length L + new [s].
* training: loss of L predictions, forward and backward, no optimizer step [s].

Competitors take turns (A B C A B C), after one turn each that does not count, so that what disturbs the machine
disturbs all of them. A ratio is the median, lowest and highest over the turns of mine / theirs within one turn.

A twin has the same network and plain causal attention under another scheme. It shares every parameter of the same name
and shape with the model, so it takes no further memory for them; other values would take the same time.

Shape legend: T tokens.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from coca_train.models.cache import KVCache
from coca_train.models.transformer import Transformer
from coca_train.positions import settings as position_settings
from coca_train.positions import visibilities

Work = Literal["prefill", "decode", "training"]
Baseline = Literal["rope", "nope"]
Turn = Callable[[], object]

PLAIN: dict[str, dict[str, Any]] = {
    "rope": {"scheme": "rope", "rotary_pct": 1.0, "frequencies": {"name": "plain", "theta": 10000.0}},
    "nope": {"scheme": "nope"},
}


def twin(model: Transformer, baseline: Baseline) -> Transformer:
    """A model of the same shape with plain causal attention; parameters that fit are the model's own."""
    with torch.device("meta"):
        other = Transformer(
            model.config,
            position_settings(PLAIN[baseline]),
            visibilities.settings({"name": "causal"}),
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
    """One repeatable turn of this work. decode: its cache is filled here, and holds as many turns as there are rounds,
    with one before them."""
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
    cache = model.new_cache(total)
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
    """Seconds of each, `rounds` times in turn, after one warm-up each."""
    # In turns, not one after the other: a machine that is slower for a minute is slower for all of them.
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, once in turns.items():
            _wait(device)
            begin = time.perf_counter()
            once()
            _wait(device)
            if number:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of mine / theirs, turn by turn."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
