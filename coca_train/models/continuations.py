"""Greedy continuations of many prompts together: what they begin with in common is computed once.

Definition. The continuation of a prompt is max_new_tokens times the most probable next token (of equals the first
one), up to the end-of-document token, which is left out; dynamic frequencies see one `length` for all prompts and all
steps. So it is what recomputing the whole sequence for every token at that length gives, in the arithmetic of one
prompt alone: batches and shared prefixes change the order of additions, nothing else.

How. Prompts of equal length go together, so that all their rows have the same positions and no row is padded. Of
such a group the prompt that has most in common with the others is the trunk. It is computed once, from left to right;
where a prompt parts from it, the cache is copied and the rest of the prompt goes on from there. This holds for every
scheme and attention pattern: a key never depends on what comes after it, and a cache that keeps only some keys has at
the branching point exactly those that a text of its own would have there.
The ranks of a distributed run take whole batches in turn; how the batches are formed does not depend on them.

Shape legend: B rows of a batch, T positions, C d_model.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coca_train.models.cache import KVCache
from coca_train.models.generation import check_options, check_positions

if TYPE_CHECKING:
    from coca_train.models.transformer import Transformer

Tokens = Sequence[int]


class Branch(NamedTuple):
    """A prompt by its index, and how many of its first tokens the trunk has too; at least one is its own."""

    prompt: int
    shared: int


class Group(NamedTuple):
    """Prompts of one length. batches: branches in rising order of `shared`, within a batch and from one to the next."""

    trunk: Tokens
    batches: list[list[Branch]]


@torch.no_grad()
def continuations(
    model: "Transformer",
    prompts: Sequence[Tokens],
    max_new_tokens: int,
    *,
    length: int,
    micro_batch_tokens: int,
    eod: int | None = None,
    share: bool = True,
    rank: int = 0,
    n_ranks: int = 1,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[int, list[int]]:
    """Return the new tokens by prompt index, for the prompts in this rank's batches.

    length: what dynamic frequencies adapt to; at least the longest prompt and its new tokens [tokens].
    micro_batch_tokens: rows times positions of a batch, at least one row. share: False computes every prompt from its
    beginning. progress: called with the share of this rank's batches that is done. Raises ValueError for an empty
    prompt, a length that is too short, or more tokens than there are positions.
    """
    longest = max(map(len, prompts), default=0)
    for prompt in prompts:
        check_options(prompt, max_new_tokens, temperature=0.0, top_k=0, top_p=1.0)
    if length < longest + max_new_tokens:
        raise ValueError(f"length={length} must be at least {longest + max_new_tokens}, prompt and new tokens")
    check_positions(model, longest, max_new_tokens)
    groups = plan(prompts, max_new_tokens, micro_batch_tokens, share)
    n_mine = len(range(rank, sum(len(group.batches) for group in groups), n_ranks))
    was_training = model.training
    model.eval()
    try:
        new_tokens: dict[int, list[int]] = {}
        prefilled = _prefill(model, prompts, groups, max_new_tokens, length, rank, n_ranks)
        for done, (batch, x_BC, cache) in enumerate(prefilled, start=1):
            rows = _decode(model, x_BC, cache, max_new_tokens, length, eod)
            new_tokens.update(zip((branch.prompt for branch in batch), rows, strict=True))
            progress(done / n_mine)
        return new_tokens
    finally:
        model.train(was_training)


def plan(prompts: Sequence[Tokens], max_new_tokens: int, micro_batch_tokens: int, share: bool) -> list[Group]:
    """Group prompts by length, the longest first, and cut the groups into batches."""
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)
    groups = []
    for n_tokens, members in sorted(by_length.items(), reverse=True):
        arrays = [np.asarray(prompts[index]) for index in members]
        trunk = _trunk(arrays)
        shared = [min(count_common_prefix(arrays[trunk], array), n_tokens - 1) if share else 0 for array in arrays]
        branches = sorted(map(Branch, members, shared), key=lambda branch: (branch.shared, branch.prompt))
        size = max(1, micro_batch_tokens // (n_tokens + max_new_tokens))
        batches = [branches[first : first + size] for first in range(0, len(branches), size)]
        groups.append(Group(prompts[members[trunk]], batches))
    return groups


def _trunk(prompts: Sequence[np.ndarray]) -> int:
    """Return the index of the prompt with the most leading tokens in common with all others. In sorted order, two
    prompts share as many as the least that neighbours between them share."""
    order = sorted(range(len(prompts)), key=lambda index: prompts[index].tolist())
    near = [count_common_prefix(prompts[one], prompts[other]) for one, other in pairwise(order)]
    sums = [
        sum(accumulate(near[place:], min)) + sum(accumulate(reversed(near[:place]), min)) for place in range(len(order))
    ]
    return order[int(np.argmax(sums))]


def count_common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """Count the first tokens that two prompts of equal length have in common."""
    differs = one != other
    return int(differs.argmax()) if differs.any() else len(one)


def _prefill(
    model: "Transformer",
    prompts: Sequence[Tokens],
    groups: Sequence[Group],
    max_new_tokens: int,
    length: int,
    rank: int,
    n_ranks: int,
) -> Iterator[tuple[list[Branch], Tensor, KVCache]]:
    """Yield this rank's batches, each with its last hidden states x_BC and its cache. Every rank computes a trunk in
    the same pieces, so that rounding does not depend on the number of ranks."""
    turn = 0
    for group in groups:
        n_tokens = len(group.trunk)
        trunk = model.new_cache(n_tokens, length)
        for batch in group.batches:
            hidden, parts = [], []
            for shared, branches in groupby(batch, key=lambda branch: branch.shared):
                if shared > trunk.length:
                    _advance(model, [group.trunk[trunk.length : shared]], trunk, length)
                if turn % n_ranks == rank:
                    rests = [prompts[branch.prompt][shared:] for branch in branches]
                    parts.append(trunk.fork(len(rests), n_tokens + max_new_tokens))
                    hidden.append(_advance(model, rests, parts[-1], length))
            if parts:
                yield batch, torch.cat(hidden), KVCache.join(parts)
            turn += 1


def _advance(model: "Transformer", tokens: Sequence[Tokens] | Tensor, cache: KVCache, length: int) -> Tensor:
    """Append tokens to the cache; return the last hidden states x_BC."""
    tokens_BT = torch.as_tensor(tokens, device=next(model.parameters()).device)
    return model.hidden(tokens_BT, length=length, cache=cache)[:, -1]


def _decode(
    model: "Transformer", x_BC: Tensor, cache: KVCache, max_new_tokens: int, length: int, eod: int | None
) -> list[list[int]]:
    """Return the new tokens of every row; decode until all rows have ended."""
    steps: list[Tensor] = []
    ended_B = torch.zeros(x_BC.shape[0], dtype=torch.bool, device=x_BC.device)
    while len(steps) < max_new_tokens:
        if steps:
            x_BC = _advance(model, steps[-1][:, None], cache, length)
        steps.append(model.head(x_BC).argmax(-1))
        ended_B |= steps[-1] == (-1 if eod is None else eod)
        if bool(ended_B.all()):
            break
    rows = torch.stack(steps, dim=1).tolist() if steps else [[] for _ in x_BC]
    return [row[: row.index(eod)] if eod in row else row for row in rows]
