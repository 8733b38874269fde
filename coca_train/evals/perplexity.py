"""Perplexity by sliding windows, and validation loss by source.

Definition (Press et al., arXiv 2108.12409 appendix B and 2012.15832; CoCA paper 4.2). A document is
tokens x_0 ... x_N; its N predictions are x_1 ... x_N (nothing precedes x_0, so it is never scored).
A window of length W that begins at a reads x_a ... x_{a+W-1} and predicts x_{a+1} ... x_{a+W}.
Windows begin at 0, s, 2s ... (stride s <= W) until every prediction is made; the last one ends with
the document. Each window scores only predictions no earlier window made: the first all of its own,
with contexts of 1 ... W tokens, every later one its last s, with contexts of W - s + 1 ... W tokens.
So every prediction counts exactly once, whatever W and s. Positions start at 0 at each window's
first token, no state crosses windows, and dynamic frequencies see l = W in every window, also in a
last one that is shorter. Perplexity = exp(sum of NLL / number of predictions), NLL in nats, float32
per token, summed in float64.

Shape legend: B windows of one length, T window length, C d_model.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from coca_train import dist
from coca_train.data.batch import Batch
from coca_train.evals.positions import binned

Placed = tuple[int, "Window"]  # a window and the index of its document

CPU_TOKENS = 4096  # of a forward on a CPU: more only leaves its cache, up to a third slower
CONFIDENCE = 0.95
RESAMPLES = 1000


class Window(NamedTuple):
    """Reads tokens [start, stop) and scores the predictions of tokens [scored + 1, stop + 1)."""

    start: int
    stop: int
    scored: int


class Scores(NamedTuple):
    """Sums over documents and over positions, each of NLL [nats] and predictions: float64."""

    documents: np.ndarray  # (n_documents, 2)
    positions: np.ndarray  # (n_bins, 2): first windows only, see positions.py


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """What a model makes of some documents; bits per byte only where the text's size is known."""

    nll_sum: float  # [nats]
    n_tokens: int  # predictions scored
    n_documents: int
    n_bytes: int | None
    perplexity: float
    bits_per_token: float
    bits_per_byte: float | None
    ci_low: float | None  # of the perplexity; None with fewer than two documents
    ci_high: float | None

    @property
    def loss(self) -> float:
        """Mean NLL [nats per token]."""
        return self.nll_sum / self.n_tokens


def sliding_windows(n_predictions: int, window: int, stride: int) -> Iterator[Window]:
    """The windows over one document, see the module's definition.

    Raises ValueError unless 1 <= stride <= window and there is something to predict.
    """
    if not 1 <= stride <= window:
        raise ValueError(f"stride {stride} must lie between 1 and the window {window}: otherwise tokens are left out")
    if n_predictions < 1:
        raise ValueError("a document of fewer than 2 tokens has nothing to predict")
    scored = start = 0
    while scored < n_predictions:
        stop = min(start + window, n_predictions)
        yield Window(start, stop, scored)
        scored = stop
        start += stride


def score_documents(
    model: nn.Module,
    documents: Sequence[np.ndarray],
    *,
    window: int,
    stride: int,
    micro_batch_tokens: int,
    progress: Callable[[int], None] = lambda n_tokens: None,
) -> Scores:
    """NLL and number of predictions, summed for each document and for each bin of positions.

    model, progress: as in score_share. The ranks of a distributed run share the work and all get the whole result.
    COLLECTIVE.
    """
    mine = score_share(
        model, documents, window=window, stride=stride, micro_batch_tokens=micro_batch_tokens, progress=progress
    )
    whole = np.asarray(dist.all_reduce([*mine.documents.ravel().tolist(), *mine.positions.ravel().tolist()]))
    n = mine.documents.size
    return Scores(whole[:n].reshape(mine.documents.shape), whole[n:].reshape(mine.positions.shape))


def score_share(
    model: nn.Module,
    documents: Sequence[np.ndarray],
    *,
    window: int,
    stride: int,
    micro_batch_tokens: int,
    progress: Callable[[int], None] = lambda n_tokens: None,
    first: Callable[[int, np.ndarray], None] = lambda index, nll_T: None,
) -> Scores:
    """This rank's share of the sums: those of all ranks, added up, are the whole.

    model: has .hidden(tokens_BT, pos_BT=, length=, last=n) -> x_BnC of the last n positions, and
    .nll(x_BnC, targets_Bn) -> float32.
    Windows of equal shape go through the model together, up to micro_batch_tokens, CPU_TOKENS on a CPU (at least one).
    progress: told the tokens that all ranks read, batch by batch. first: told what this rank found for a document's
    first window, which begins with the document: its index and nll_T [nats].
    """
    device = next(model.parameters()).device
    if device.type == "cpu":
        micro_batch_tokens = min(micro_batch_tokens, CPU_TOKENS)
    batches = _batches([len(d) - 1 for d in documents], window, stride, micro_batch_tokens)
    sums, by_position = np.zeros((len(documents), 2)), np.zeros((window, 2))
    n_ranks, rank = dist.world_size(), dist.rank()
    with evaluating(model):
        for begin in range(0, len(batches), n_ranks):
            # Every rank makes the same number of forwards (ZeRO-3's are collective); what is over counts nothing.
            mine = begin + rank
            batch = batches[min(mine, len(batches) - 1)]
            nll_BT = _score(model, documents, batch, window, device)
            if mine < len(batches):
                for (index, w), nll_T in zip(batch, nll_BT, strict=True):
                    sums[index] += nll_T.sum(), len(nll_T)
                    if w.start == 0:
                        by_position[: len(nll_T), 0] += nll_T
                        by_position[: len(nll_T), 1] += 1
                        first(index, nll_T)
            progress(sum(w.stop - w.start for b in batches[begin : begin + n_ranks] for _, w in b))
    return Scores(sums, binned(by_position))


def _batches(lengths: Sequence[int], window: int, stride: int, micro_batch_tokens: int) -> list[list[Placed]]:
    """Windows grouped by (length, scored predictions), then cut to the micro-batch; longest first."""
    groups: dict[tuple[int, int], list[Placed]] = {}
    for index, n_predictions in enumerate(lengths):
        for w in sliding_windows(n_predictions, window, stride):
            groups.setdefault((w.stop - w.start, w.stop - w.scored), []).append((index, w))
    batches = []
    for (length, _), members in sorted(groups.items(), reverse=True):
        size = max(1, micro_batch_tokens // length)
        batches += [members[i : i + size] for i in range(0, len(members), size)]
    return batches


def _score(
    model: Any, documents: Sequence[np.ndarray], batch: Sequence[Placed], length: int, device: Any
) -> np.ndarray:
    """NLL of each window's scored predictions, the last of the window: nll_BT float64."""
    rows = [documents[index][w.start : w.stop + 1] for index, w in batch]
    window_BT = torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)
    tokens_BT, targets_BT = window_BT[:, :-1], window_BT[:, 1:]
    n_scored = batch[0][1].stop - batch[0][1].scored
    pos_1T = torch.arange(tokens_BT.shape[1], device=device)[None]
    x_BTC = model.hidden(tokens_BT, pos_BT=pos_1T, length=length, last=n_scored)
    return model.nll(x_BTC, targets_BT[:, -n_scored:]).double().cpu().numpy()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout, no gradients), and back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def tokens_read(n_predictions: int, window: int, stride: int) -> int:
    """By all windows over one document: what measuring it costs [tokens]."""
    return sum(w.stop - w.start for w in sliding_windows(n_predictions, window, stride))


def summarise(sums: np.ndarray, n_bytes: int | None = None, seed: int = 0, resamples: int = RESAMPLES) -> Perplexity:
    """Perplexity over documents from the sums (n_documents, 2) of score_documents.

    The 95 % interval is a percentile bootstrap over documents (seeded): documents, not tokens, are what was drawn.
    n_bytes: size of the scored text in UTF-8, if known.
    """
    nll, count = float(sums[:, 0].sum()), int(sums[:, 1].sum())
    low = high = None
    if len(sums) > 1:
        draws = np.random.default_rng(seed).integers(0, len(sums), (resamples, len(sums)))
        losses = sums[draws, 0].sum(1) / sums[draws, 1].sum(1)
        edges = np.quantile(losses, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        low, high = (_exp(float(edge)) for edge in edges)
    return Perplexity(
        nll_sum=nll,
        n_tokens=count,
        n_documents=len(sums),
        n_bytes=n_bytes,
        perplexity=_exp(nll / count),
        bits_per_token=nll / count / math.log(2),
        bits_per_byte=nll / n_bytes / math.log(2) if n_bytes else None,
        ci_low=low,
        ci_high=high,
    )


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def validation_loss(model: Any, batches: Mapping[str, Iterable[Batch]]) -> dict[str, float]:
    """Mean NLL [nats per token] by source, over windows packed as in training.

    batches: by source, this rank's share (data.validation.validation_batches). Each rank must bring
    equally many; the result is over all ranks. COLLECTIVE.
    """
    device = next(model.parameters()).device
    losses = {}
    with evaluating(model):
        for source, stream in batches.items():
            nll = count = 0.0
            for batch in stream:
                doc_BT = None if batch.doc_BT is None else batch.doc_BT.to(device)
                targets_BT = batch.targets_BT.to(device)
                x_BTC = model.hidden(batch.tokens_BT.to(device), pos_BT=batch.pos_BT.to(device), doc_BT=doc_BT)
                nll += float(model.nll(x_BTC, targets_BT).double().sum())
                count += batch.n_targets
            nll, count = dist.all_reduce([nll, count])
            if count:
                losses[source] = nll / count
    return losses
