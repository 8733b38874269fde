"""Perplexity by sliding windows (definition: windows.py), and validation loss by source.

Shape legend: B passes of one shape, T their length, n the predictions wanted of each, C d_model, D documents, K ratios.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Required, TypedDict

import numpy as np
import torch
from torch import nn

from coca_train.data.batch import Batch
from coca_train.evaluation.measures.windows import (
    Pass,
    Windowing,
    batches,
    bin_ends,
    merge_scored,
    plan_passes,
    sum_bins,
)
from coca_train.models.transformer import Transformer
from coca_train.runtime import dist

CPU_TOKENS = 4096  # of a forward on a CPU: more only leaves its cache, up to a third slower
CONFIDENCE = 0.95
Bound = float | None  # of an interval
RESAMPLES = 1000


class Scores(NamedTuple):
    """Sums over documents and over positions, each of NLL [nats] and predictions: float64."""

    bands: np.ndarray  # (n_documents, n_bands, 2): by how many tokens of the document precede the prediction
    bins: np.ndarray  # (n_documents, n_bins, 2): by position in the first window, see windows.py
    windows: np.ndarray  # (n_documents, 2): the mean NLL of each window [nats per token], summed, and windows

    @property
    def documents(self) -> np.ndarray:
        """(n_documents, 2): of whole documents."""
        return self.bands.sum(1)

    @property
    def positions(self) -> np.ndarray:
        """(n_bins, 2): of all documents."""
        return self.bins.sum(0)


class Perplexity(TypedDict):
    """What a model makes of some documents, as plain JSON; bits per byte only where the text's size is known."""

    nll_sum: float  # [nats]
    n_tokens: int  # predictions scored
    n_documents: int
    n_bytes: int | None
    perplexity: float
    bits_per_token: float
    bits_per_byte: float | None
    ci_low: Bound  # of the perplexity; None with fewer than two documents
    ci_high: Bound


Sums = list[list[float]]  # of each document, NLL [nats] and predictions


class OneText(Perplexity, total=False):
    """What a cell of suite `perplexity` says of one text. Always there: the loss by position, whose bins end at `ends`,
    by_document, and `predictions`, a digest of what was predicted. seeds: of a pooled result, those of each seed."""

    ends: Required[list[int]]
    loss_by_position: Required[list[float]]
    loss_low: list[Bound]
    loss_high: list[Bound]
    by_document: Required[Sums]
    predictions: Required[str]
    windows_by_document: Sums  # where windows count as much as one another: their mean NLL, summed, and windows
    uses: dict[str, Sums]  # by length, NLL with less context less NLL with more
    holds: Sums  # NLL in these windows less NLL in windows of the training length
    short: Sums  # NLL with 5 to 8 tokens of context less that of the same predictions with 29 to 32
    token_frequencies: Sums  # NLL of a unigram and of a bigram model, and predictions
    seeds: "dict[str, OneText]"


class ByText(TypedDict):
    """Of a cell of suite `perplexity`: by source, and of all together. stride [tokens]."""

    stride: int
    sources: dict[str, OneText]


def score_share(
    model: Transformer,
    documents: Sequence[np.ndarray],
    rows: Sequence[Windowing],
    micro_batch_tokens: int,
    progress: Callable[[int], None] = lambda n_tokens: None,
    edges: Sequence[int] = (),
    begin: int | None = None,
) -> list[Scores]:
    """Return this rank's share of the sums of every row: those of all ranks, added up, are the whole.

    model: has .losses(tokens_BT, targets_BT, pos_BT=, length=, wanted=) -> nll_Bn of some stretches of positions, in
    float32, and .sequence, its share where ranks share sequences. Several rows share passes: only for models that
    treat them alike (windows.same_at). Passes of equal shape go through the model together, up to micro_batch_tokens,
    CPU_TOKENS on a CPU (at least one). progress: called with the tokens that all ranks read, batch by batch. edges:
    ascending; a prediction with more than edges[i] tokens of its document before it is of band i + 1 or above. begin:
    the token that each window reads in place of its first one; None: it reads its own.
    """
    if next(model.parameters()).device.type == "cpu":
        micro_batch_tokens = min(micro_batch_tokens, CPU_TOKENS)
    # The same list of batches on every rank, whatever their number: a batch goes through the model in the same company,
    # so its float sums are the same for any world size. Neighbours are equally long, so ranks end together.
    work = batches(plan_passes([len(d) - 1 for d in documents], rows), micro_batch_tokens)
    sums = [np.zeros((len(documents), len(edges) + 1, 2)) for _ in rows]
    bins = [np.zeros((len(documents), len(bin_ends(row.window)), 2)) for row in rows]
    windows = [np.zeros((len(documents), 2)) for _ in rows]
    edges_n = np.asarray(edges, dtype=int)
    shared = model.sequence
    rank, n_ranks = dist.reader(1 if shared is None else shared.size)
    with evaluating(model):
        for first in range(0, len(work), n_ranks):
            # Every rank makes the same number of forwards (ZeRO-3's are collective); what is over counts nothing.
            mine = first + rank
            batch = work[min(mine, len(work) - 1)]
            nll_BT = _score(model, documents, batch, rows, begin)
            # Ranks that share a sequence all have its losses; the first of them counts them.
            if mine < len(work) and (shared is None or shared.rank == 0):
                for each, nll_T in zip(batch, nll_BT, strict=True):
                    for part in each.parts:
                        nll_P = nll_T[part.begin : part.end]
                        parted = np.split(nll_P, np.clip(edges_n - each.start - part.begin, 0, len(nll_P)))
                        sums[part.row][each.document] += [(nll.sum(), len(nll)) for nll in parted]
                        windows[part.row][each.document] += nll_P.mean(), 1
                        if each.start == 0:  # the first window: later ones score long contexts only
                            by_position = np.zeros((rows[part.row].window, 2))
                            by_position[part.begin : part.end] = np.stack((nll_P, np.ones_like(nll_P)), 1)
                            bins[part.row][each.document] += sum_bins(by_position)
            progress(sum(each.length for b in work[first : first + n_ranks] for each in b))
    return [Scores(*each) for each in zip(sums, bins, windows, strict=True)]


def _score(
    model: Transformer,
    documents: Sequence[np.ndarray],
    batch: Sequence[Pass],
    rows: Sequence[Windowing],
    begin: int | None,
) -> np.ndarray:
    """Return the NLL of every prediction of passes of one shape, nll_BT float64; NaN where no row scores it."""
    parts, length = batch[0].parts, batch[0].length
    read = [documents[each.document][each.start : each.stop + 1] for each in batch]
    tokens_BT = torch.from_numpy(np.stack(read).astype(np.int64)).to(next(model.parameters()).device)
    if begin is not None:
        tokens_BT[:, 0] = begin
    pos_1T = torch.arange(length, device=tokens_BT.device)[None]
    wanted, seen = merge_scored(parts), max(rows[part.row].length for part in parts)
    nll_Bn = model.losses(tokens_BT[:, :-1], tokens_BT[:, 1:], pos_BT=pos_1T, length=seen, wanted=wanted)
    wanted_n = np.concatenate([np.arange(*stretch) for stretch in wanted])
    nll_BT = np.full((len(batch), length), np.nan)
    nll_BT[:, wanted_n] = nll_Bn.double().cpu().numpy()
    return nll_BT


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode (no dropout, no gradients), and back."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def summarise(sums: np.ndarray, n_bytes: int | None = None, seed: int = 0, resamples: int = RESAMPLES) -> Perplexity:
    """Return perplexity over documents from the sums (n_documents, 2) of all ranks.

    The 95 % interval is a percentile bootstrap over documents (seeded): documents, not tokens, are what was drawn.
    n_bytes: size of the scored text in UTF-8, if known.
    """
    nll, count = float(sums[:, 0].sum()), int(sums[:, 1].sum())
    low = high = None
    if len(sums) > 1:
        low, high = (perplexity_of(edge or 0.0) for (edge,) in intervals(sums[:, None], seed, resamples))
    return Perplexity(
        nll_sum=nll,
        n_tokens=count,
        n_documents=len(sums),
        n_bytes=n_bytes,
        perplexity=perplexity_of(nll / count),
        bits_per_token=nll / count / math.log(2),
        bits_per_byte=nll / n_bytes / math.log(2) if n_bytes else None,
        ci_low=low,
        ci_high=high,
    )


def weigh_windows(summary: Perplexity, windows_D2: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> Perplexity:
    """Return the summary with the perplexity of the mean over windows, and its interval. windows_D2: as
    Scores.windows."""
    of_windows = summarise(windows_D2, None, seed, resamples)
    ends = of_windows["ci_low"], of_windows["ci_high"]
    return {**summary, "perplexity": of_windows["perplexity"], "ci_low": ends[0], "ci_high": ends[1]}


def intervals(sums_DK2: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> tuple[list[Bound], list[Bound]]:
    """Return low and high ends of the 95 % interval over documents of K ratios, the sum of the first by that of the
    second.

    None with fewer than two documents, and where a ratio has nothing to divide by. Percentile bootstrap (seeded), the
    same documents for all ratios.
    """
    low, high = list[Bound](), list[Bound]()
    draws = np.random.default_rng(seed).integers(0, len(sums_DK2), (resamples, len(sums_DK2)))
    # The ratio of sums: a mean of the documents' own ratios would weigh short ones as long ones.
    for sums_D2 in np.moveaxis(sums_DK2, 1, 0):
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = sums_D2[draws, 0].sum(1) / sums_D2[draws, 1].sum(1)
        ratios = ratios[~np.isnan(ratios)]  # a draw without a document that counts says nothing
        known = len(sums_DK2) > 1 and len(ratios)
        ends = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist() if known else (None, None)
        low.append(ends[0])
        high.append(ends[1])
    return low, high


def perplexity_of(loss: float) -> float:
    """Return exp of a loss [nats per token]. Infinite where float64 ends, and of NaN."""
    return math.exp(loss) if loss < 700 else math.inf


def validation_loss(model: Any, batches: Mapping[str, Iterable[Batch]]) -> dict[str, float]:
    """Return the mean NLL [nats per token] by source, over windows packed as in training.

    batches: by source, this rank's share (data.held_out.Validation). Each rank must bring
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
                # Where ranks share sequences all have the whole rows, and count them as often as they add their losses.
                nll_BT = model.losses(batch.tokens_BT.to(device), targets_BT, batch.pos_BT.to(device), doc_BT)
                nll += float(nll_BT.double().sum())
                count += batch.n_targets
            nll, count = dist.all_reduce([nll, count])
            if count:
                losses[source] = nll / count
    return losses
