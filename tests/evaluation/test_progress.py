"""What is said of progress where nobody can draw a bar."""

import threading

import pytest

from coca_train.evaluation import grid as progress
from coca_train.evaluation.grid import Progress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_names_the_cell_and_the_time_left(clock):
    bar = Progress(shown=False)
    bar.expect(200.0, n_models=2)
    bar.expect(50.0, n_models=2)
    clock[0] += 1000.0  # reading texts is no part of the work
    bar.cell("rope, own, 512", 40.0)
    assert bar.line() == "0%  rope, own, 512"
    clock[0] += 3.0
    bar.share(0.05)
    assert bar.line() == "2%  rope, own, 512"  # a guess
    clock[0] += 27.0
    bar.share(0.5)
    assert bar.line() == "20%  rope, own, 512  2:00 left"
    bar.cell("rope, own, 256", 60.0)
    clock[0] += 30.0
    bar.share(1 / 6)
    assert bar.line() == "50%  rope, own, 256  1:00 left"
    bar.close()


def test_lines_come_while_a_cell_tells_nothing(capsys, monkeypatch):
    printed = threading.Event()
    monkeypatch.setattr(progress, "FIRST_LINE_S", 0.001)
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.001)  # before it starts: a first look may come before the cell
    # The bar, which is not drawn, has the line too: only the thread's is printed.
    main = threading.get_ident()
    words = lambda bar: (threading.get_ident() != main and printed.set()) or bar._words  # noqa: E731
    monkeypatch.setattr(Progress, "line", words)
    bar = Progress(shown=True)
    bar.expect(1.0, n_models=1)
    bar.cell("coca, own, 2,048", 1.0)
    assert printed.wait(10)
    bar.close()
    assert capsys.readouterr().err.startswith("coca, own, 2,048\n")


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
