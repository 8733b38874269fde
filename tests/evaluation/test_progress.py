"""What is said of progress where nobody can draw a bar."""

import pytest

from coca_train.evaluation import progress
from coca_train.evaluation.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_name_the_cell_and_the_time_left(clock, capsys):
    bar = Progress(shown=True)
    bar.expect(200.0, n_models=2)
    bar.expect(50.0, n_models=2)
    bar.cell("rope, own, 512", 40.0)
    clock[0] += 29.0
    bar.share(0.25)  # too soon
    clock[0] += 1.0
    bar.share(0.5)
    bar.cell("rope, own, 256", 60.0)
    clock[0] += 30.0
    bar.share(1 / 6)
    bar.close()
    assert capsys.readouterr().err.splitlines() == [
        "20%  rope, own, 512  2:00 left",
        "50%  rope, own, 256  1:00 left",
    ]


def test_nothing_is_said_when_unwanted_or_on_another_rank(clock, capsys, monkeypatch):
    for shown, rank in ((False, 0), (True, 1)):
        monkeypatch.setattr(progress.dist, "rank", lambda rank=rank: rank)
        bar = Progress(shown)
        bar.expect(100.0, n_models=1)
        bar.cell("a", 100.0)
        clock[0] += 60.0
        bar.share(0.5)
        bar.close()
    assert capsys.readouterr().err == ""
