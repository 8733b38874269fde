"""Signals, dead ranks and hung ranks: everyone leaves, in time, with an honest exit code."""

import os
import pty
import re
import signal
import subprocess
import time
from typing import Any

import pytest

from coca_train.runtime import dist, shutdown, watchdog
from coca_train.runtime.errors import PeerLost, Preempted
from coca_train.runtime.shutdown import StopRequest
from tests.cases import slow_unless
from tests.engine.scenarios import batches, build
from tests.faults.fork_server import ForkServer

LOOP = "tests.faults.test_stopping:loop"


def hang(how: str) -> None:
    """Stop making progress, the way things do."""
    if how == "sleep":
        time.sleep(1000)
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "interpreter lock":
        re.match(r"(a+)+$", "a" * 64 + "b")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises":
        raise RuntimeError("a bug on one rank")


def loop(
    steps: int,
    stage: int = 1,
    timeout_s: float = 60.0,
    step_s: float = 0.0,
    fault: dict[str, Any] | None = None,
    signal_early: bool = False,
) -> int:
    """In a forked rank: steps done, with signals and watchdog. fault: {step, rank, how}. Raises Preempted, PeerLost."""
    watchdog.GRACE_S = 2.0
    with StopRequest() as stop, watchdog.Watchdog(timeout_s) as dog:
        if signal_early and dist.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        built = build(zero_stage=stage)
        try:
            for step in range(steps):
                with dog.section("step", timeout_s):
                    if fault and (step, dist.rank()) == (fault["step"], fault["rank"]):
                        hang(fault["how"])
                    built.train_step(batches(step, 2), 1e-3)
                    time.sleep(step_s)
                if stop.requested():
                    raise Preempted(f"stopped after {step + 1} steps on {stop.received}")
        except RuntimeError as error:
            lost = shutdown.peer_lost(error)
            raise lost or error from None
        built.close()
    return steps


def is_peer_lost(message: str) -> bool:
    return isinstance(shutdown.peer_lost(RuntimeError(message)), PeerLost)


SENT = [(rank, number) for rank in (0, 1, -1) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]


@pytest.mark.parametrize(("rank", "number"), slow_unless([(1, signal.SIGTERM), (-1, signal.SIGINT)], SENT))
def test_a_signal_to_any_rank_stops_all_after_the_same_step(server: ForkServer, rank: int, number: int) -> None:
    job = {"steps": 10_000, "step_s": 0.01}
    ended = server.run(LOOP, job, ranks=2, signals=[(1.0, rank, number)])
    assert [answer.code for answer in ended] == [75, 75], ended[0].text
    steps = {re.search(r"stopped after (\d+) steps", answer.text)[1] for answer in ended}
    assert len(steps) == 1


def test_signals_during_start_are_kept(server: ForkServer) -> None:
    """From the moment the handler is there: the ranks meet, build the engine, and stop after the first step."""
    ended = server.run(LOOP, {"steps": 10_000, "signal_early": True}, ranks=2)
    assert [answer.code for answer in ended] == [75, 75], ended[0].text
    assert "stopped after 1 steps on SIGTERM" in ended[1].text


@pytest.mark.parametrize("between", [(), (signal.SIGTERM,)], ids=["alone", "passed on by a command as SIGTERM, too"])
def test_second_interrupt_is_at_once(between: tuple[signal.Signals, ...]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested() and stop.received == "SIGINT"
        for number in between:
            signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


DEATHS = [(stage, how) for stage in (0, 1, 3) for how in ("killed", "raises")]


@pytest.mark.parametrize(("stage", "how"), slow_unless([(1, "killed"), (3, "raises")], DEATHS))
def test_survivors_of_a_dead_rank_leave_with_76(server: ForkServer, stage: int, how: str) -> None:
    job = {"steps": 100, "stage": stage, "fault": {"step": 3, "rank": 1, "how": how}}
    began = time.monotonic()
    ended = server.run(LOOP, job, ranks=2, fail_fast_s=30)
    assert ended[1].code == (-9 if how == "killed" else 1)
    assert ended[0].code == 76, ended[0].text
    assert "E-RUN-15 rank 0: " in ended[0].text
    assert time.monotonic() - began < 30


def pause_in_a_section(timeout_s: float) -> float:
    """In a forked rank: stopped in a section for longer than its limit and the grace; what was left of its time [s]."""
    watchdog.GRACE_S = 0.5
    with watchdog.Watchdog(timeout_s) as dog, dog.section("step", timeout_s):
        with subprocess.Popen(["sh", "-c", f"sleep {timeout_s + 1}; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGTSTP)
        assert dog._section is not None
        return dog._section[1] - time.monotonic()


def continue_before_its_turn() -> str:
    """In a forked rank: stopped and continued while the interpreter lock is held; the names of what it then does."""
    with watchdog.Watchdog(60.0):
        pid = os.getpid()
        with subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -TSTP {pid}; sleep 0.1; kill -CONT {pid}"]):
            sum(range(50_000_000))
        time.sleep(0.5)  # for the thread, which would stop it now
    return signal.Handlers(signal.getsignal(signal.SIGTSTP)).name


def test_a_stop_that_was_continued_stops_nothing(server: ForkServer) -> None:
    """Slurm's order where a rank is busy in C: nobody would continue it a second time."""
    (ended,) = server.run("tests.faults.test_stopping:continue_before_its_turn", timeout_s=20.0)
    assert ended.code == 0, ended.text
    assert ended.value == "SIG_DFL"  # as it was


def stop_alone_in_a_terminal() -> int:
    """In a forked rank: Ctrl-Z in a terminal that began with this command; how its process ended."""
    pid, terminal = pty.fork()
    if pid == 0:
        with watchdog.Watchdog(60.0):
            print("ready", flush=True)
            time.sleep(2.0)
        os._exit(0)
    while b"ready" not in os.read(terminal, 100):
        pass
    os.write(terminal, b"\x1a")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_what_nobody_could_continue_is_not_stopped(server: ForkServer) -> None:
    (ended,) = server.run("tests.faults.test_stopping:stop_alone_in_a_terminal", timeout_s=20.0)
    assert (ended.code, ended.value) == (0, 0), ended.text


def fork_with_a_watchdog() -> bool:
    """In a forked rank: whether SIGTSTP does what it does by default in a child of a process with a watchdog."""
    with watchdog.Watchdog(60.0):
        if (pid := os.fork()) == 0:
            os._exit(0 if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL else 1)
        return os.waitpid(pid, 0)[1] == 0


def test_what_is_forked_stops_by_itself(server: ForkServer) -> None:
    """It has no thread that does what the handler leaves to it."""
    (ended,) = server.run("tests.faults.test_stopping:fork_with_a_watchdog")
    assert ended.value is True, ended.text


def test_no_limit_runs_while_a_job_is_suspended(server: ForkServer) -> None:
    """Ctrl-Z, or Slurm's suspension, which sends SIGTSTP first."""
    for ended in server.run("tests.faults.test_stopping:pause_in_a_section", {"timeout_s": 2.0}, ranks=2):
        assert ended.code == 0, ended.text
        assert 0.5 < ended.value <= 2.0


@pytest.mark.parametrize("how", slow_unless(["sleep", "stopped"], ["sleep", "stopped", "interpreter lock"]))
def test_hung_rank_is_left_by_the_watchdog(server: ForkServer, how: str) -> None:
    """ZeRO 1: DeepSpeed alone would wait 30 minutes."""
    job = {"steps": 100, "timeout_s": 2.5, "fault": {"step": 3, "rank": 1, "how": how}}
    ended = server.run(LOOP, job, ranks=2, fail_fast_s=0.5 if how == "stopped" else 4)
    assert ended[0].code == 76, ended[0].text
    overran = [f"E-RUN-14 rank {rank}: step overran its time limit" in ended[rank].text for rank in (0, 1)]
    assert overran == {"sleep": [overran[0], True], "stopped": [True, False], "interpreter lock": [True, False]}[how]
    if how != "stopped":  # that one is ended by the harness
        assert ended[1].code == {"sleep": 76, "interpreter lock": 1}[how], ended[1].text
        assert "hang" in ended[1].text, "the stack of the culprit is shown"


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:46045", True),
        ("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete", True),
        ("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)", False),
    ],
)
def test_what_counts_as_a_lost_peer(server: ForkServer, message: str, lost: bool) -> None:
    two = {"WORLD_SIZE": "2"}
    target = "tests.faults.test_stopping:is_peer_lost"
    assert server.run(target, {"message": message}, environment=two)[0].value == lost
    assert server.run(target, {"message": message})[0].value is False
