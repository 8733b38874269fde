"""A rank is stopped, killed or asked to leave in any phase of a run: all ranks end in time, and as documented."""

import importlib
import itertools
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.cases import slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer, Rank
from tests.faults.phases import PHASES

RUN = "tests.faults.phases:run"
TIMEOUT_S = 5
ASKED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
LOST = ("SIGKILL", "SIGSTOP")
KEPT = (
    "loop",
    "validation",
    "save",
    "between copy and commit",
)  # where a request to stop waits for the step, and is answered with a checkpoint


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    # The report is asked for, and small.
    more = [
        "eval.extrapolation.enabled=true",
        "eval.extrapolation.multiples=[1,2]",
        "eval.extrapolation.max_documents=2",
    ]
    return [*real.TINY, *more, *real.prepare(tmp_path_factory.mktemp("data")), "engine.timeout_s=600"]


def struck(server: ForkServer, words: list[str], phase: str, event: str, rank: int) -> list[Rank]:
    if event == "SIGSTOP" or phase == "rendezvous":  # only the time tells; all else is noticed long before
        key = "work" if "evaluate" in words else "engine"
        words = [*words, f"{key}.timeout_s={TIMEOUT_S}"]
    job = {"overrides": words, "phase": phase, "event": event, "rank": rank}
    # A rank that is stopped is ended by the harness, as soon as the other has left.
    return server.run(RUN, job, ranks=2, fail_fast_s=0.5 if event == "SIGSTOP" else 30)


def check_end(ended: list[Rank], phase: str, event: str, rank: int) -> None:
    """What the documentation promises of both ranks."""
    victim, other = ended[rank], ended[1 - rank]
    said = f"{ended[0].text}\n---- rank 1\n{ended[1].text}"
    assert "frame #" not in said and "Traceback" not in said, said
    if event in ASKED and phase in KEPT:
        assert [each.code for each in ended] == [75, 75], said
        assert "checkpoint saved" in ended[0].err
        return
    if event in ASKED:
        assert victim.code == 75, said
        assert victim.err.splitlines()[-1].startswith(f"rank {rank}: stopped by {event} ")
    else:
        assert victim.code == -signal.SIGKILL
    assert other.code == 76, said
    lines = [line for line in other.err.splitlines() if line.startswith("E-")]
    assert len(lines) == 1 and lines[0].startswith(("E-RUN-14 rank ", "E-RUN-15 rank ")), said
    assert "Fix: " in lines[0]


EVERY = list(itertools.product([name for name in PHASES if name != "weights"], (*ASKED, *LOST), (0, 1)))
QUICK = [("initialize", "SIGKILL", 1), ("save", "SIGHUP", 1), ("between copy and commit", "SIGKILL", 1)]


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_begins_somewhere(phase: str) -> None:
    """Most are struck in slow tests only, which a renamed function would leave without a fault."""
    owner, name, _ = PHASES[phase]
    assert callable(getattr(importlib.import_module(owner), name))


@pytest.mark.parametrize(("phase", "event", "rank"), slow_unless(QUICK, EVERY))
def test_every_rank_ends(
    server: ForkServer, words: list[str], tmp_path: Path, phase: str, event: str, rank: int
) -> None:
    ended = struck(server, [*words, f"run.root={tmp_path}", "run.name=r"], phase, event, rank)
    check_end(ended, phase, event, rank)


@pytest.mark.slow
@pytest.mark.parametrize(("event", "rank"), list(itertools.product((*ASKED, *LOST), (0, 1))))
def test_while_a_checkpoint_is_read(
    server: ForkServer, words: list[str], tmp_path: Path, event: str, rank: int
) -> None:
    here = [*words, f"run.root={tmp_path}", "run.name=r"]
    check_end(struck(server, here, "loop", "SIGTERM", 1), "loop", "SIGTERM", 1)
    check_end(struck(server, here, "weights", event, rank), "weights", event, rank)
    # Nothing was lost: the same command goes on, to the end.
    assert [each.code for each in server.command(["coca_train", *here], ranks=2)] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("zero_stage", "phase"), [(0, "loop"), (3, "loop"), (3, "report"), (3, "initialize")])
@pytest.mark.parametrize("event", LOST)
def test_other_engines(
    server: ForkServer, words: list[str], tmp_path: Path, zero_stage: int, phase: str, event: str
) -> None:
    here = [*words, f"run.root={tmp_path}", "run.name=r", "engine.dtype=fp32", f"engine.zero_stage={zero_stage}"]
    check_end(struck(server, here, phase, event, 1), phase, event, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "event"), list(itertools.product(("rendezvous", "grid"), ("SIGTERM", *LOST))))
def test_an_evaluation(server: ForkServer, words: list[str], tmp_path: Path, phase: str, event: str) -> None:
    run = [*words, f"run.root={tmp_path}", "run.name=r", "eval.extrapolation.enabled=false"]
    assert server.command(["coca_train", *run])[0].code == 0
    evaluation = [f"checkpoint={tmp_path}/r", f"work.root={tmp_path}/evaluation"]
    evaluation = ["evaluate", *evaluation, "grid.lengths=[1x,2x]", "work.device=cpu", "work.progress_bar=false"]
    check_end(struck(server, evaluation, phase, event, 1), phase, event, 1)


ENVIRONMENTS = [
    ({"MASTER_PORT": "99999999"}, "E-RUN-02 environment MASTER_PORT='99999999': rank "),
    ({"MASTER_ADDR": "no such machine"}, "E-RUN-02 environment MASTER_ADDR='no such machine': rank "),
    ({"RANK": "5"}, "E-RUN-01 environment: RANK=5 is not below WORLD_SIZE=2. Fix: "),
]


@pytest.mark.parametrize(("environment", "start"), slow_unless(ENVIRONMENTS[:1], ENVIRONMENTS))
def test_ranks_that_cannot_meet_say_why(
    server: ForkServer, words: list[str], tmp_path: Path, environment: dict[str, str], start: str
) -> None:
    """One line each, also of a rank that is none."""
    ended = server.command(["coca_train", *words, f"run.root={tmp_path}"], ranks=2, environment=environment)
    for rank in ended:
        (line,) = rank.err.splitlines()
        assert rank.code == 2 and line.startswith(start) and "Fix: " in line


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_comes_alone(server: ForkServer, words: list[str], tmp_path: Path, rank: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    alone = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    here = ["coca_train", *words, f"run.root={tmp_path}", f"engine.timeout_s={TIMEOUT_S}"]
    (ended,) = server.command(here, environment=alone)
    (line,) = ended.err.splitlines()
    assert ended.code == 76 and re.match(rf"E-RUN-15 rank {rank} of 2: .*127\.0\.0\.1:{port} ", line)
    if rank == 0:
        with socket.create_server(("127.0.0.1", int(port))):
            (ended,) = server.command(here, environment=alone)
        (line,) = ended.err.splitlines()
        assert ended.code == 2 and line.startswith(f"E-RUN-02 environment MASTER_PORT={port}: ")


def met(strangers: int) -> list[int]:
    """In a forked rank: the ranks at the other ends of its connections, where strangers knock first."""
    import threading

    from coca_train.engine import start, stop
    from coca_train.runtime import watchdog
    from tests.engine.scenarios import engine_config

    create_server = socket.create_server

    def known_to_strangers(*arguments: Any, **options: Any) -> socket.socket:
        server = create_server(*arguments, **options)
        for _ in range(strangers):
            with socket.create_connection(server.getsockname()) as line:
                line.sendall(b"x" * 20)
        return server

    socket.create_server = known_to_strangers
    with watchdog.Watchdog(30.0) as dog:
        start(engine_config())
        ranks = sorted(dog.connections.values())
        stop()
    assert threading.active_count() == 1
    return ranks


def test_every_rank_is_connected_with_rank_0(server: ForkServer) -> None:
    ended = server.run("tests.faults.test_phases:met", {"strangers": 2}, ranks=3)
    assert [rank.value for rank in ended] == [[1, 2], [0], [0]], [rank.text for rank in ended]
