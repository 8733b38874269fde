"""A text read segment by segment with a memory (Transformer-XL, arXiv 1901.02860, sections 3.2 and 4).

A document's predictions are made in segments of S tokens, one behind the other, each token read once. In every layer
a segment attends to itself and to the M hidden states before it, which were computed when their own segment was read;
M = 0: segments know nothing of each other. The first tokens have what there is before them. Every prediction counts
exactly once; those of a segment see M + 1 ... M + S tokens directly, and what these have seen through them. With a
memory as long as the text every state is that of one pass over all of it.

Shape legend: B texts, T predictions, M memory, C d_model.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from coca_train.evaluation.measures.perplexity import evaluating
from coca_train.models.memory import Memory


def recurrent_nll(
    model: Any, documents: Sequence[np.ndarray], length: int, segment: int, memory_len: int
) -> np.ndarray:
    """NLL [nats] of the first `length` predictions of documents with more tokens than that, nll_BT in float64.

    segment, memory_len: S and M [tokens].
    """
    weight = model.embed.weight
    tokens_BT = torch.from_numpy(np.stack([d[: length + 1] for d in documents]).astype(np.int64)).to(weight.device)
    n_texts, parts = len(documents), []
    memory = None
    if memory_len:
        empty_BMC = weight.new_zeros(n_texts, memory_len, weight.shape[1])
        memory = Memory([empty_BMC] * len(model.blocks), torch.zeros(n_texts, dtype=torch.long, device=weight.device))
    with evaluating(model):
        for begin in range(0, length, segment):
            end = min(begin + segment, length)
            pos_BT = torch.arange(begin, end, device=weight.device).expand(n_texts, -1)
            reach = memory_len + segment
            x_BTC = model.hidden(tokens_BT[:, begin:end], pos_BT=pos_BT, length=reach, memory=memory)
            parts.append(model.nll(x_BTC, tokens_BT[:, begin + 1 : end + 1]))
            if memory is not None:
                memory = Memory(memory.new, (memory.length_B + end - begin).clamp(max=memory_len))
    return torch.cat(parts, 1).double().cpu().numpy()
