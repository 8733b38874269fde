"""kill -9 the real command in a save and run it again: the end is bit-identical to an uninterrupted run."""

import signal

import pytest

from tests.cases import slow_unless
from tests.faults import real
from tests.faults.fork_server import ForkServer
from tests.faults.runs import KilledRuns

# What a rank calls: the command as it is, or without its pictures and its measured peak, which take most of the time.
WHOLE, BARE = "tests.faults.real:run", "tests.stages.support:run"
LONG = [("bf16", WHOLE), ("fp32", WHOLE)]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> KilledRuns:
    folder, (dtype, target) = tmp_path_factory.mktemp("end-to-end"), request.param
    words = [*real.TINY, *real.prepare(folder), f"engine.dtype={dtype}"]
    runs = KilledRuns(server, words, folder / "runs", target=target)
    assert runs.whole[0] == 10 and len(runs.whole[2]) == 10
    return runs


of_the_whole = pytest.mark.parametrize("runs", LONG, indirect=True, ids="-".join)


def operations_of_save(runs: KilledRuns, rank: int, step: int) -> list[int]:
    """Numbers of the file operations of one save (and its pruning) on one rank."""
    names = runs.operations[rank]
    sign = "open state-00001-of-00002.safetensors" if rank else "mkdir .tmp-step-"
    starts = [number for number, name in enumerate(names) if name.startswith(sign)] + [len(names)]
    which = step // 3 - 1
    return list(range(starts[which], starts[which + 1]))


EVERY = [(case,) for case in [("bf16", BARE), *LONG]]


@pytest.mark.parametrize("runs", slow_unless(EVERY[:1], EVERY), indirect=True, ids="-".join)
def test_stop_and_kill_once(runs: KilledRuns) -> None:
    """SIGTERM: exit 75 and a checkpoint. Then kill -9 of one rank while it writes: 76 for the other. Then done."""
    runs.fresh()
    root = str(runs.run_dir)
    ended = runs.launch(inject={"root": root, "at": operations_of_save(runs, 1, 3)[2], "ranks": [1], "mode": "term"})
    assert [rank.code for rank in ended] == [75, 75], ended[0].text
    assert "step 4, checkpoint saved" in ended[0].text
    ended = runs.launch(inject={"root": root, "at": 2, "ranks": [1]})
    assert ended[1].code == -signal.SIGKILL and ended[0].code in (76, -signal.SIGKILL), ended[0].text
    log = runs.finish()
    assert "RECOVERY: step 4" in log and "(from step 4" in log


@of_the_whole
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("rank", "group"), [(0, False), (1, False), (0, True), (1, True)])
def test_killed_at_every_file_operation_of_a_save(runs: KilledRuns, rank: int, group: bool) -> None:
    """The second save of the real command. group: all ranks die with the victim."""
    numbers = operations_of_save(runs, rank, 6)
    for at in numbers:
        runs.fresh()
        ended = runs.launch(inject={"root": str(runs.run_dir), "at": at, "ranks": [rank], "group": group})
        assert ended[rank].code == -signal.SIGKILL
        log = runs.finish()
        assert "(from step 3" in log or "(from step 6" in log, log
    print(f"\nrank {rank}, {'all' if group else 'one'} killed: {len(numbers)} operations")
