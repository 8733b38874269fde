"""The power goes at any operation on files: what was promised by then is there when the machine comes back.

One undisturbed run of each kind of work is traced; disk.py makes of the trace what the disk may hold before each
operation, and the work is begun again from there. The slow tests try every different state; `COCA_POWER=200` so many.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coca_train import checkpoint
from coca_train.tracking.records import read_jsonl
from tests.faults import disk
from tests.faults.disk import Disk, Tree
from tests.faults.fake import holds, save
from tests.faults.fork_server import ForkServer, preloaded, values
from tests.faults.works import Training, Works

WORK = [(part, ranks) for part in ("training", "report", "evaluation", "tokenizing") for ranks in (1, 2)]
WORK += [("export", 1), ("import", 1)]
TIMED = ("tokens_per_s", "peak_memory_mib", "mfu")  # of a record

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="a compiler is needed")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A server whose ranks can write down what they do to files."""
    with ForkServer(preloaded("trace", tmp_path_factory.mktemp("trace"))) as server:
        yield server


def trace(server: ForkServer, root: Path, action: Callable[[], object]) -> Disk:
    """Do something on the server; the disk that it was done to."""
    file, before = root.with_name(f"{root.name}.trace"), disk.read(root)
    file.unlink(missing_ok=True)
    server.environment = {"TRACE_ROOT": str(root), "TRACE_FILE": str(file)}
    action()
    server.environment = {}
    found = Disk(root, before, disk.operations(file))
    # Else something went by the trace, and the states are not what a disk may hold.
    assert found.now() == disk.read(root).tree
    return found


def chosen(found: Disk, n: int | None) -> list[tuple[int, str, Tree]]:
    """So many of the different states, or all."""
    n = int(os.environ["COCA_POWER"]) if n is None and "COCA_POWER" in os.environ else n
    every = list(found.states())
    return every if n is None or n >= len(every) else random.Random(n).sample(every, n)


def check_saves(server: ForkServer, folder: Path, n: int | None) -> None:
    """Two saves and deletions: a checkpoint is there from the moment on at which it was published."""
    run = folder / "r"
    run.mkdir()
    for step in (10, 20):
        save(run, step)
    arguments = {"run_dir": str(run), "first": 30}
    found = trace(server, run, lambda: values(server.run("tests.faults.fake:save_two_more", arguments)))
    renamed = next(i for i, one in enumerate(found.trace) if one.kind == "R" and one.other.endswith("step-00000030"))
    published = next(i for i, one in enumerate(found.trace) if i > renamed and one.kind == "F")
    steps, states = set[int](), chosen(found, n)
    for number, name, tree in states:
        disk.write(tree, run)
        with checkpoint.RunLock(run):
            newest = checkpoint.find(run, "run-1", clean=True)
        assert newest is not None and holds(newest, newest.step), name
        assert newest.step >= (30 if number > published else 20), name
        assert {other for other in os.listdir(run / "checkpoints") if other[:5] != "step-"} <= {"latest"}, name
        assert save(run, 40) is None and holds(checkpoint.find(run, "run-1"), 40), name
        steps.add(newest.step)
    print(f"\nsaves: {len(states)} states of {len(found.trace)} operations; recovered at {sorted(steps)}")


def test_saves_after_some_cuts(traced: ForkServer, tmp_path: Path) -> None:
    check_saves(traced, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_saves_after_every_cut(traced: ForkServer, tmp_path: Path) -> None:
    check_saves(traced, tmp_path, None)


def check_work(works: Works, part: str, ranks: int, n: int | None) -> None:
    """Interrupted by a cut and begun again, it ends like what nothing interrupted."""
    work = works.of(part, ranks, zero=1)
    work.fresh()
    found = trace(works.server, work.folder, lambda: values(work.launch(None)))
    assert work.left() == work.whole
    whole, states = records(work.folder) if isinstance(work, Training) else [], chosen(found, n)
    for _, name, tree in states:
        disk.write(tree, work.folder)
        try:
            work.finish()
            assert not isinstance(work, Training) or records(work.folder) == whole
        except AssertionError as error:
            raise AssertionError(f"{part}, {name}: {error}") from error
    print(f"\n{part}, {ranks} ranks: {len(states)} states of {len(found.trace)} operations, all ended alike")


def records(run_dir: Path) -> list[dict[str, object]]:
    """The records of a run, but for how long steps took."""
    every = read_jsonl(run_dir / "metrics.jsonl")
    return [{key: value for key, value in record.items() if key not in TIMED} for record in every]


@pytest.fixture(scope="module")
def works(traced: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Works:
    return Works(traced, tmp_path_factory.mktemp("works"))


def test_a_training_after_some_cuts(works: Works) -> None:
    check_work(works, "training", 2, 6)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("part", "ranks"), WORK)
def test_work_after_every_cut(works: Works, part: str, ranks: int) -> None:
    check_work(works, part, ranks, None)
