"""Which keys a query sees: pure boolean functions, true = visible. All of them are defined on indices
in the sequence and on document numbers, never on positions, which restart at every document."""

import torch
from torch import Tensor


def causal(query_index: Tensor, key_index: Tensor) -> Tensor:
    """A query sees the keys at or before its own index. Shapes broadcast."""
    return key_index <= query_index


def same_document(doc_query: Tensor, doc_key: Tensor) -> Tensor:
    """A query sees the keys of its own document. Shapes broadcast."""
    return doc_query == doc_key


def visible(n_queries: int, doc_BS: Tensor | None, n_keys: int, device: torch.device) -> Tensor:
    """The mask of causal attention, within documents when `doc_BS` is given: bool, (T, S) or (B, T, S).

    The queries are the last `n_queries` of the `n_keys` tokens (all of them, or those after a cache).
    """
    key_S = torch.arange(n_keys, device=device)
    seen = causal(key_S[n_keys - n_queries :, None], key_S)
    if doc_BS is None:
        return seen
    return seen & same_document(doc_BS[:, n_keys - n_queries :, None], doc_BS[:, None, :])
