"""Which keys a query sees, against the loops that define it."""

import pytest
import torch

from coca_train.positions.visibility import visible


@pytest.mark.parametrize(("n_queries", "n_keys"), [(1, 1), (5, 5), (1, 6), (3, 7)])
@pytest.mark.parametrize("documents", [None, [[0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 0]]])
def test_visible_equals_its_definition(n_queries, n_keys, documents):
    doc = None if documents is None else torch.tensor(documents)[:, :n_keys]
    seen = visible(n_queries, doc, n_keys, torch.device("cpu"))
    assert seen.dtype == torch.bool
    assert seen.shape == ((n_queries, n_keys) if doc is None else (2, n_queries, n_keys))
    for row in range(2):
        for t in range(n_queries):
            query = n_keys - n_queries + t
            for key in range(n_keys):
                same = doc is None or doc[row, query] == doc[row, key]
                found = seen[t, key] if doc is None else seen[row, t, key]
                assert bool(found) == bool(key <= query and same)


def test_every_query_sees_itself():
    """No row of the mask is empty, so no softmax is over nothing."""
    assert visible(4, torch.tensor([[3, 1, 3, 2]]), 4, torch.device("cpu")).diagonal(0, 1, 2).all()
