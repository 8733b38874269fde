"""Log-likelihood of continuations: what the choices of a question, and texts in windows, are scored by.

Definition. Of a context c_1 ... c_n (n >= 1) and a continuation k_1 ... k_m the log-likelihood is
sum over i of ln p(k_i | c, k_1 ... k_{i-1}) [nats], float32 per token, summed in float64; it is greedy when each k_i is
the most probable token there. The model reads the row c, k_1 ... k_{m-1} once, positions from 0, and dynamic
frequencies see the length of that row.

Requests with the same row (choices of one token after the same question) share it. Rows go through the model in
batches, padded on the right: under causal attention no token sees what comes after it, so the padding is never read.
Rows with a context of SHARED_FROM tokens or more in common compute it once and go on from copies of its cache, which
holds un-rotated keys. Where tables depend on the length, only rows of one length share a batch, and no context.

Shape legend: B rows, T longest row, C d_model, N scored tokens of a batch, V vocab_size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coca_train.evaluation.measures.perplexity import evaluating
from coca_train.evaluation.measures.windows import same_at
from coca_train.models.cache import KVCache
from coca_train.models.transformer import Transformer

PIECE = 1024  # scored tokens whose logits are held at once
SHARED_FROM = 128  # a shorter context is computed with each row: larger batches are worth more

Row = tuple[int, ...]


class Request(NamedTuple):
    """Token ids."""

    context: Row
    continuation: Row

    @property
    def row(self) -> Row:
        """What the model reads."""
        return (*self.context, *self.continuation[:-1])


class Likelihood(NamedTuple):
    """See the module's definition."""

    total: float  # [nats]
    greedy: bool


def clip(request: Request, window: int) -> Request:
    """Return the request with as much of its context, from the right, as lets the model read at most `window` tokens.

    Raises ValueError when the continuation alone is longer.
    """
    if len(request.continuation) > window:
        raise ValueError(f"a continuation of {len(request.continuation):,} tokens in a window of {window:,}")
    return Request(request.context[-(window - len(request.continuation) + 1) :], request.continuation)


def likelihoods(
    model: Transformer,
    requests: Sequence[Request],
    *,
    batch_tokens: int,
    progress: Callable[[int], None] = lambda n_requests: None,
) -> list[Likelihood]:
    """Return the log-likelihood of every request, in their order.

    batch_tokens: rows times the longest of them, at least one row. progress: called with how many
    requests a batch answered. Raises ValueError for an empty context or continuation.
    """
    if not all(request.context and request.continuation for request in requests):
        raise ValueError("a context and a continuation of at least one token each are needed")
    by_row: dict[Row, list[int]] = {}
    for index, request in enumerate(requests):
        by_row.setdefault(request.row, []).append(index)
    # A row's first request says where its context ends; others with this row share its scores' hidden states.
    contexts = {row: requests[indices[0]].context for row, indices in by_row.items()}
    answers: list[Likelihood | None] = [None] * len(requests)
    trunk = None
    with evaluating(model):
        fixed = same_at(model, 1, max(map(len, by_row), default=1))
        for batch in plan(contexts, batch_tokens, fixed):
            # plan() keeps batches of one context together, so one trunk at a time is enough, and all that is held.
            if batch.n_shared and (trunk is None or trunk.row != batch.rows[0][: batch.n_shared]):
                trunk = _prefill(model, batch.rows[0][: batch.n_shared])
            x_BTC = _hidden(model, batch, trunk)
            places = [(place, index) for place, row in enumerate(batch.rows) for index in by_row[row]]
            for (_, index), answer in zip(places, _score(model, x_BTC, batch, requests, places), strict=True):
                answers[index] = answer
            progress(len(places))
    return [answer for answer in answers if answer is not None]


class RowBatch(NamedTuple):
    """Rows that go through the model together, the longest first. n_shared: tokens at their beginning that are computed
    once and are the same in all of them."""

    rows: list[Row]
    n_shared: int = 0


def plan(contexts: Mapping[Row, Row], batch_tokens: int, fixed: bool) -> Iterator[RowBatch]:
    """Yield batches of all rows. contexts: the beginning of each row. fixed: no table depends on the length."""
    by_context: dict[Row, list[Row]] = {}
    for row, context in contexts.items():
        by_context.setdefault(context, []).append(row)
    alone: list[Row] = []
    for context, rows in by_context.items():
        if fixed and len(rows) > 1 and len(context) >= SHARED_FROM:
            # The last token of the context is read with the row: what follows it is what is asked.
            yield from (RowBatch(batch, len(context) - 1) for batch in batches(rows, batch_tokens, mixed=True))
        else:
            alone += rows
    yield from map(RowBatch, batches(alone, batch_tokens, mixed=fixed))


def batches(rows: Sequence[Row], batch_tokens: int, mixed: bool) -> Iterator[list[Row]]:
    """Yield rows, the longest first, in batches. mixed: rows of several lengths may share one."""
    batch: list[Row] = []
    # The longest first: its length is what the whole batch is padded to, and memory that is too little shows at once.
    for row in sorted(rows, key=len, reverse=True):
        if batch and ((len(batch) + 1) * len(batch[0]) > batch_tokens or not (mixed or len(row) == len(batch[0]))):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


class Trunk(NamedTuple):
    """What rows begin with, and its keys and values."""

    row: Row
    cache: KVCache


def _prefill(model: Transformer, row: Row) -> Trunk:
    cache = model.new_cache(len(row))
    model.hidden(torch.tensor([row], device=next(model.parameters()).device), cache=cache)
    return Trunk(row, cache)


def _hidden(model: Transformer, batch: RowBatch, trunk: Trunk | None) -> Tensor:
    """Return the last hidden states x_BTC after the shared tokens, of rows that are padded on the right."""
    longest = len(batch.rows[0])
    padded = [row[batch.n_shared :] + (0,) * (longest - len(row)) for row in batch.rows]
    tokens_BT = torch.tensor(padded, device=next(model.parameters()).device)
    if trunk is None or not batch.n_shared:
        return model.hidden(tokens_BT, length=longest)
    return model.hidden(tokens_BT, length=longest, cache=trunk.cache.fork(len(batch.rows), longest))


def _score(
    model: Transformer, x_BTC: Tensor, batch: RowBatch, requests: Sequence[Request], places: Sequence[tuple[int, int]]
) -> list[Likelihood]:
    """Score each (place in the batch, index of the request)."""
    continuations = [requests[index].continuation for _, index in places]
    ends = [len(batch.rows[place]) - batch.n_shared for place, _ in places]
    x_NC = torch.cat(
        [x_BTC[place, end - len(k) : end] for (place, _), end, k in zip(places, ends, continuations, strict=True)]
    )
    target_N = torch.tensor([token for k in continuations for token in k], device=x_BTC.device)
    pieces = zip(x_NC.split(PIECE), target_N.split(PIECE), strict=True)
    parts = [_tokens(model, x_MC, target_M) for x_MC, target_M in pieces]
    log_p_N, best_N = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    sizes = [len(k) for k in continuations]
    # Summed in float64: differences of choices are small compared with sums over long texts.
    return [
        Likelihood(float(log_p_M.double().sum()), bool(best_M.all()))
        for log_p_M, best_M in zip(log_p_N.split(sizes), best_N.split(sizes), strict=True)
    ]


def _tokens(model: Transformer, x_MC: Tensor, target_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return ln p of each target [nats], float32, and whether it is the most probable token."""
    log_p_MV = model.head(x_MC).log_softmax(-1)
    return log_p_MV.gather(1, target_M[:, None])[:, 0], log_p_MV.argmax(-1) == target_M
