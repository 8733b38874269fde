"""One pass for several windows: a shorter cut of a document is a prefix of a longer one.

Where every document is cut to its window, one window a document, the predictions of window V < W are the first V of
those of window W, with the same contexts: nothing that comes later is ever seen. So their NLLs are those of W, cut,
unless something else than the contexts changes with the window: what dynamic frequencies make of l. Whether it does
is asked of the position scheme itself: it does not where its tables are the same for both lengths. Equal to measuring
each window but for rounding, since kernels are chosen by the length: up to 1e-4 nats in bfloat16 on a CPU.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from coca_train.evals.perplexity import Scores
from coca_train.evals.positions import binned

PROBED = 8  # positions whose tables are compared [tokens]

Curves = Mapping[int, np.ndarray]  # NLL of a document's predictions, by index of the document


def cut(curves: Curves, n_documents: int, window: int) -> Scores:
    """What `score_share` finds for documents cut to `window`, from the curves of an equal or longer one."""
    sums, by_position = np.zeros((n_documents, 2)), np.zeros((window, 2))
    for index, whole_T in curves.items():
        nll_T = whole_T[:window]
        sums[index] = nll_T.sum(), len(nll_T)
        by_position[: len(nll_T)] += np.stack((nll_T, np.ones_like(nll_T)), axis=1)
    return Scores(sums, binned(by_position))


@torch.no_grad()
def same_at(model: Any, one: int, other: int) -> bool:
    """Whether the model, a Transformer, treats equal positions equally in windows of both lengths [tokens]."""
    pos_1T = torch.arange(PROBED, device=next(model.parameters()).device)[None]
    tables = [model.position(pos_1T, pos_1T, model.visibility.length(length)) for length in (one, other)]
    return _equal(*tables)


def _equal(one: Any, other: Any) -> bool:
    """Of tables: tensors, plain values, and tuples of them."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)
