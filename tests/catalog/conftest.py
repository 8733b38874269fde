"""Fixtures of the catalogue's tests."""

import pytest
import torch

from coca_train.catalog.facts import load_reference, measure_schemes

WORKED = (
    *("alibi", "coca", "coca_strict", "cope", "dape", "disentangled", "fire", "fox", "kerple_log", "kerple_power"),
    *("learned", "nope", "rope", "sandwich", "shaw", "sinusoidal", "t5", "transformer_xl", "tupe", "xpos"),
)


@pytest.fixture(autouse=True)
def one_thread():
    """Tests share the machine; small tensors gain nothing from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny():
    """6 layers, C = 256, 8 heads of D = 32, training window 128."""
    return load_reference("neox_tiny", 128)


@pytest.fixture(scope="session")
def rows(tiny):
    return measure_schemes(tiny)


@pytest.fixture(scope="session")
def table(rows):
    """The rows with numbers worked out by hand; a scheme that is not among them needs none."""
    return {name: rows[name] for name in WORKED}
