"""What a training shows while it goes on: lines or a bar, validations, the time left, and silence explained."""

import io
import os
import sys
import threading

import pytest

from coca_train.runtime import dist
from coca_train.tracking import terminal
from coca_train.tracking.terminal import ProgressSink, clock, validation


class Terminal(io.StringIO):
    def __init__(self, tty):
        super().__init__()
        self.isatty = lambda: tty  # type: ignore[method-assign]


RECORD = {"loss": 2.34567, "lr": 1e-3, "tokens_per_s": 12345.6, "mfu": 0.4321}
SHOWN = "loss 2.3457  tok/s 12,346  lr 1.00e-03  MFU 43.2%"


@pytest.fixture
def now(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    return now


def lines():
    return sys.stderr.getvalue().splitlines()  # type: ignore[attr-defined]


def test_plain_lines_when_stderr_is_no_terminal(monkeypatch, now):
    """The time left follows from the steps after the first, which includes 90 s of set-up here."""
    monkeypatch.setattr(sys, "stderr", Terminal(False))
    sink = ProgressSink(100)
    for step, seconds in ((1, 90), (2, 3), (3, 1), (6, 6), (100, 200)):
        now[0] += seconds
        sink.write(step, RECORD)
    sink.close()
    assert lines() == [  # others came within 5 s
        f"step 1/100 (1%)  {SHOWN}",
        f"step 6/100 (6%)  {SHOWN}  left 3:08",
        f"step 100/100 (100%)  {SHOWN}  left 0:00",
    ]


@pytest.mark.parametrize(
    ("max_steps", "steps", "lefts"),
    [  # seconds since the record before, by step
        # Not before a twentieth is done; then 940 steps of 5 s; in the end 790 of 20 s, by the last minute.
        (1000, {1: 100, 40: 100, 60: 100, **dict.fromkeys(range(201, 211), 20)}, ["", "", "1:18:20", "4:23:20"]),
        (200, {101: 10, 104: 10, 106: 10}, ["", "", "6:16"]),  # a resumed run: 94 steps of 4 s
    ],
)
def test_the_time_left_follows_from_the_last_minute(monkeypatch, now, max_steps, steps, lefts):
    monkeypatch.setattr(sys, "stderr", Terminal(False))
    sink = ProgressSink(max_steps)
    for step, seconds in steps.items():
        now[0] += seconds
        sink.write(step, {"loss": 1.0})
    found = [line.partition("left ")[2] for line in lines()]
    assert [*found[:3], *found[3:][-1:]] == lefts


def test_a_validation_is_a_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal(False))
    sink = ProgressSink(1000)
    sink.write(200, {"valid/text": 3.9, "valid/code": 4.1})
    assert lines() == ["step 200 valid loss 4.0000 (mean of text 3.9000, code 4.1000)"]
    assert validation({"valid/text": 3.9}) == "valid loss 3.9000 (text)"
    assert validation(RECORD) == ""


@pytest.mark.parametrize("columns", [55, 70, 85, 120])
def test_a_bar_on_a_terminal(monkeypatch, now, columns):
    """It begins with the first record, and ends with the time left however narrow the terminal is."""
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    sink = ProgressSink(1000)
    assert lines() == []
    for step in (10, 110):
        now[0] += 60
        sink.write(step, RECORD)
    drawn = str(sink._bar)
    sink.close()
    assert drawn.startswith("step 110/1000 (11%)  ") and "left 8:54 |" in drawn
    assert [part in drawn for part in ("loss 2.3457", "tok/s", "lr", "MFU")] == [
        columns > least for least in (52, 65, 79, 91)
    ]


def test_a_line_is_printed_above_the_bar(monkeypatch, now):
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    sink = ProgressSink(1000)
    sink.write(10, RECORD)
    before = len(sys.stderr.getvalue())
    dist.log("save      step 10")
    written = sys.stderr.getvalue()[before:]
    sink.close()
    said = written.index("save      step 10\n")
    assert written[:said].startswith("\r") and not written[:said].strip("\r ")  # nothing but the bar wiped out
    assert "step 10/1000" in written[said:]  # and drawn again


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (61, "1:01"), (3661, "1:01:01")])
def test_clock(seconds, shown):
    assert clock(seconds) == shown


def test_silence_is_explained_once_it_lasts(monkeypatch, capsys):
    said = threading.Event()
    monkeypatch.setattr(dist, "log", lambda message: print(message) or said.set())
    monkeypatch.setattr(dist, "SILENCE_S", 0.01)
    with dist.explained("importing torch"):
        assert said.wait(10)
    assert capsys.readouterr().out == "wait      importing torch\n"
    monkeypatch.setattr(dist, "SILENCE_S", 60.0)
    with dist.explained("the first step"):
        pass
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "SILENCE_S", 0.0)
    with dist.explained("the first step"):
        threading.Event().wait(0.05)
    assert capsys.readouterr().out == ""
