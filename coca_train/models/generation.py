"""Greedy and sampled generation with a cache of the keys that are still to be seen.

Dynamic frequencies follow the length of the sequence, in one of two ways (arXiv 2309.00071, 3.3):
* sequence: l = prompt + max_new_tokens for the whole call, so cached decoding equals a full recompute
  at that l exactly, and keys that a scheme maps once and for all are cached rotated;
* step: l grows token by token. A cached key's hidden state was computed at a shorter l, so beyond the
  training window a deep model's cached decoding equals the same steps replayed, not a full recompute.
With fixed frequencies both are the same.

Shape legend: B = 1, T positions, V vocab_size.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from coca_train.positions.token_positions import Positions
from coca_train.runtime.errors import UserError

if TYPE_CHECKING:
    from coca_train.models.transformer import Transformer


@torch.no_grad()
def generate(
    model: "Transformer",
    tokens: Sequence[int],
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    eod: int | None = None,
    stop: Callable[[list[int]], bool] = lambda new: False,
    dynamic_length: Literal["sequence", "step"] = "sequence",
    use_cache: bool = True,
) -> list[int]:
    """Return the tokens that follow `tokens`, without the end-of-document token that ends them early.

    temperature 0: greedy. top_k: sample among the k most probable (0: all). top_p: among the fewest whose probabilities
    reach p together (nucleus, arXiv 1904.09751). generator: source of randomness on the CPU, required to sample
    reproducibly. stop: called with the new tokens after each one; True ends the text there. use_cache False recomputes
    the whole sequence each step. Raises ValueError for an empty prompt, sampling options out of range, or more tokens
    than there are positions.
    """
    check_options(tokens, max_new_tokens, temperature, top_k, top_p)
    check_positions(model, len(tokens), max_new_tokens)
    was_training = model.training
    model.eval()
    try:
        new: list[int] = []
        for logits_V in _next_logits(model, list(tokens), new, max_new_tokens, dynamic_length, use_cache):
            # Drawn on the CPU, so that a seed gives the same text on any device.
            token = pick(logits_V.float().cpu(), temperature, top_k, top_p, generator)
            if token == eod:
                break
            new.append(token)
            if stop(new):
                break
        return new
    finally:
        model.train(was_training)


def require_causal(model: "Transformer", where: str) -> None:
    """Raise UserError E-RUN-35 for a model that predicts no next token. where: the option or call that names it."""
    if model.bidirectional:
        raise UserError(
            f"E-RUN-35 {where}: it reads in both directions, and has learned to say what is hidden in a text, not what "
            "follows. Fix: choose a run with attention_pattern=causal"
        )


def check_options(tokens: Sequence[int], max_new_tokens: int, temperature: float, top_k: int, top_p: float) -> None:
    if not tokens:
        raise ValueError("the prompt is empty; at least one token is needed to go on from")
    for name, value, ok, needs in (
        ("max_new_tokens", max_new_tokens, max_new_tokens >= 0, "0 or more"),
        ("temperature", temperature, 0 <= temperature < float("inf"), "0 (greedy) or more"),
        ("top_k", top_k, top_k >= 0, "0 (all) or more"),
        ("top_p", top_p, 0 < top_p <= 1, "above 0 and at most 1"),
    ):
        if not ok:
            raise ValueError(f"{name}={value} must be {needs}")


def check_positions(model: "Transformer", n_prompt: int, max_new_tokens: int) -> None:
    """Raise ValueError when prompt and continuation need positions that a learned table does not have."""
    limit, total = model.max_positions, n_prompt + max_new_tokens
    if limit is None or total == 0:
        return
    positions = Positions.counted(0, total)
    placed = [
        attention_pattern.place(positions, positions, None)[0]
        for attention_pattern in model.attention_patterns.values()
    ]
    if max(each.last for each in placed) >= limit:
        raise ValueError(
            f"max_new_tokens={max_new_tokens} after a prompt of {n_prompt} tokens must be at most "
            f"{max(0, limit - n_prompt)}: {model.position.settings.scheme} has {limit} positions, all learned "
            "(with attention_pattern=segments they restart at 0)"
        )


def _next_logits(
    model: "Transformer", prompt: list[int], new: list[int], max_new_tokens: int, dynamic_length: str, use_cache: bool
) -> Iterator[Tensor]:
    """Yield the logits of the next token, again and again; the caller appends its choice to `new` in between."""
    device = next(model.parameters()).device
    total = len(prompt) + max_new_tokens
    at_length = total if dynamic_length == "sequence" else None
    cache = model.new_cache(total, at_length) if use_cache else None
    for _ in range(max_new_tokens):
        held = len(prompt) + len(new)
        start = cache.length if cache is not None else 0
        tokens_BT = torch.tensor([(prompt + new)[start:]], device=device)
        x_BTC = model.hidden(tokens_BT, length=at_length or held, cache=cache)
        # The last position alone goes through the head: the logits of a long prompt would not fit.
        yield model.head(x_BTC[:, -1:])[0, -1]


def pick(logits_V: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator | None) -> int:
    """Choose one token: the most probable (temperature 0), or one drawn from the trimmed distribution."""
    if temperature == 0:
        return int(logits_V.argmax())
    scaled_V = logits_V / temperature
    if not bool(scaled_V.isfinite().all()):  # a temperature near 0: with the largest at 0 the others are -inf, or tiny
        scaled_V = ((logits_V - logits_V.max()).double() / temperature).to(logits_V.dtype)
    logits_V = scaled_V
    if 0 < top_k < logits_V.numel():
        kth = logits_V.topk(top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < kth, float("-inf"))
    p_V = logits_V.softmax(-1)
    if top_p < 1:
        sorted_p_V, order_V = p_V.sort(descending=True)
        before_V = sorted_p_V.cumsum(-1) - sorted_p_V  # probability of everything likelier
        p_V = p_V.index_fill(0, order_V[before_V >= top_p], 0.0)
    return int(torch.multinomial(p_V, 1, generator=generator))
