"""One row on one rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from coca_train.evaluation.measures.perplexity import Scores, score_share
from coca_train.evaluation.measures.windows import Windowing


def score_documents(
    model: Any, documents: Sequence[np.ndarray], *, window: int, stride: int, micro_batch_tokens: int
) -> Scores:
    (scores,) = score_share(model, documents, [Windowing(window, stride)], micro_batch_tokens)
    return scores
