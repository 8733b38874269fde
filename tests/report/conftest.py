import pytest

from coca_train.report import figures


@pytest.fixture
def drawn(monkeypatch):
    """All the axes of all the pages, in the order they were made."""
    seen = []
    original = figures.Figure.subplots

    def subplots(self, *args, **kwargs):
        axes = original(self, *args, **kwargs)
        seen.extend(axes.ravel())
        return axes

    monkeypatch.setattr(figures.Figure, "subplots", subplots)
    return seen
